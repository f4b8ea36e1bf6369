"""Final observations of the episodes that ended in a step."""

from __future__ import annotations

from typing import Any

import numpy as np

from multiverse.core.layout import ENDED, FINAL_OBSERVATIONS, OBSERVATIONS
from multiverse.core.views import Array, Views
from multiverse.ipc.space_rows import row_reader


class _OneAgent:
    """Envs with one agent. `of(env_id)`: the final observation of that env."""

    def __init__(self, views: Views, where: str) -> None:
        (group,) = views.layout.groups
        self._terminated, self._truncated = views[(group.name, ENDED)]
        self.of = row_reader(group.observation_space, views, (group.name, where))

    def ended_in(self, env_ids: Array) -> Array:
        """[env_ids] bool: the envs in which an agent ended in this step."""
        ended: Array = self._terminated[env_ids] | self._truncated[env_ids]
        return ended


class _Agents:
    """Envs with several agents. `of(env_id)`: the final observations by agent, of those that ended in this step."""

    def __init__(self, views: Views, where: str) -> None:
        count = views.layout.num_envs
        self._groups = [
            (
                group.agents,
                views[(group.name, ENDED)].reshape(2, count, len(group.agents)),
                row_reader(group.observation_space, views, (group.name, where)),
            )
            for group in views.layout.groups
        ]

    def ended_in(self, env_ids: Array) -> Array:
        by_group = [ended[:, env_ids].any(axis=(0, 2)) for _, ended, _ in self._groups]
        return np.asarray(np.logical_or.reduce(by_group))

    def of(self, env_id: int) -> dict[str, Any]:
        return {
            agent: read(env_id * len(agents) + position)
            for agents, ended, read in self._groups
            for position, agent in enumerate(agents)
            if ended[:, env_id, position].any()
        }


def final_rows(views: Views) -> _OneAgent | _Agents:
    """Reader of the final observations: from their own arrays or, without those, from the observations, which are the
    final ones until the next episode begins."""
    where = FINAL_OBSERVATIONS if views.layout.with_final_observations else OBSERVATIONS
    single = len(views.layout.groups) == 1 and not views.layout.groups[0].may_be_absent
    return _OneAgent(views, where) if single else _Agents(views, where)

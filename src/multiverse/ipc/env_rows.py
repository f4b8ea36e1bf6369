"""Rows by env: read, copied, kept as last delivered, and as final observations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from multiverse.core.layout import (
    ALIVE,
    ENDED,
    EPISODE_LENGTH,
    FINAL_OBSERVATIONS,
    OBSERVATIONS,
    PRESENT,
    TERMINATED,
    TRUNCATED,
    VALUES,
    Array,
    FieldName,
    Group,
    Views,
    leaves,
)
from multiverse.ipc.space_rows import row_reader


class EnvRows:
    """Rows of a contiguous range of envs; position 0 is its first env."""

    def __init__(self, rows: Any, first: int, agents: int) -> None:
        self.rows, self._first, self._agents = rows, first, agents
        self.is_array = not isinstance(rows, list)

    def copy(self) -> EnvRows:
        """A copy in separate memory."""
        return EnvRows(self.rows.copy(), self._first, self._agents)

    def take(self, other: EnvRows, env: int) -> None:
        """Copy the values of one env from `other`, which has the same envs."""
        if self.is_array:
            self.rows[env] = other.rows[env]
        else:
            self.rows[self._slots(env)] = other.rows[other._slots(env)]

    def take_all(self, other: EnvRows) -> None:
        """Copy the values of all envs from `other`."""
        self.rows[:] = other.rows

    def _slots(self, env: int) -> slice:
        """An env's slots in a list, which holds all slots of the vector env."""
        start = (self._first + env) * self._agents
        return slice(start, start + self._agents)


def env_rows(views: Views, group: Group, name: FieldName, env_ids: range) -> EnvRows:
    """One leaf's rows of a range of envs: [envs, *shape], or [envs, agents, *shape] with several agents."""
    agents = len(group.agents)
    if name not in views.arrays:
        return EnvRows(views.objects[name], env_ids.start, agents)
    array: Array = views[name][views.layout.rows(group, env_ids)]
    if agents > 1:
        array = array.reshape(len(env_ids), agents, *array.shape[1:])
    return EnvRows(array, 0, agents)


def observation_rows(views: Views, kind: str, env_ids: range) -> list[EnvRows]:
    """Rows of every observation leaf of every group, and of the global states; `kind`: OBSERVATIONS or
    FINAL_OBSERVATIONS."""
    return [
        env_rows(views, group, (group.name, kind, *leaf.path), env_ids)
        for group in views.layout.shown
        for leaf in leaves(group.observation_space)
    ]


def mask_rows(views: Views, name: str, env_ids: range) -> list[EnvRows]:
    """Rows of the action masks of every group that has them; `name`: ACTION_MASKS or FINAL_ACTION_MASKS."""
    masked = [group for group in views.layout.groups if group.masks]
    return [env_rows(views, group, (group.name, name), env_ids) for group in masked]


def object_rows(views: Views, names: Iterable[FieldName], env_ids: range) -> dict[FieldName, list[Any]]:
    """Rows of a range of envs of the leaves that no array can hold, as they are sent by pipe."""
    return {name: views.objects[name][views.layout.rows_of_field(name, env_ids)] for name in names}


def put_object_rows(views: Views, objects: Mapping[FieldName, list[Any]], env_ids: range) -> None:
    """Store rows that came by pipe."""
    for name, values in objects.items():
        views.objects[name][views.layout.rows_of_field(name, env_ids)] = values


# -- rows as last delivered ------------------------------------------------------------------------------------
class LastRows:
    """A copy of every observation leaf, for a contiguous range of envs."""

    def __init__(self, views: Views, env_ids: range) -> None:
        self._first = env_ids.start
        # (current, as delivered) of each leaf
        self._leaves = [(rows, rows.copy()) for rows in observation_rows(views, OBSERVATIONS, env_ids)]
        self._finals: list[EnvRows] = []
        if views.layout.with_final_observations:
            self._finals = observation_rows(views, FINAL_OBSERVATIONS, env_ids)
        self._arrays: list[tuple[Array, Array]]
        self._arrays = [(current.rows, saved.rows) for current, saved in self._leaves if current.is_array]
        self._objects = [(current, saved) for current, saved in self._leaves if not current.is_array]

    def remember(self) -> None:
        """Copy all rows, which are being delivered."""
        for current, saved in self._arrays:
            saved[...] = current
        for rows, copied in self._objects:
            copied.take_all(rows)

    def remember_some(self, env_ids: Iterable[int]) -> None:
        """Copy the rows of some envs; other rows may be written at this moment."""
        for env_id in env_ids:
            for current, saved in self._leaves:
                saved.take(current, env_id - self._first)

    def restore(self, env_id: int) -> None:
        """Restore an env's rows as they were last delivered."""
        for current, saved in self._leaves:
            current.take(saved, env_id - self._first)

    def restore_as_final(self, env_id: int) -> None:
        """Copy an env's rows, as they were last delivered, to its final observations."""
        for final, (_, saved) in zip(self._finals, self._leaves):
            final.take(saved, env_id - self._first)


class DeliveredRows(LastRows):
    """Copies for all envs, also of which agents were present, and of the sums of each episode.

    A worker that is lost after a step, but before it reported it, has left the results of that step in the block.
    """

    def __init__(self, views: Views) -> None:
        count = views.layout.num_envs
        super().__init__(views, range(count))
        self._columns: list[tuple[Array, Array]] = []  # [2, envs, agents] current, and as delivered
        self._groups: list[tuple[bool, list[tuple[Array, Array]]]] = []  # presence, ends and sums of each
        for group in views.layout.groups:
            sums = views[(group.name, VALUES)][EPISODE_LENGTH:]
            parts = [views[(group.name, PRESENT)], views[(group.name, ENDED)], sums]
            columns = [(current, current.copy()) for current in (part.reshape(2, count, -1) for part in parts)]
            self._groups.append((group.may_be_absent, columns))
            self._columns += columns

    def remember(self) -> None:
        super().remember()
        for current, saved in self._columns:
            saved[...] = current

    def remember_some(self, env_ids: Iterable[int]) -> None:
        ids = list(env_ids)
        super().remember_some(ids)
        for current, saved in self._columns:
            saved[:, ids] = current[:, ids]

    def cut(self, env_id: int) -> None:
        """End an env's episode with what was delivered: the agents present then are truncated, and the lost step does
        not count. If the episode had ended before, the lost one has no steps."""
        for may_be_absent, ((_, present), (ended, had_ended), (sums, summed)) in self._groups:
            sums[:, env_id] = summed[:, env_id]  # guard: a-lost-step-is-not-counted
            if may_be_absent:
                ended[TERMINATED, env_id], ended[TRUNCATED, env_id] = False, present[ALIVE, env_id]
            elif had_ended[:, env_id].any():
                sums[:, env_id] = 0.0


# -- final observations ----------------------------------------------------------------------------------------
class FinalRows(NamedTuple):
    """Reader of the final observations of episodes that ended in a step."""

    ended_in: Callable[[Array], Array]  # env ids → [env ids] bool: whether an agent ended in this step
    of: Callable[[int], Any]  # env id → its final observation or, with several agents, those of the agents that ended


def final_rows(views: Views) -> FinalRows:
    """Reader of the final observations: from their own arrays or, without those, from the observations, which are the
    final ones until the next episode begins."""
    layout = views.layout
    kind = FINAL_OBSERVATIONS if layout.with_final_observations else OBSERVATIONS
    readers = [row_reader(group.observation_space, views, (group.name, kind)) for group in layout.groups]
    ends = [views[(group.name, ENDED)] for group in layout.groups]
    if len(readers) == 1 and not layout.groups[0].may_be_absent:
        terminated, truncated = ends[0]
        return FinalRows(lambda env_ids: terminated[env_ids] | truncated[env_ids], readers[0])
    by_agent = [ended.reshape(2, layout.num_envs, -1) for ended in ends]

    def ended_in(env_ids: Array) -> Array:
        return np.asarray(np.logical_or.reduce([ended[:, env_ids].any(axis=(0, 2)) for ended in by_agent]))

    def of(env_id: int) -> dict[str, Any]:
        return {
            agent: read(env_id * len(group.agents) + position)
            for group, ended, read in zip(layout.groups, by_agent, readers)
            for position, agent in enumerate(group.agents)
            if ended[:, env_id, position].any()
        }

    return FinalRows(ended_in, of)

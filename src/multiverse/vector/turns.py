"""Vector env over envs whose agents act in turn (PettingZoo AEC): one action per env, for the agent to act."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from multiverse.core.errors import InvalidActions
from multiverse.core.infos import Infos, add_info, reordered_infos
from multiverse.core.layout import Array
from multiverse.ipc.env_rows import final_rows
from multiverse.vector.base import Running
from multiverse.vector.batches import Turn, TurnRows
from multiverse.vector.group_rows import GroupReader, Rows
from multiverse.vector.parallel import ALL, BaseMultiAgentVectorEnv


class TurnVectorEnv(BaseMultiAgentVectorEnv):
    """Made by `multiverse.make_vec` from a PettingZoo AEC env.

    `turn = games.reset(seed=0)`, then `turn = games.step(actions)` with one action per env, for the agent
    `turn.agents[i]` of env i. With several groups: `games.step({group: actions})`, in the order of
    `turn.groups[group].env_ids`. Steps that only remove agents that have ended happen in the worker.
    Observations are always copies, even with `copy=False`.
    """

    def __init__(self, running: Running) -> None:
        super().__init__(running)
        self._episodes_before = self._episodes.copy()
        self._single_group = len(self._readers) == 1
        views = self._executor.views
        self._finals = None if views.layout.with_final_observations else final_rows(views)
        self._numbers = np.arange(1, len(self.agents) + 1)
        # Of every agent: the index of its group, and its own index in that; the last entry is for -1, no agent.
        counts = [len(reader.group.agents) for reader in self._readers]
        self._group_of_agent = np.array([g for g, count in enumerate(counts) for _ in range(count)] + [-1])
        self._acting_now: tuple[bytes, list[tuple[Array, Array]]] = (b"", [])
        self._number_in_group = np.array([k for count in counts for k in range(count)] + [0])

    def reset(self, **kwargs: Any) -> Turn:
        """Begin episodes, as `VectorEnv.reset` does: `seed`, `options`, `tasks`, `env_ids`."""
        turn, infos = super().reset(**kwargs)
        turn.infos.update(infos)
        return turn  # type: ignore[no-any-return]

    # -- actions -----------------------------------------------------------------------------------------------
    def _write_actions(self, actions: Any, ids: Array | None) -> None:
        envs = self._all_ids if ids is None else ids
        by_group, acting_agents = self._by_group(actions), self._agents_to_act(ALL if ids is None else ids)
        writes = []
        for reader, (mine, slots) in zip(self._readers, self._slots_to_act(envs, acting_agents, ids is None)):
            name = reader.group.name
            if name in by_group and (len(mine) or len(by_group[name])):
                writes.append(self._writers[name].for_slots(by_group[name], slots))
            elif len(mine):
                raise InvalidActions(f"no actions for group {name!r}, whose agents act in envs {mine.tolist()}")
        for write in writes:
            write()
        self._episodes_before[envs] = self._episodes[envs]

    def _by_group(self, actions: Any) -> Mapping[str, Any]:
        if isinstance(actions, Mapping) and not (self._single_group and self._takes_dicts(actions)):
            unknown = [key for key in actions if key not in self._writers]
            if unknown:
                raise InvalidActions(f"actions for unknown groups {unknown}; the groups are {list(self._writers)}")
            return actions
        if not self._single_group:
            raise InvalidActions(f"expected a dict with actions for each of the groups {list(self.groups)}")
        return {self._readers[0].group.name: actions}

    def _takes_dicts(self, actions: Mapping[str, Any]) -> bool:
        """Return whether a dict is a batch of the only group's actions, and not actions by group."""
        group = self._readers[0].group
        return isinstance(group.action_space, spaces.Dict) and group.name not in actions

    # -- agents to act -----------------------------------------------------------------------------------------
    def _agents_to_act(self, rows: Rows) -> Array:
        """[n] index of the agent to act; -1 where there is none."""
        return self._acting_index(self._joined([reader.acting(rows) for reader in self._readers]))

    def _acting_index(self, acting: Array) -> Array:
        return np.asarray(acting.dot(self._numbers) - 1)  # at most one of a row is True

    def _slots_to_act(self, envs: Array, acting_agents: Array, everywhere: bool) -> list[tuple[Array, Array]]:
        """Return for each group the envs where it acts, and the slots that act. For the whole batch the result is kept
        until the actions for it arrive."""
        key = acting_agents.tobytes() if everywhere else b""
        if everywhere and self._acting_now[0] == key:
            return self._acting_now[1]
        slots = [self._slots_of(number, envs, acting_agents) for number in range(len(self._readers))]
        if everywhere:
            self._acting_now = key, slots
        return slots

    def _slots_of(self, number: int, envs: Array, acting_agents: Array) -> tuple[Array, Array]:
        """Return those of `envs` where a group acts, and the slots that act. The only group has a row for every env;
        where the episode is over, that of its first agent."""
        agents = len(self._readers[number].group.agents)
        if self._single_group:
            return envs, envs * agents + np.maximum(acting_agents, 0)
        mine = (self._group_of_agent[acting_agents] == number).nonzero()[0]
        return envs[mine], envs[mine] * agents + self._number_in_group[acting_agents[mine]]

    # -- batches -----------------------------------------------------------------------------------------------
    def _turn(self, ids: Array | None, infos: Infos) -> Turn:
        envs, rows = (self._all_ids.copy(), ALL) if ids is None else (ids, ids)
        alive, acting = self._joined([reader.present(rows) for reader in self._readers])
        terminated, truncated = self._joined([reader.ended(rows) for reader in self._readers])
        rewards = self._joined([reader.rewards(rows) for reader in self._readers])
        acting_agents = self._acting_index(acting)
        groups = {
            reader.group.name: self._rows_to_act(reader, mine, slots)
            for reader, (mine, slots) in zip(self._readers, self._slots_to_act(envs, acting_agents, ids is None))
        }
        over = self._episodes_over(envs, terminated | truncated, alive)
        return Turn(envs, acting_agents, groups, acting, alive, rewards, terminated, truncated, over, infos)

    def _joined(self, parts: list[Array]) -> Array:
        """Join one array per group to one of all agents, […, A]."""
        return parts[0] if self._single_group else np.concatenate(parts, axis=-1)

    def _rows_to_act(self, reader: GroupReader, envs: Array, slots: Array) -> TurnRows:
        return TurnRows(envs.copy(), self._returned(reader.of_slots(slots), envs), reader.masks_of_slots(slots))

    def _episodes_over(self, envs: Array, ended: Array, alive: Array) -> Array:
        """[n] bool: where agents have ended, and none is left or a new episode has begun."""
        if not np.count_nonzero(ended):
            return np.zeros(len(envs), np.bool_)
        begun = self._episodes[envs] != self._episodes_before[envs]
        return np.asarray(ended.any(axis=1) & (begun | ~alive.any(axis=1)))

    def _step_result(self, infos: Infos) -> Turn:
        self._add_finals(infos, self._all_ids)
        return self._turn(None, infos)

    def _batch(self, ids: Array, infos: Infos) -> Turn:
        self._add_finals(infos, ids)
        return self._turn(ids, infos)

    def _add_finals(self, infos: Infos, ids: Array) -> None:
        """Add the last observations of agents that have ended; in same_step the infos have them already."""
        if self._finals is not None:
            for row in np.flatnonzero(self._finals.ended_in(ids)).tolist():
                add_info(infos, {"final_obs": self._finals.of(int(ids[row]))}, row, len(ids))

    def _reordered(self, batch: Turn, ids: Array) -> Turn:
        order = np.searchsorted(batch.env_ids, ids)
        if (order == np.arange(len(ids))).all():
            return batch
        return self._turn(ids, batch.infos and reordered_infos(batch.infos, order))

    def _first_observations(self, ids: Array | None) -> Turn:
        envs = self._all_ids if ids is None else ids
        self._episodes_before[envs] = self._episodes[envs]
        return self._turn(ids, {})

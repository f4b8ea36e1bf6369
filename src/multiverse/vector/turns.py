"""Many copies of an env whose agents act in turn (PettingZoo AEC): a step is one action per env, of whoever acts."""

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
    `turn.agents[i]` of env i. Where there are several groups: `games.step({group: actions})`, in the order of
    `turn.groups[group].env_ids`. Steps that only remove agents that have ended happen in the worker.
    Observations are always copies, whatever `copy` says.
    """

    def __init__(self, running: Running) -> None:
        super().__init__(running)
        self._episodes_before = self._episodes.copy()
        self._one_group = len(self._readers) == 1
        views = self._executor.views
        self._last_seen = None if views.layout.with_final_observations else final_rows(views)
        self._numbers = np.arange(1, len(self.agents) + 1)
        # Of every agent, and last of nobody (-1): the number of its group, and its own in it.
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
        envs = self._everyone if ids is None else ids
        by_group, whose = self._by_group(actions), self._whose_turn(ALL if ids is None else ids)
        writes = []
        for reader, (mine, slots) in zip(self._readers, self._who_acts(envs, whose, ids is None)):
            name = reader.group.name
            if name in by_group and (len(mine) or len(by_group[name])):
                writes.append(self._writers[name].for_slots(by_group[name], slots))
            elif len(mine):
                raise InvalidActions(f"no actions for group {name!r}, whose turn it is in envs {mine.tolist()}")
        for write in writes:
            write()
        self._episodes_before[envs] = self._episodes[envs]

    def _by_group(self, actions: Any) -> Mapping[str, Any]:
        if isinstance(actions, Mapping) and not (self._one_group and self._takes_dicts(actions)):
            unknown = [key for key in actions if key not in self._writers]
            if unknown:
                raise InvalidActions(f"actions for {unknown}: the groups are {list(self._writers)}")
            return actions
        if not self._one_group:
            raise InvalidActions(f"there are several groups: a dict with actions for each of {list(self.groups)}")
        return {self._readers[0].group.name: actions}

    def _takes_dicts(self, actions: Mapping[str, Any]) -> bool:
        """Whether a dict is a batch of the only group's actions, and not one by group."""
        group = self._readers[0].group
        return isinstance(group.action_space, spaces.Dict) and group.name not in actions

    # -- whose turn it is --------------------------------------------------------------------------------------
    def _whose_turn(self, rows: Rows) -> Array:
        """[n] index of the acting agent, -1 where there is none."""
        return self._only_one(self._joined([reader.acting(rows) for reader in self._readers]))

    def _only_one(self, acting: Array) -> Array:
        return np.asarray(acting.dot(self._numbers) - 1)  # at most one of a row is True

    def _who_acts(self, envs: Array, whose: Array, everywhere: bool) -> list[tuple[Array, Array]]:
        """For each group: where it acts, and the slots that do. A whole batch that is acted on was looked at when it
        was returned, so that is kept."""
        key = whose.tobytes() if everywhere else b""
        if everywhere and self._acting_now[0] == key:
            return self._acting_now[1]
        found = [self._slots_of(number, envs, whose) for number in range(len(self._readers))]
        if everywhere:
            self._acting_now = key, found
        return found

    def _slots_of(self, number: int, envs: Array, whose: Array) -> tuple[Array, Array]:
        """(those of `envs` where a group acts, the slots that act). The only group has a row for every env, also for
        one whose episode is over: its first agent's."""
        agents = len(self._readers[number].group.agents)
        if self._one_group:
            return envs, envs * agents + np.maximum(whose, 0)
        mine = (self._group_of_agent[whose] == number).nonzero()[0]
        return envs[mine], envs[mine] * agents + self._number_in_group[whose[mine]]

    # -- how its batches look ----------------------------------------------------------------------------------
    def _turn(self, ids: Array | None, infos: Infos) -> Turn:
        envs, rows = (self._everyone.copy(), ALL) if ids is None else (ids, ids)
        alive, acting = self._joined([reader.present(rows) for reader in self._readers])
        terminated, truncated = self._joined([reader.ended(rows) for reader in self._readers])
        rewards = self._joined([reader.rewards(rows) for reader in self._readers])
        whose = self._only_one(acting)
        groups = {
            reader.group.name: self._rows_to_act(reader, mine, slots)
            for reader, (mine, slots) in zip(self._readers, self._who_acts(envs, whose, ids is None))
        }
        over = self._episodes_over(envs, terminated | truncated, alive)
        return Turn(envs, whose, groups, acting, alive, rewards, terminated, truncated, over, infos)

    def _joined(self, parts: list[Array]) -> Array:
        """[…, A] of all agents from one part per group."""
        return parts[0] if self._one_group else np.concatenate(parts, axis=-1)

    def _rows_to_act(self, reader: GroupReader, envs: Array, slots: Array) -> TurnRows:
        return TurnRows(envs.copy(), self._handed_out(reader.of_slots(slots), envs), reader.masks_of_slots(slots))

    def _episodes_over(self, envs: Array, ended: Array, alive: Array) -> Array:
        """Where agents have ended, and nobody is left or a new episode has begun."""
        if not np.count_nonzero(ended):
            return np.zeros(len(envs), np.bool_)
        begun = self._episodes[envs] != self._episodes_before[envs]
        return np.asarray(ended.any(axis=1) & (begun | ~alive.any(axis=1)))

    def _step_result(self, infos: Infos) -> Turn:
        self._add_last_seen(infos, self._everyone)
        return self._turn(None, infos)

    def _batch(self, ids: Array, infos: Infos) -> Turn:
        self._add_last_seen(infos, ids)
        return self._turn(ids, infos)

    def _add_last_seen(self, infos: Infos, ids: Array) -> None:
        """What those saw last who have ended; in same_step it is among the infos already."""
        if self._last_seen is not None:
            for row in np.flatnonzero(self._last_seen.ended_in(ids)).tolist():
                add_info(infos, {"final_obs": self._last_seen.of(int(ids[row]))}, row, len(ids))

    def _reordered(self, batch: Turn, ids: Array) -> Turn:
        order = np.searchsorted(batch.env_ids, ids)
        if (order == np.arange(len(ids))).all():
            return batch
        return self._turn(ids, batch.infos and reordered_infos(batch.infos, order))

    def _first_observations(self, ids: Array | None) -> Turn:
        envs = self._everyone if ids is None else ids
        self._episodes_before[envs] = self._episodes[envs]
        return self._turn(ids, {})

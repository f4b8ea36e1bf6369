"""Copies of the observations that were last delivered, to restore the rows of lost envs."""

from __future__ import annotations

from collections.abc import Iterable

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
)
from multiverse.core.views import Array, Views
from multiverse.ipc.env_rows import EnvRows, observation_rows


class LastRows:
    """A copy of every observation leaf, for a contiguous range of envs."""

    def __init__(self, views: Views, env_ids: range) -> None:
        self._first = env_ids.start
        # (current, as delivered) of each leaf
        self._leaves = [(rows, rows.copy()) for rows in observation_rows(views, OBSERVATIONS, env_ids)]
        self._finals: list[EnvRows] = []
        if views.layout.with_final_observations:
            self._finals = observation_rows(views, FINAL_OBSERVATIONS, env_ids)
        self._arrays: list[tuple[Array, Array]] = [(now.rows, kept.rows) for now, kept in self._leaves if now.is_array]
        self._objects = [(now, kept) for now, kept in self._leaves if not now.is_array]

    def remember(self) -> None:
        """Copy all rows, which are being delivered."""
        for current, saved in self._arrays:
            saved[...] = current
        for rows, kept in self._objects:
            kept.take_all(rows)

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

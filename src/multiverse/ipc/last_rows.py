"""The observations that were last delivered, kept by whoever may have to show them once more."""

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
        self._leaves = [(now, now.copy()) for now in observation_rows(views, OBSERVATIONS, env_ids)]  # and as delivered
        self._finals: list[EnvRows] = []
        if views.layout.with_final_observations:
            self._finals = observation_rows(views, FINAL_OBSERVATIONS, env_ids)
        self._arrays: list[tuple[Array, Array]] = [(now.rows, kept.rows) for now, kept in self._leaves if now.is_array]
        self._objects = [(now, kept) for now, kept in self._leaves if not now.is_array]

    def remember(self) -> None:
        """All rows are being delivered now."""
        for current, saved in self._arrays:
            saved[...] = current
        for now, kept in self._objects:
            kept.take_all(now)

    def remember_some(self, env_ids: Iterable[int]) -> None:
        """Some rows are; the others may just be written."""
        for env_id in env_ids:
            for current, saved in self._leaves:
                saved.take(current, env_id - self._first)

    def restore(self, env_id: int) -> None:
        """Put an env's rows back as they were last delivered."""
        for current, saved in self._leaves:
            current.take(saved, env_id - self._first)

    def restore_as_final(self, env_id: int) -> None:
        """Put an env's rows, as they were last delivered, where final observations are read."""
        for final, (_, saved) in zip(self._finals, self._leaves):
            final.take(saved, env_id - self._first)


class DeliveredRows(LastRows):
    """The same for all envs, with what else the caller was told: who was there, and the sums of each episode.

    A worker that is lost after a step, and before it could tell of it, has left what came after that step in the block.
    """

    def __init__(self, views: Views) -> None:
        count = views.layout.num_envs
        super().__init__(views, range(count))
        self._columns: list[tuple[Array, Array]] = []  # [2, envs, agents] as they are, and as delivered
        self._groups: list[tuple[bool, list[tuple[Array, Array]]]] = []  # presence, ends and sums of each
        for group in views.layout.groups:
            sums = views[(group.name, VALUES)][EPISODE_LENGTH:]
            parts = [views[(group.name, PRESENT)], views[(group.name, ENDED)], sums]
            columns = [(now, now.copy()) for now in (part.reshape(2, count, -1) for part in parts)]
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
        """An env's episode ends with what was delivered: whoever was there then is truncated, and the lost step is
        none of its steps. An episode that had ended before was followed by one without any."""
        for comes_and_goes, ((_, present), (ended, had_ended), (sums, summed)) in self._groups:
            sums[:, env_id] = summed[:, env_id]  # guard: a-lost-step-is-not-counted
            if comes_and_goes:
                ended[TERMINATED, env_id], ended[TRUNCATED, env_id] = False, present[ALIVE, env_id]
            elif had_ended[:, env_id].any():
                sums[:, env_id] = 0.0

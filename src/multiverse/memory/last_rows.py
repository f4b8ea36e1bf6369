"""The observations that were last delivered, kept by whoever may have to show them once more."""

from __future__ import annotations

from collections.abc import Iterable

from multiverse.contracts.layout import ALIVE, ENDED, FINAL_OBSERVATIONS, OBSERVATIONS, PRESENT, TERMINATED, TRUNCATED
from multiverse.contracts.views import Array, Views
from multiverse.memory.env_rows import EnvRows, observation_rows


class LastRows:
    """A copy of every observation leaf, and of who was there, for a contiguous range of envs."""

    def __init__(self, views: Views, env_ids: range) -> None:
        self._first = env_ids.start
        self._leaves = [(now, now.copy()) for now in observation_rows(views, OBSERVATIONS, env_ids)]  # and as delivered
        self._finals: list[EnvRows] = []
        if views.layout.with_final_observations:
            self._finals = observation_rows(views, FINAL_OBSERVATIONS, env_ids)
        self._arrays: list[tuple[Array, Array]] = [(now.rows, kept.rows) for now, kept in self._leaves if now.is_array]
        self._objects = [(now, kept) for now, kept in self._leaves if not now.is_array]
        self._presence: list[tuple[Array, Array, Array]] = []  # who is there now, as delivered; and who has ended
        for group in views.layout.groups:
            if group.may_be_absent:
                mine, shape = slice(env_ids.start, env_ids.stop), (2, -1, len(group.agents))
                alive = views[(group.name, PRESENT)].reshape(shape)[ALIVE, mine]
                self._presence.append((alive, alive.copy(), views[(group.name, ENDED)].reshape(shape)[:, mine]))

    def remember(self) -> None:
        """All rows are being delivered now."""
        for current, saved in self._arrays:
            saved[...] = current
        for now, kept in self._objects:
            kept.take_all(now)
        for alive, delivered, _ in self._presence:
            delivered[...] = alive

    def remember_some(self, env_ids: Iterable[int]) -> None:
        """Some rows are; the others may just be written."""
        for env_id in env_ids:
            env = env_id - self._first
            for current, saved in self._leaves:
                saved.take(current, env)
            for alive, delivered, _ in self._presence:
                delivered[env] = alive[env]

    def truncate_who_was_there(self, env_id: int) -> None:
        """A lost worker may have written who is there after the lost step: what the caller was told counts."""
        for _, delivered, ended in self._presence:
            ended[TERMINATED, env_id - self._first] = False
            ended[TRUNCATED, env_id - self._first] = delivered[env_id - self._first]

    def restore(self, env_id: int) -> None:
        """Put an env's rows back as they were last delivered."""
        for current, saved in self._leaves:
            current.take(saved, env_id - self._first)

    def restore_as_final(self, env_id: int) -> None:
        """Put an env's rows, as they were last delivered, where final observations are read."""
        for final, (_, saved) in zip(self._finals, self._leaves):
            final.take(saved, env_id - self._first)

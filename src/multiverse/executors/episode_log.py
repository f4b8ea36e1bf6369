"""What each env's episode began from: enough to say, when something fails, how to make it fail again."""

from __future__ import annotations

from typing import Any

from multiverse.core.errors import Circumstances
from multiverse.executors.launch.crash_report import OwnShare


class EpisodeLog:
    """For the envs of one range, by their position in it."""

    def __init__(self, count: int) -> None:
        self._episodes: list[int | None] = [None] * count
        self._seeds: list[tuple[int, int] | None] = [None] * count  # the last seed given, and to which episode
        self._tasks: list[Any] = [None] * count
        self.share: OwnShare | None = None

    def begin(self, i: int, episode: int, seed: int | None, task: Any) -> None:
        self._episodes[i], self._tasks[i] = episode, task
        if seed is not None:
            self._seeds[i] = seed, episode
        if self.share is not None:
            last_seed, seeded = self._seeds[i] or (None, None)
            self.share.begin(i, episode, last_seed, seeded)

    def seed_of(self, i: int) -> int | None:
        """Of the episode that is under way; None if it began without one."""
        seeded = self._seeds[i]
        return seeded[0] if seeded is not None and seeded[1] == self._episodes[i] else None

    def circumstances(self, i: int, step: int | None = None, action: Any = None) -> Circumstances:
        """Of a failure now: in the reset, or in step `step` (from 1) with its action."""
        episode, seeded = self._episodes[i], self._seeds[i]
        if episode is None:
            return Circumstances()
        seed, at = seeded if seeded is not None else (None, episode)
        return Circumstances(episode, seed, episode - at, self._tasks[i], step, action)

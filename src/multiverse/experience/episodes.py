"""What became of the episodes: those that ended, and what it takes to bring back those that are under way."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from multiverse.contracts.views import Array

RECENT = 100
MOST_ACTIONS = 200_000
"""Of one episode: what is longer is not brought back by playing it again."""


@dataclass(frozen=True, slots=True)
class Episode:
    """One that has ended."""

    env_id: int
    index: int  # how many this env had before it
    seed: int | None
    returned: float
    length: int
    lost: bool = False  # the env or its worker was lost in it


class RecentEpisodes:
    """Returns and lengths of the last hundred."""

    def __init__(self) -> None:
        self._returns: deque[float] = deque(maxlen=RECENT)
        self._lengths: deque[int] = deque(maxlen=RECENT)

    def add(self, episodes: Iterable[Episode]) -> None:
        for episode in episodes:
            if not episode.lost:
                self._returns.append(episode.returned)
                self._lengths.append(episode.length)

    def __len__(self) -> int:
        return len(self._returns)

    @property
    def mean_return(self) -> float:
        return float(np.mean(self._returns)) if self._returns else float("nan")

    @property
    def mean_length(self) -> float:
        return float(np.mean(self._lengths)) if self._lengths else float("nan")

    def state(self) -> dict[str, Any]:
        return {"returns": list(self._returns), "lengths": list(self._lengths)}

    def load(self, state: dict[str, Any]) -> None:
        self._returns.extend(state["returns"])
        self._lengths.extend(state["lengths"])


class ActionLog:
    """The actions of every env's current episode, as the env took them.

    `mark` remembers this moment without copying anything; `state` gives the log as it was then, also when the
    episodes have gone on or ended since.
    """

    def __init__(self, num_envs: int) -> None:
        self._actions: list[list[Any]] = [[] for _ in range(num_envs)]
        self._marked: list[tuple[list[Any], int]] = []
        self.mark()

    def load(self, env_id: int, actions: Array) -> None:
        """The env is in the middle of an episode and has taken these."""
        self._actions[env_id] = list(actions)

    def add(self, actions: Sequence[Any] | Array) -> None:
        """One step of every env; copied, for the caller's array may be filled again. A log that has grown too long to
        be of use grows no further."""
        for log, action in zip(self._actions, np.array(actions)):
            if len(log) <= MOST_ACTIONS:
                log.append(action)

    def begin(self, env_id: int) -> None:
        """A new episode. The old list may be marked, so it is left as it is."""
        self._actions[env_id] = []

    def mark(self) -> None:
        self._marked = [(log, len(log)) for log in self._actions]

    def state(self) -> list[Array | None]:
        """Per env, its actions up to the mark; None where there are too many to play them again."""
        return [np.array(log[:count]) if count <= MOST_ACTIONS else None for log, count in self._marked]

"""Episodes that have ended, and what the envs did in those that are under way."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import numpy as np

from multiverse.core.views import Array

RECENT = 100
MOST_ACTIONS = 200_000
"""Of one episode: what is longer is not brought back by playing it again."""
Taken = tuple[Array, ...]
"""Actions of one env, [steps, …] of each group of its agents."""


@dataclass(slots=True)
class Episode:
    """One that has ended. Not frozen: of hundreds a rollout, making them took three times as long."""

    env_id: int
    index: int  # how many this env had before it
    seed: int | None
    returned: float
    length: int
    lost: bool = False  # the env or its worker was lost in it
    by_agent: dict[str, float] | None = None  # the returns of several agents; `returned` is the learners' mean then
    opponent: int | None = None  # the past version that played the other side
    version: int | None = None  # of the policy that acted where it ended


@dataclass(slots=True)
class Collected:
    """Episodes, losses and times of one collected rollout."""

    episodes: list[Episode] = field(default_factory=list)
    lost_steps: int = 0
    act_s: float = 0.0
    step_s: float = 0.0

    @classmethod
    def since(cls, began_at: float, episodes: list[Episode], lost_steps: int, act_s: float, step_s: float) -> Collected:
        """Divide the time since then in proportion to the workers' times, which overlap."""
        share, took_s = act_s / (act_s + step_s) if act_s else 0.0, perf_counter() - began_at
        return cls(episodes, lost_steps, took_s * share, took_s * (1 - share))


class RecentEpisodes:
    """Returns and lengths of the last hundred."""

    def __init__(self) -> None:
        self._returns: deque[float] = deque(maxlen=RECENT)
        self._lengths: deque[int] = deque(maxlen=RECENT)
        self._by_agent: dict[str, deque[float]] = {}

    def add(self, episodes: Iterable[Episode]) -> None:
        for episode in episodes:
            if not episode.lost:
                self._returns.append(episode.returned)
                self._lengths.append(episode.length)
                for agent, returned in (episode.by_agent or {}).items():
                    self._by_agent.setdefault(agent, deque(maxlen=RECENT)).append(returned)

    def __len__(self) -> int:
        return len(self._returns)

    @property
    def mean_return(self) -> float:
        return sum(self._returns) / len(self._returns) if self._returns else math.nan

    @property
    def mean_length(self) -> float:
        return sum(self._lengths) / len(self._lengths) if self._lengths else math.nan

    @property
    def by_agent(self) -> dict[str, float]:
        """The mean return of each of several agents."""
        return {agent: float(np.mean(returns)) for agent, returns in self._by_agent.items()}

    def state(self) -> dict[str, Any]:
        agents = {"agents": {agent: list(returns) for agent, returns in self._by_agent.items()}}
        return {"returns": list(self._returns), "lengths": list(self._lengths), **(agents if self._by_agent else {})}

    def load(self, state: Mapping[str, Any]) -> None:
        self._returns.extend(map(float, state["returns"]))
        self._lengths.extend(map(int, state["lengths"]))
        for agent, returns in state.get("agents", {}).items():
            self._by_agent[agent] = deque(map(float, returns), maxlen=RECENT)


class ActionLog:
    """The actions of every env's current episode, as the env took them, rollout by rollout: one array for each group of
    its agents.

    `mark` remembers this moment without copying anything; `state` gives the log as it was then, also when the
    episodes have gone on or ended since.
    """

    def __init__(self, num_envs: int, groups: int = 1) -> None:
        self._parts: list[list[Taken]] = [[] for _ in range(num_envs)]
        self._lengths = [0] * num_envs
        self._marked: list[tuple[list[Taken], int]] = []
        self._groups = groups
        self.mark()

    def load(self, env_id: int, actions: Taken) -> None:
        """The env is in the middle of an episode and has taken these. None have no shape that others could follow."""
        self._parts[env_id], self._lengths[env_id] = [actions] if len(actions[0]) else [], len(actions[0])

    def add(self, actions: Sequence[Array], ended: Array) -> None:
        """[T, envs, …] a rollout of each group, and [T, envs] where episodes ended in it. Copied, for the rollout is
        filled again. A log that has grown too long to be of use grows no further."""
        for env_id in range(len(self._parts)):
            ends = np.flatnonzero(ended[:, env_id])
            if len(ends):
                self.begin(env_id)
            if self._lengths[env_id] <= MOST_ACTIONS:
                first = ends[-1] + 1 if len(ends) else 0
                self._parts[env_id].append(tuple([one[first:, env_id].copy() for one in actions]))
                self._lengths[env_id] += len(ended) - first

    def begin(self, env_id: int) -> None:
        """A new episode. The old list may be marked, so it is left as it is."""
        self._parts[env_id], self._lengths[env_id] = [], 0

    def mark(self) -> None:
        self._marked = [(parts, len(parts)) for parts in self._parts]

    def state(self) -> list[Taken | None]:
        """Per env, its actions up to the mark; None where there are too many to play them again."""
        marked = [parts[:count] for parts, count in self._marked]
        return [self._joined(parts) if _length(parts) <= MOST_ACTIONS else None for parts in marked]

    def _joined(self, parts: list[Taken]) -> Taken:
        return tuple(map(np.concatenate, zip(*parts))) if parts else (np.zeros(0),) * self._groups


def _length(parts: list[Taken]) -> int:
    return sum(len(part[0]) for part in parts)

"""Environments for the benchmarks, with a known amount of work per step."""

from __future__ import annotations

import time
from typing import Any

import gymnasium as gym
import numpy as np


def burn(microseconds: float, clock: str = "wall") -> None:
    """Compute for a time measured by the wall clock, or by the CPU time of this thread ("cpu")."""
    now = time.perf_counter_ns if clock == "wall" else time.thread_time_ns
    enough = now() + int(microseconds * 1e3)
    while now() < enough:
        pass


class Burn(gym.Env[np.ndarray, np.int64]):
    """Env that computes for `microseconds` per step, or so on average with `spread="exponential"`; never ends."""

    def __init__(self, microseconds: float, spread: str = "none", clock: str = "wall") -> None:
        self.observation_space = gym.spaces.Box(-1, 1, (4,), np.float32)
        self.action_space = gym.spaces.Discrete(2)
        self.microseconds, self.spread, self.clock = microseconds, spread, clock
        self._observation = np.zeros(4, np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        return self._observation, {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        exponential = self.spread == "exponential"
        burn(self.np_random.exponential(self.microseconds) if exponential else self.microseconds, self.clock)
        return self._observation, 0.0, False, False, {}


class Images(gym.Env[np.ndarray, np.int64]):
    """Env with observations of 84×84×4 bytes and no work, for the cost of moving observations."""

    def __init__(self) -> None:
        self.observation_space = gym.spaces.Box(0, 255, (84, 84, 4), np.uint8)
        self.action_space = gym.spaces.Discrete(2)
        self._observation = np.zeros((84, 84, 4), np.uint8)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        return self._observation, {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        return self._observation, 0.0, False, False, {}

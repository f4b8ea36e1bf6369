"""Envs and a policy for collectors. Workers import this file, so it loads neither pytest nor torch."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

import multiverse as mv
from multiverse.envs.meta.points import PointRobotSparse
from tests.envs import Walk
from tests.fault_envs import first_to_note


class Uneven(gym.Env[Any, Any]):
    """Episodes of 2 to 15 steps, depending on the seed. `dies`: ends its process once, in its third step of all."""

    def __init__(self, dies: str | None = None) -> None:
        self.observation_space, self.action_space = spaces.Box(-99, 99, (2,), np.float32), spaces.Discrete(2)
        self._dies, self._taken = dies, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.length, self.steps = int(self.np_random.integers(2, 16)), 0
        return self._seen(), {}

    def step(self, action: Any) -> Any:
        self.steps, self._taken = self.steps + 1, self._taken + 1
        if self._dies is not None and self._taken == 3 and first_to_note(self._dies):
            os.kill(os.getpid(), signal.SIGKILL)
        return self._seen(), float(action) + 0.5, self.steps == self.length, False, {}

    def _seen(self) -> Any:
        return np.array([self.length / 16, self.steps / 16], np.float32)


class Counted(Uneven):
    """Env that appends a byte to a file at each step."""

    def __init__(self, file: str, dies: str | None = None) -> None:
        super().__init__(dies)
        self._file = file

    def step(self, action: Any) -> Any:
        with open(self._file, "ab") as file:
            file.write(b".")
        return super().step(action)


class Once(Walk):
    """Env that performs a given deed on its process, once, in the given step of all."""

    def __init__(self, mark: str = "", at: int = 0, deed: str = "") -> None:
        super().__init__()
        self._mark, self._left, self._deed = mark, at, deed

    def step(self, action: Any) -> Any:
        self._left -= 1
        if self._left == 0 and first_to_note(self._mark):
            if self._deed == "dies":
                os.kill(os.getpid(), signal.SIGKILL)
            if self._deed == "hangs":
                time.sleep(3600)
            if self._deed == "raises":
                raise RuntimeError("it raised")
            while not Path(f"{self._mark}.go").exists():  # it waits
                time.sleep(0.001)
        return super().step(action)


class Versioned:
    """Policy whose actions follow from its version, so that actions identify it."""

    def __init__(self, version: int) -> None:
        self.version = version

    def noise(self, rng: Any, steps: int, rows: int) -> Any:
        return rng.random((steps, rows), np.float32)

    def first_memory(self, rows: int) -> Any:
        return {}

    def act(self, seen: Any, noise: Any, memory: Any) -> Any:
        return np.full(len(seen.starts), self.version % 3), {}

    def for_env(self, actions: Any) -> Any:
        return actions

    def portable(self) -> Any:
        return self


class Stumbles(PointRobotSparse):
    """Env that terminates at random: episodes of many lengths."""

    def __init__(self, horizon: int = 20, odds: float = 0.08) -> None:
        super().__init__(horizon)
        self._odds = odds

    def step(self, action: Any) -> Any:
        observation, _, _, truncated, info = super().step(action)
        fell = bool(self.np_random.random() < self._odds)
        return observation, float(self._place @ self._now), fell, truncated and not fell, info


def meta(k: int = 2, oracle: bool = False, **kwargs: Any) -> mv.MetaEpisode:
    return mv.MetaEpisode(Stumbles(**kwargs), k, oracle)


class Unlucky(gym.Env):  # type: ignore[type-arg]
    """Env whose third step of all raises once: its replacement finds the note."""

    def __init__(self, note: str | None = None) -> None:
        self.observation_space, self.action_space = spaces.Box(-9, 99, (2,), np.float32), spaces.Discrete(2)
        self.note, self.steps = note, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        if self.note is not None and self.steps == 3 and first_to_note(self.note):
            raise RuntimeError("unlucky")
        return np.full(2, self.steps, np.float32), 1.0, False, False, {}

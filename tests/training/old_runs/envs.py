"""Environments of the saved runs, which name them: they must not change."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class Pictures(gym.Env[Any, Any]):
    """Env that shows an image that gets brighter with every step."""

    observation_space: spaces.Space[Any] = spaces.Box(0, 255, (36, 36, 3), np.uint8)
    action_space: spaces.Space[Any] = spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.brightness = int(self.np_random.integers(100))
        return self.observation(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.brightness += 10
        return self.observation(), float(action == 1), self.brightness > 200, False, {}

    def observation(self) -> Any:
        return np.full((36, 36, 3), self.brightness, np.uint8)


class SmallPictures(Pictures):
    """The same with an image that is too small for convolutions."""

    observation_space = spaces.Box(0, 255, (5, 5, 1), np.uint8)

    def observation(self) -> Any:
        return np.full((5, 5, 1), self.brightness, np.uint8)


class Board(Pictures):
    """The same with a small board of floats."""

    observation_space = spaces.Box(0, 1, (2, 4, 4), np.float32)

    def observation(self) -> Any:
        return np.full((2, 4, 4), self.brightness / 255, np.float32)

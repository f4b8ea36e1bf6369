"""Envs for the examples. Workers import this file: nothing here loads pytest or torch."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np


class Counted(gym.wrappers.TimeLimit):  # type: ignore[type-arg]
    """A CartPole that adds a dot to a file whenever one is built."""

    def __init__(self) -> None:
        super().__init__(gym.make("CartPole-v1"), 20)
        with open("built", "ab") as file:
            file.write(b".")


class Broken(gym.Env[np.ndarray, np.int64]):
    """Env that can be built but raises in its reset."""

    observation_space = gym.spaces.Box(0, 1, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        raise ValueError("broken on purpose")

"""Team envs for trainings. Workers import this file, hence it imports neither pytest nor test files."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from tests.multi_agent.envs import Circle, Life, Pair, Village


class SeededVillage(Village):
    """Env whose episodes do not depend on the number of earlier ones."""

    def begin(self, seed: int | None) -> None:
        super().begin(seed)
        self.resets = int(self.rng.integers(2))


class Unseen(Village):
    """Env that accepts a render_mode but cannot render."""

    def __init__(self, render_mode: str | None = None, **arguments: Any) -> None:
        super().__init__(**arguments)


class Stately(Life):
    """Env whose state has what no agent observes: step and number of the episode, and the present agents."""

    state_space = spaces.Dict(
        clock=spaces.Box(0, np.inf, (2,), np.float64), there=spaces.MultiBinary(4), phase=spaces.Discrete(3)
    )

    def begin(self, seed: int | None) -> None:
        super().begin(seed)
        self.resets = int(self.rng.integers(2))

    def state(self) -> dict[str, Any]:
        there = np.array([agent in self.agents for agent in self.possible_agents], np.int8)
        return {"clock": np.array([self.steps, self.resets], float), "there": there, "phase": self.steps % 3}


class StatelyVillage(Stately, Village): ...


class StatelyCircle(Stately, Circle): ...


class StatelyPair(Pair):
    """Env that counts the calls of `state()`, and returns the given wrong state."""

    state_space: Any = spaces.Box(0, 100, (1,), np.float32)

    def __init__(self, wrong: Any = None, **options: Any) -> None:
        super().__init__(**options)
        self.wrong, self.asked = wrong, 0

    def state(self) -> Any:
        self.asked += 1
        if self.wrong is not None and self.steps == self.at:
            return self.wrong
        return np.array([self.steps], np.float32)

    def _raise(self, result: list[Any]) -> None:
        self.steps = 77  # of a step that does not count
        super()._raise(result)


class ImageState(StatelyPair):
    state_space = spaces.Box(0, 255, (64, 64, 3), np.uint8)

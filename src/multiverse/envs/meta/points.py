"""Points in the plane: cheap envs for experiments with adaptation."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from gymnasium import spaces

from multiverse.core.errors import InvalidRequest
from multiverse.core.layout import Array
from multiverse.envs.meta import TaskEnv

STEP = 0.1
"""Largest move along an axis in one step."""

Result = tuple[Array, float, bool, bool, dict[str, Any]]


class PointEnv(TaskEnv):
    """A point that moves by up to 0.1 along each axis and observes its position. No episode is terminated, not even at
    the goal (other implementations store goal states as terminal although the episode continues)."""

    def __init__(self, horizon: int) -> None:
        super().__init__(horizon)
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = spaces.Box(-STEP, STEP, (2,), np.float32)
        self._place = np.zeros(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self._place = self._start()
        self._begin_episode()
        return self._seen(), {}

    def _start(self) -> Array:
        return np.zeros(2)

    def _go(self, by: Array) -> None:
        self._place = self._place + by

    def _moved(self, action: Array) -> Array:
        return np.clip(np.asarray(action, np.float64).reshape(2), -STEP, STEP)

    def _distance(self, goal: Array) -> float:
        return float(np.hypot(*(self._place - goal)))

    def _seen(self) -> Array:
        return self._place.astype(np.float32)

    def save_state(self) -> dict[str, Any]:
        return {**super().save_state(), "place": self._place.copy()}

    def restore_state(self, state: dict[str, Any]) -> None:
        super().restore_state(state)
        self._place = state["place"]


class PointRobot(PointEnv):
    """Reach a goal in the square [-1, 1]²; the reward is minus the distance to it, so that a few steps locate it.
    Starts at the origin; an episode has 20 steps (ten reach the furthest goal)."""

    def __init__(self, horizon: int = 20) -> None:
        super().__init__(horizon)
        self.task_space = spaces.Box(-1.0, 1.0, (2,), np.float64)

    def step(self, action: Array) -> Result:
        goal = self._now
        self._go(self._moved(action))
        return self._seen(), -self._distance(goal), False, self._out_of_time(), {}


class PointRobotSparse(PointEnv):
    """Reach a goal on the upper half of the unit circle; the reward is 1 within 0.2 of it and 0 elsewhere, so the half
    circle must be searched once. An episode has 60 steps; `info["success"]`: within 0.2.

    `start`: "uniform" in [-1.5, 1.5] × [-0.5, 1.5], or "origin". The task is the goal.
    """

    RADIUS = 0.2

    def __init__(self, horizon: int = 60, start: Literal["uniform", "origin"] = "uniform") -> None:
        super().__init__(horizon)
        if start not in ("uniform", "origin"):
            raise InvalidRequest(f"start={start!r}: expected 'uniform' or 'origin'")
        self._anywhere = start == "uniform"
        self.task_space = spaces.Box(np.array([-1.0, 0.0]), np.array([1.0, 1.0]), dtype=np.float64)

    def _drawn(self, count: int) -> Array:
        angles = self.np_random.uniform(0.0, np.pi, count)
        return np.stack([np.cos(angles), np.sin(angles)], axis=1)

    def _start(self) -> Array:
        return self.np_random.uniform([-1.5, -0.5], [1.5, 1.5]) if self._anywhere else np.zeros(2)

    def step(self, action: Array) -> Result:
        goal = self._now
        self._go(self._moved(action))
        inside = self._distance(goal) <= self.RADIUS
        return self._seen(), float(inside), False, self._out_of_time(), {"success": inside}


class Wind(PointEnv):
    """Reach the goal (0, 1) in a hidden wind, which moves the point by up to 0.08 along each axis at every step. The
    reward is 1 within 0.03 of the goal, otherwise 0; `info["success"]`: within 0.03. Starts at the origin; 75 steps."""

    GOAL, RADIUS, STRONGEST = np.array([0.0, 1.0]), 0.03, 0.08

    def __init__(self, horizon: int = 75) -> None:
        super().__init__(horizon)
        self.task_space = spaces.Box(-self.STRONGEST, self.STRONGEST, (2,), np.float64)

    def step(self, action: Array) -> Result:
        wind = self._now
        self._go(self._moved(action) + wind)
        inside = self._distance(self.GOAL) <= self.RADIUS
        return self._seen(), float(inside), False, self._out_of_time(), {"success": inside}

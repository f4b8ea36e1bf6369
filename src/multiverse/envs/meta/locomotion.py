"""Gymnasium's HalfCheetah-v5 and Ant-v5 with other rewards: the task is a speed or a direction.

Needs MuJoCo: pip install 'multiverse[mujoco]'. Initial states are Gymnasium's: positions with uniform noise up to 0.1,
velocities with normal noise of 0.1.
"""

from __future__ import annotations

from typing import Any

import mujoco
import numpy as np
from gymnasium import spaces, utils
from gymnasium.envs.mujoco.ant_v5 import AntEnv
from gymnasium.envs.mujoco.half_cheetah_v5 import HalfCheetahEnv

from multiverse.core.errors import InvalidRequest
from multiverse.core.layout import Array
from multiverse.envs.meta import TaskEnv

HORIZON = 200
EVERYTHING = mujoco.mjtState.mjSTATE_INTEGRATION
"""Everything that the next step depends on, with the initial values of the solver."""

Result = tuple[Array, float, bool, bool, dict[str, Any]]


class Locomotion(TaskEnv):
    """Common part of both bodies: `TaskEnv` before one of Gymnasium's MuJoCo envs, which has the model and data."""

    model: Any
    data: Any
    dt: float

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        result = super().reset(seed=seed, options=options)
        self._begin_episode()
        return result

    def _get_reset_info(self) -> dict[str, Any]:
        return {}

    def _simulate(self, action: Array) -> None:
        self.do_simulation(action, self.frame_skip)  # type: ignore[attr-defined]
        if self.render_mode == "human":
            self.render()

    def save_state(self) -> dict[str, Any]:
        physics = np.zeros(mujoco.mj_stateSize(self.model, EVERYTHING))
        mujoco.mj_getState(self.model, self.data, physics, EVERYTHING)
        return {**super().save_state(), "physics": physics}

    def restore_state(self, state: dict[str, Any]) -> None:
        super().restore_state(state)
        mujoco.mj_setState(self.model, self.data, state["physics"], EVERYTHING)


def _only_directions(given: Array) -> Array:
    """Refuse tasks other than forwards and backwards."""
    if abs(given[0]) != 1.0:
        raise InvalidRequest(f"task {given.tolist()}: expected 1 (forwards) or -1 (backwards)")
    return given


class HalfCheetah(Locomotion, HalfCheetahEnv):
    """Observes 20 numbers: positions without the first, velocities, and the position of the torso (3). Never ends
    before the horizon. The velocity of a step is the change of the first position per time."""

    def __init__(self, horizon: int = HORIZON, **arguments: Any) -> None:
        super().__init__(horizon=horizon, **arguments)
        utils.EzPickle.__init__(self, horizon=horizon, **arguments)
        self.observation_space = spaces.Box(-np.inf, np.inf, (20,), np.float32)

    def _initialize_simulation(self) -> tuple[Any, Any]:
        """Set the total mass of Gymnasium's file in the way that MuJoCo recommends. The file's own way causes a warning
        for every env."""
        spec = mujoco.MjSpec.from_file(self.fullpath)
        total, spec.compiler.settotalmass = spec.compiler.settotalmass, -1.0
        model = spec.compile()
        data = mujoco.MjData(model)
        if total > 0:
            mujoco.mj_setTotalmass(model, total)
            mujoco.mj_setConst(model, data)
        screen = model.vis.global_
        screen.offwidth, screen.offheight = max(screen.offwidth, self.width), max(screen.offheight, self.height)
        return model, data

    def _get_obs(self) -> Array:
        data = self.data
        return np.concatenate([data.qpos[1:], data.qvel, data.body("torso").xpos], dtype=np.float32)

    def step(self, action: Array) -> Result:  # type: ignore[override]
        task = float(self._now[0])
        before = self.data.qpos[0]
        self._simulate(action)
        velocity = float(self.data.qpos[0] - before) / self.dt
        cost = 0.05 * float(np.square(action).sum())
        return self._get_obs(), self._earned(velocity, task) - cost, False, self._out_of_time(), {}

    def _earned(self, velocity: float, task: float) -> float:
        raise NotImplementedError


class HalfCheetahVel(HalfCheetah):
    """Run at a hidden speed between 0 and 3: reward -|v - v*| - 0.05‖a‖²."""

    def __init__(self, horizon: int = HORIZON, **arguments: Any) -> None:
        super().__init__(horizon, **arguments)
        self.task_space = spaces.Box(0.0, 3.0, (1,), np.float64)

    def _earned(self, velocity: float, task: float) -> float:
        return -abs(velocity - task)


class HalfCheetahDir(HalfCheetah):
    """Run forwards (1) or backwards (-1): reward d·v - 0.05‖a‖². There are only these two tasks: `sample_tasks(2)`
    returns both in random order."""

    def __init__(self, horizon: int = HORIZON, **arguments: Any) -> None:
        super().__init__(horizon, **arguments)
        self.task_space = spaces.Box(-1.0, 1.0, (1,), np.float64)

    def _drawn(self, count: int) -> Array:
        return _both_ways(self.np_random, count).reshape(count, 1)

    def _checked(self, task: Any) -> Array:
        return _only_directions(super()._checked(task))

    def _earned(self, velocity: float, task: float) -> float:
        return task * velocity


class AntDir(Locomotion, AntEnv):
    """Run in a hidden direction: reward v·d - 0.5‖a‖² - contact cost + 1, where the contact cost is
    0.0005 Σ clip(force, ±1)². Every step has the 1, even the last. Observes 27 numbers: positions without the first
    two, and velocities. Terminated outside a height of [0.2, 1], or when its state is not finite.

    The task is the angle of the direction, uniform in [-π, π); with `forward_backward` 0 or π, of which
    `sample_tasks(2)` returns both in random order.
    """

    def __init__(self, horizon: int = HORIZON, forward_backward: bool = False, **arguments: Any) -> None:
        super().__init__(horizon=horizon, include_cfrc_ext_in_observation=False, **arguments)
        utils.EzPickle.__init__(self, horizon=horizon, forward_backward=forward_backward, **arguments)
        self.observation_space = spaces.Box(-np.inf, np.inf, (27,), np.float32)
        self.task_space = spaces.Box(-np.pi, np.pi, (1,), np.float64)
        self._two, self._torso = bool(forward_backward), np.zeros(2)

    def _drawn(self, count: int) -> Array:
        if self._two:
            return np.where(_both_ways(self.np_random, count) > 0, 0.0, np.pi).reshape(count, 1)
        return super()._drawn(count)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        result = super().reset(seed=seed, options=options)
        self._torso = self._position()
        return result

    def _get_obs(self) -> Array:
        return np.concatenate([self.data.qpos[2:], self.data.qvel], dtype=np.float32)

    def _position(self) -> Array:
        return np.array(self.data.body("torso").xpos[:2])

    def step(self, action: Array) -> Result:  # type: ignore[override]
        angle = float(self._now[0])
        before = self._torso
        self._simulate(action)
        self._torso = self._position()
        velocity = (self._torso - before) / self.dt
        towards = float(velocity[0] * np.cos(angle) + velocity[1] * np.sin(angle))
        reward = towards - 0.5 * float(np.square(action).sum()) - float(self.contact_cost) + 1.0
        return self._get_obs(), reward, not self.is_healthy, self._out_of_time(), {}

    def save_state(self) -> dict[str, Any]:
        return {**super().save_state(), "torso": self._torso.copy()}

    def restore_state(self, state: dict[str, Any]) -> None:
        super().restore_state(state)
        self._torso = state["torso"]


def _both_ways(generator: np.random.Generator, count: int) -> Array:
    if count > 2:
        raise InvalidRequest(f"sample_tasks({count}): expected at most 2, since the tasks are forwards and backwards")
    return generator.permutation([1.0, -1.0])[:count]

"""Envs for meta-RL: one env with many tasks. The task of an episode affects its rewards (in `Wind` its dynamics), but
no observation shows it; an agent that infers it early has a higher return.

Every env is a `TaskEnv`: it has the hooks `sample_tasks(count)`, `reset_task(task)` and `get_task()`, and its state can
be saved.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from multiverse.core.errors import InvalidRequest
from multiverse.core.layout import Array
from multiverse.core.plan import whole_number


class TaskEnv(gymnasium.Env[Array, Array]):
    """An env with a task, a vector in `task_space`. A task set by `reset_task` applies from the next `reset` on; if
    none is set, every reset draws its own. All randomness comes from the env's own generator.

    An episode is truncated after `horizon` steps.
    """

    task_space: spaces.Box
    _given: Array | None = None
    _task: Array | None = None
    _steps = 0

    def __init__(self, horizon: int, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.horizon = whole_number("horizon", horizon)
        if self.horizon < 1:
            raise InvalidRequest(f"horizon={horizon}: expected at least 1 step")

    # -- tasks ---------------------------------------------------------------------------------------------------
    def sample_tasks(self, count: int) -> Array:
        """Return tasks [count, …], drawn from the env's generator, which `reset(seed=…)` seeds."""
        count = whole_number("count", count)
        if count < 1:
            raise InvalidRequest(f"sample_tasks({count}): expected at least 1")
        return self._drawn(count)

    def _drawn(self, count: int) -> Array:
        space = self.task_space
        return np.asarray(self.np_random.uniform(space.low, space.high, (count, *space.shape)))

    def reset_task(self, task: Any) -> None:
        """Set the task of episodes from the next `reset` on; None: each draws its own."""
        self._given = None if task is None else self._checked(task)

    def _checked(self, task: Any) -> Array:
        space = self.task_space
        try:
            given = np.array(task, np.float64).reshape(space.shape)
        except (TypeError, ValueError):
            given = np.full(space.shape, np.nan)
        if not ((given >= space.low - 1e-6) & (given <= space.high + 1e-6)).all():
            raise InvalidRequest(
                f"task {task!r}: {type(self).__name__} takes {space.shape[0]} numbers from {space.low.tolist()} to "
                f"{space.high.tolist()}, as returned by sample_tasks(count)"
            )
        return given

    def get_task(self) -> Array:
        """Return the task of the episode."""
        if self._task is None:
            raise InvalidRequest("get_task() before the first episode: call reset() first")
        return self._task.copy()

    # -- episodes ------------------------------------------------------------------------------------------------
    def _begin_episode(self) -> None:
        """End a reset. A task is drawn in any case, so that the state of the generator does not depend on
        `reset_task`."""
        drawn = self._drawn(1)[0]
        self._steps, self._task = 0, drawn if self._given is None else self._given

    @property
    def _now(self) -> Array:
        """The task of the current episode."""
        if self._task is None:
            raise InvalidRequest("step() before the first episode: call reset() first")
        return self._task

    def _out_of_time(self) -> bool:
        """Count a step, and return whether it was the last one of the episode."""
        self._steps += 1
        return self._steps >= self.horizon

    # -- saving --------------------------------------------------------------------------------------------------
    def save_state(self) -> dict[str, Any]:
        """Return the state for `restore_state`."""
        return {
            "generator": self.np_random.bit_generator.state,
            "task": None if self._task is None else self._task.copy(),
            "given": None if self._given is None else self._given.copy(),
            "steps": self._steps,
        }

    def restore_state(self, state: dict[str, Any]) -> None:
        """Restore a state of `save_state`."""
        self.np_random.bit_generator.state = state["generator"]
        self._task, self._given, self._steps = state["task"], state["given"], state["steps"]

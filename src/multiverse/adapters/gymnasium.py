"""A `gymnasium.Env` as an Env: one agent, one slot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import gymnasium
import numpy as np

from multiverse.adapters.tasks import reset_to_task
from multiverse.contracts.env import EnvDescription, SlotRow, Step
from multiverse.contracts.errors import BadValue
from multiverse.contracts.layout import SINGLE_AGENT, Group


class GymnasiumEnv:
    """Steps the foreign env and writes what it returns straight into its row."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        self._env = env
        self.description = EnvDescription(
            groups=(Group(SINGLE_AGENT, (SINGLE_AGENT,), env.observation_space, env.action_space),),
            metadata=dict(env.metadata),
            render_mode=env.render_mode,
            spec=env.spec,
        )

    def bind(self, rows: Sequence[SlotRow]) -> None:
        (self._row,) = rows
        self._row.alive[self._row.slot] = self._row.acting[self._row.slot] = True
        self._write = self._row.write_observation
        self.step = _stepper(self._env, self._row)

    def reset(self, seed: int | None, options: dict[str, Any] | None, task: Any) -> dict[str, Any]:
        if task is not None:
            observation, info = reset_to_task(self._env, seed, options, task)
        elif seed is None and options is None:
            observation, info = self._env.reset()
        else:
            observation, info = self._env.reset(seed=seed, options=options)
        self._write(observation)
        return cast("dict[str, Any]", info)

    def call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        found = self._env.get_wrapper_attr(name)
        return found(*args, **kwargs) if callable(found) else found

    def set_attr(self, name: str, value: Any) -> None:
        self._env.set_wrapper_attr(name, value)
        if name == "step":
            self.step = _stepper(self._env, self._row)

    def classes(self) -> list[type]:
        found, env = [type(self._env)], self._env
        while isinstance(env, gymnasium.Wrapper):
            env = env.env
            found.append(type(env))
        return found

    def render(self) -> Any:
        return self._env.render()

    def close(self) -> None:
        self._env.close()


def _stepper(env: gymnasium.Env[Any, Any], row: SlotRow) -> Step:
    """The env's step, bound to its row. A closure, not a method: this runs for every env at every step, and looking
    up six attributes of self would cost as much as the writing itself."""
    step, slot, write, target = env.step, row.slot, row.write_observation, row.plain_target
    shape, dtype = (target.shape, target.dtype) if target is not None else (None, None)
    array, rewards = np.ndarray, cast(Any, row.rewards)
    terminations, truncations = row.terminated, row.truncated

    def step_and_write(action: Any) -> tuple[bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = step(action)
        # An exact fit is nearly the rule; `write` takes the rest, and keeps numpy from broadcasting or casting.
        if type(observation) is array and observation.dtype is dtype and observation.shape == shape:
            target[...] = observation
        else:
            write(observation)
        try:
            rewards[slot] = reward
        except (TypeError, ValueError) as error:
            raise BadValue(f"the reward is {reward!r}, which is no number") from error
        if terminated or truncated:
            terminations[slot] = terminated
            truncations[slot] = truncated
            return True, info
        return False, info

    return step_and_write

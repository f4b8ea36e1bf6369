"""A `gymnasium.Env` as an Env: one agent, one slot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium

from multiverse.adapters.tasks import reset_to_task
from multiverse.contracts.env import EnvDescription, SlotRow
from multiverse.contracts.layout import SINGLE_AGENT, Group


class GymnasiumEnv:
    """Steps the foreign env and writes what it returns straight into its row."""

    __slots__ = ("_env", "_reset", "_rewards", "_slot", "_step", "_terminated", "_truncated", "_write", "description")

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        self._env = env
        self._step, self._reset = env.step, env.reset
        self.description = EnvDescription(
            groups=(Group(SINGLE_AGENT, (SINGLE_AGENT,), env.observation_space, env.action_space),),
            metadata=dict(env.metadata),
            render_mode=env.render_mode,
            spec=env.spec,
        )

    def bind(self, rows: Sequence[SlotRow]) -> None:
        (row,) = rows
        self._slot, self._write = row.slot, row.write_observation
        self._rewards, self._terminated, self._truncated = row.rewards, row.terminated, row.truncated
        row.alive[row.slot] = row.acting[row.slot] = True

    def step(self, action: Any) -> tuple[bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self._step(action)
        self._write(observation)
        slot = self._slot
        self._rewards[slot] = reward
        self._terminated[slot] = terminated
        self._truncated[slot] = truncated
        return terminated or truncated, info

    def reset(self, seed: int | None, options: dict[str, Any] | None, task: Any) -> dict[str, Any]:
        if task is not None:
            observation, info = reset_to_task(self._env, seed, options, task)
        elif seed is None and options is None:
            observation, info = self._reset()
        else:
            observation, info = self._reset(seed=seed, options=options)
        self._write(observation)
        return info

    def call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        found = self._env.get_wrapper_attr(name)
        return found(*args, **kwargs) if callable(found) else found

    def set_attr(self, name: str, value: Any) -> None:
        self._env.set_wrapper_attr(name, value)
        if name in ("step", "reset"):
            self._step, self._reset = self._env.step, self._env.reset

    def render(self) -> Any:
        return self._env.render()

    def close(self) -> None:
        self._env.close()

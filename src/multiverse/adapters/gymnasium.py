"""Adapter for a `gymnasium.Env`: one agent, one slot."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, cast

import gymnasium
import numpy as np
from gymnasium import spaces

from multiverse.adapters.action_masks import mask_reader, mask_source, mask_writer
from multiverse.core.env import EnvDescription, MaskSource, SlotRow, Step
from multiverse.core.errors import BadValue
from multiverse.core.layout import SINGLE_AGENT, Group


class GymnasiumEnv:
    """Steps an env and writes its results directly into its row of the batch."""

    def __init__(self, env: gymnasium.Env[Any, Any], masks: MaskSource | Literal["off"] | None = None) -> None:
        """`masks`: source of the action masks that are written to the batch. With any source, masks in observations are
        checked."""
        self._env, self._info, self._masks, count = env, {}, None, 0
        source = mask_source(env, {}) if masks not in (None, "off") else None
        if source == "observation" or (source == "method" and masks == "method"):
            self._masks = source
        elif masks == "info" and isinstance(env.action_space, spaces.Discrete | spaces.MultiDiscrete):
            self._masks = "info"
        if self._masks in ("method", "info"):
            count = spaces.flatdim(env.action_space)
        group = Group(SINGLE_AGENT, (SINGLE_AGENT,), env.observation_space, env.action_space, masks=count,
                      ignores_masks=masks == "off")  # fmt: skip
        self.description = EnvDescription(
            groups=(group,),
            metadata=dict(env.metadata),
            render_mode=env.render_mode,
            spec=env.spec,
        )

    def bind(self, rows: Sequence[SlotRow]) -> None:
        (self._row,) = rows
        self._row.alive[self._row.slot] = self._row.acting[self._row.slot] = True
        self._write = self._row.write_observation
        self._note_mask = self._mask_noter()
        self.step = self._bound_step()

    _info: Any
    """Info of the last reset."""
    _masks: MaskSource | None
    """Source of the masks that each step and reset reads; None for plain vector envs, and for envs without masks."""

    @property
    def mask_source(self) -> MaskSource | None:
        return mask_source(self._env, self._info)

    def _mask_noter(self) -> Callable[[Any, Any, bool], None] | None:
        """Return a function (observation, info, whether an action follows) that checks and stores the mask."""
        target, space = self._row.action_mask, self._env.action_space
        if self._masks is None:
            return None
        if target is None:  # an observed mask is in the batch already
            target = np.empty(spaces.flatdim(space), np.int8)
        read, write = mask_reader(self._env, self._masks), mask_writer(target, space)
        return lambda observation, info, acts: write(read(observation, info), acts)

    def _bound_step(self) -> Step:
        step, note = self._env.step, self._note_mask
        if note is None:
            return _stepper(step, self._row)
        calls_env = self._masks == "method"

        def step_and_note(action: Any) -> Any:
            outcome = step(action)
            observation, _, terminated, truncated, info = outcome
            if not (calls_env and terminated):  # the method may fail after the end
                note(observation, info, not (terminated or truncated))
            return outcome

        return _stepper(step_and_note, self._row)

    def reset(self, seed: int | None, options: dict[str, Any] | None, task: Any) -> dict[str, Any]:
        if task is not None:
            observation, info = self._reset_to_task(seed, options, task)
        elif seed is None and options is None:
            observation, info = self._env.reset()
        else:
            observation, info = self._env.reset(seed=seed, options=options)
        self._info = info
        if self._note_mask is not None:
            self._note_mask(observation, info, True)
        self._write(observation)
        return cast("dict[str, Any]", info)

    def _reset_to_task(self, seed: int | None, options: dict[str, Any] | None, task: Any) -> Any:
        """Reset to a task: by the env's `reset_task` method, or as `options["task"]` if it has none."""
        if self._env.has_wrapper_attr("reset_task"):
            self._env.get_wrapper_attr("reset_task")(task)
        else:
            options = {**(options or {}), "task": task}
        return self._env.reset(seed=seed, options=options)

    def call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        attribute = self._env.get_wrapper_attr(name)
        return attribute(*args, **kwargs) if callable(attribute) else attribute

    def set_attr(self, name: str, value: Any) -> None:
        self._env.set_wrapper_attr(name, value)
        if name == "step":
            self.step = self._bound_step()

    def classes(self) -> list[type]:
        classes, env = [type(self._env)], self._env
        while isinstance(env, gymnasium.Wrapper):
            env = env.env
            classes.append(type(env))
        return classes

    def render(self) -> Any:
        return self._env.render()

    def close(self) -> None:
        self._env.close()


def _stepper(step: Callable[[Any], Any], row: SlotRow) -> Step:
    """Return the env's step, bound to its row. A closure, not a method: it runs for every env at every step, and
    looking up six attributes of self would cost as much as the writing itself."""
    slot, write, target = row.slot, row.write_observation, row.plain_target
    shape, dtype = (target.shape, target.dtype) if target is not None else (None, None)
    array, rewards = np.ndarray, cast(Any, row.rewards)
    terminations, truncations = row.terminated, row.truncated

    def step_and_write(action: Any) -> tuple[bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = step(action)
        # Nearly all observations fit exactly; `write` handles others without numpy's broadcasting and casting.
        if type(observation) is array and observation.dtype is dtype and observation.shape == shape:
            target[...] = observation
        else:
            write(observation)
        try:
            rewards[slot] = reward
        except (TypeError, ValueError) as error:
            raise BadValue(f"the reward is {reward!r}, which is not a number") from error
        if terminated or truncated:
            terminations[slot] = terminated
            truncations[slot] = truncated
            return True, info
        return False, info

    return step_and_write

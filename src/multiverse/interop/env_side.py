"""The drop-ins' code in workers: actions exactly as the caller gave them, and calls that report every failed env.

The originals pass each env its part of a batch without a check. Most batches are arrays of the dtype and shape of the
action space and are sent through the block; all others (a float64 batch for a float32 `Box`, a list of arrays) are sent
to the envs before the step that uses them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any, TypeVar

import gymnasium

from multiverse.adapters.env_source import Recipe, adapt
from multiverse.adapters.gymnasium import GymnasiumEnv
from multiverse.core.env import Env, SlotRow
from multiverse.core.errors import RemoteError
from multiverse.executors.env_range import EnvRange

Value = TypeVar("Value")

USE_DIRECTLY = ("reset", "step", "close", "_setattr", "_check_spaces")
"""Names that Gymnasium's workers refuse to `call`."""


class AsGivenRecipe(Recipe):
    """Builds an env that takes its actions exactly as given."""

    __slots__ = ()

    def build(self) -> Env:
        env = self.build_foreign()
        return AsGivenEnv(env) if isinstance(env, gymnasium.Env) else adapt(env)


class TakesGiven:
    """An env that may be sent the action of its next step, which replaces the one in the block."""

    _given: list[Any]

    def give(self, action: Any) -> None:
        self._given[:] = [action]


class AsGivenEnv(TakesGiven, GymnasiumEnv):
    """A Gymnasium env that steps with the action that was sent to it, if there is one."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self._given = []

    def bind(self, rows: Sequence[SlotRow]) -> None:
        super().bind(rows)
        self._step_as_given()

    def _step_as_given(self) -> None:
        step, given = self.step, self._given

        def step_as_given(action: Any) -> tuple[bool, dict[str, Any]]:
            return step(given.pop() if given else action)

        self.step = step_as_given

    def reset(self, seed: int | None, options: dict[str, Any] | None, task: Any) -> dict[str, Any]:
        self._given.clear()  # a step that is a reset uses no action
        return super().reset(seed, options, task)

    def set_attr(self, name: str, value: Any) -> None:
        super().set_attr(name, value)
        if name == "step":
            self._step_as_given()


def own(value: Value) -> Value:
    """Return a copy; a value that cannot be copied is shared by the envs of this worker."""
    try:
        return deepcopy(value)
    except Exception:
        return value


# -- run by the worker loop's generic command ------------------------------------------------------------------
def give_actions(envs: EnvRange, actions: Sequence[Any]) -> None:
    """Hand each env of this range the action of its next step."""
    for env, action in zip(envs.envs, actions):
        if isinstance(env, TakesGiven):
            env.give(action)


def call_each(envs: EnvRange, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """Call a method of each env, or read an attribute; return an error in place of a result where an env raised."""
    return _outcomes(envs, lambda env, _: env.call(name, args, kwargs))


def call_each_but_some(envs: EnvRange, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """Do the same, and refuse names that the vector env has methods for."""
    if name in USE_DIRECTLY:
        refusal = ValueError(f"Trying to call function `{name}` with `call`, use `{name}` directly instead.")
        return [RemoteError.of(refusal, env_id) for env_id in envs.config.env_ids]
    return call_each(envs, name, args, kwargs)


def set_each(envs: EnvRange, name: str, values: Sequence[Any]) -> list[Any]:
    """Set an attribute of each env; return an error where an env raised."""
    outcomes = _outcomes(envs, lambda env, i: env.set_attr(name, values[i]))
    envs.set_attr((), name, ())  # for no env: this looks up their `step` again
    return outcomes


def _outcomes(envs: EnvRange, action: Callable[[Env, int], Any]) -> list[Any]:
    outcomes: list[Any] = []
    for i, (env_id, env) in enumerate(zip(envs.config.env_ids, envs.envs)):
        try:
            outcomes.append(action(env, i))
        except Exception as error:
            outcomes.append(RemoteError.of(error, env_id))
    return outcomes

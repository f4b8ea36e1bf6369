"""From what a user gives to `check_env` to the recipe of one env; unlike `make_vec` it takes an instance as well."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec

from multiverse.adapters.env_source import Recipe, Wrapper, recipes
from multiverse.contracts.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class Source:
    """What is checked: how it is built, what it is called, and, of an instance, how copies of it are made."""

    recipe: Recipe
    name: str
    copied_how: str = ""
    from_factory: bool = True


def source_of(env: Any, env_kwargs: Mapping[str, Any] | None, wrappers: Sequence[Wrapper] | None) -> Source:
    """The one env a user means."""
    if isinstance(env, gymnasium.Env):
        if env_kwargs:
            raise InvalidRequest("env_kwargs= is for what builds an env, and this env is built already")
        return _of_instance(env, wrappers)
    if isinstance(env, list | tuple):
        raise InvalidRequest("check_env checks one env: pass one of the list at a time")
    (recipe,) = recipes(env, 1, env_kwargs, wrappers)
    return Source(recipe, _name(env))


def _of_instance(env: gymnasium.Env[Any, Any], wrappers: Sequence[Wrapper] | None) -> Source:
    """By its spec where that says everything, else by copying it."""
    name = type(env.unwrapped).__qualname__
    spec = env.spec
    if spec is not None and all(wrapper.kwargs is not None for wrapper in spec.additional_wrappers):
        (recipe,) = recipes(spec, 1, None, wrappers)
        return Source(recipe, spec.id, f"built anew from its spec {spec.id!r}")
    try:
        copy.deepcopy(env)
    except Exception as error:
        raise InvalidRequest(
            f"this {name} cannot be copied ({type(error).__name__}: {error}), so pass what builds it instead: "
            f"check_env(lambda: {name}(...))"
        ) from error
    (recipe,) = recipes(CopiesOf(env), 1, None, wrappers)
    return Source(recipe, name, "copied with deepcopy, each time as it was given", from_factory=False)


class CopiesOf:
    """Builds an env by copying one."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        self._env = env

    def __call__(self) -> gymnasium.Env[Any, Any]:
        return copy.deepcopy(self._env)


def _name(env: Any) -> str:
    if isinstance(env, EnvSpec):
        return env.id
    return env if isinstance(env, str) else str(getattr(env, "__qualname__", type(env).__qualname__))

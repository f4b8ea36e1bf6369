"""From what a user writes as `env` to one picklable recipe per env.

A recipe is a callable without arguments that builds one foreign env. An id's `EnvSpec` goes into the recipe by
value, so ids that were registered in the user's own script work in every worker.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec

from multiverse.adapters.gymnasium import GymnasiumEnv
from multiverse.contracts.env import Env
from multiverse.contracts.errors import InvalidRequest

EnvSource = str | EnvSpec | Callable[..., Any] | Sequence[Callable[..., Any]]
Wrapper = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Recipe:
    """How to build one env."""

    source: EnvSpec | Callable[..., Any]
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    wrappers: tuple[Wrapper, ...] = ()

    def build(self) -> Env:
        return adapt(self.build_foreign())

    def build_foreign(self) -> Any:
        """The env itself, with its wrappers and nothing of ours."""
        if isinstance(self.source, EnvSpec):
            env: Any = gymnasium.make(self.source, **self.kwargs)
        else:
            env = self.source(**self.kwargs)
        for wrap in self.wrappers:
            env = wrap(env)
        return env


def adapt(env: Any) -> Env:
    """The adapter for a foreign env, by what it is."""
    if isinstance(env, gymnasium.Env):
        return GymnasiumEnv(env)
    if isinstance(env, gymnasium.vector.VectorEnv):
        raise InvalidRequest(
            f"{env!r} is a vector env already; give make_vec something that builds one single env, and num_envs"
        )
    raise InvalidRequest(
        f"the env factory returned {type(env).__module__}.{type(env).__qualname__}, which is not a gymnasium.Env"
    )


def recipes(
    source: EnvSource,
    num_envs: int | None,
    env_kwargs: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None,
    wrappers: Sequence[Wrapper] | Sequence[Sequence[Wrapper]] | None,
) -> list[Recipe]:
    """One recipe per env; refuses lists whose length is not the number of envs."""
    sources = _sources(source, num_envs)
    count = len(sources)
    kwargs = _per_env(env_kwargs if env_kwargs is not None else {}, count, "env_kwargs", Mapping)
    wraps = _per_env_wrappers(wrappers, count)
    return [Recipe(s, dict(k), tuple(w)) for s, k, w in zip(sources, kwargs, wraps)]


def _sources(source: EnvSource, num_envs: int | None) -> list[Any]:
    if isinstance(source, list | tuple):
        if not source:
            raise InvalidRequest("the list of env factories is empty")
        if num_envs is not None and num_envs != len(source):
            raise InvalidRequest(
                f"{len(source)} env factories for num_envs={num_envs}: leave num_envs out, or match it"
            )
        return [_one_source(item) for item in source]
    count = 1 if num_envs is None else num_envs
    if count < 1:
        raise InvalidRequest(f"num_envs={num_envs}: at least 1")
    return [_one_source(source)] * count


def _one_source(source: Any) -> EnvSpec | Callable[..., Any]:
    if isinstance(source, EnvSpec):
        return source
    if isinstance(source, str):
        return _from_string(source)
    if isinstance(source, gymnasium.Env):
        raise InvalidRequest(
            f"{source!r} is one env; each copy needs its own: pass a function that builds it, e.g. lambda: MyEnv()"
        )
    if callable(source):
        return source  # type: ignore[no-any-return]
    raise InvalidRequest(f"env={source!r}: expected a Gymnasium id, 'module:name', a callable, or a list of callables")


def _from_string(text: str) -> EnvSpec | Callable[..., Any]:
    module_name, colon, name = text.rpartition(":")
    module = _imported(module_name, text) if colon else None
    found: Any = getattr(module, name, None)
    if callable(found):
        return found  # type: ignore[no-any-return]
    try:
        return gymnasium.spec(text)
    except gymnasium.error.Error as error:
        neither = f"module {module_name!r} has no callable {name!r}, and Gymnasium says: " if colon else ""
        raise InvalidRequest(f"env={text!r}: {neither}{error}") from error


def _imported(module_name: str, text: str) -> Any:
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.append(os.getcwd())  # a console script does not look where the user stands
    try:
        return importlib.import_module(module_name)
    except Exception as error:  # whatever the user's module does when it is imported
        raise InvalidRequest(
            f"env={text!r}: importing {module_name!r} failed ({type(error).__name__}: {error})"
        ) from error


def _per_env(value: Any, count: int, name: str, single: type) -> list[Any]:
    if isinstance(value, single):
        return [value] * count
    if len(value) != count:
        raise InvalidRequest(f"{len(value)} {name} for {count} envs: pass one for all, or one per env")
    return list(value)


def _per_env_wrappers(wrappers: Any, count: int) -> list[Sequence[Wrapper]]:
    if not wrappers:
        return [()] * count
    if all(callable(w) for w in wrappers):
        return [tuple(wrappers)] * count
    if any(callable(w) for w in wrappers):
        raise InvalidRequest("wrappers mixes callables and lists: pass one list for all envs, or one list per env")
    if len(wrappers) != count:
        raise InvalidRequest(
            f"{len(wrappers)} lists of wrappers for {count} envs: pass one list for all, or one per env"
        )
    return [tuple(w) for w in wrappers]

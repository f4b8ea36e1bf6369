"""The Stable-Baselines3 drop-ins, where the envs run. Imports nothing of theirs: it would bring torch along."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium

from multiverse.contracts.env import Env
from multiverse.contracts.errors import InEnv
from multiverse.executors.env_range import EnvRange
from multiverse.interop.env_side import AsGivenEnv, AsGivenRecipe, own


class VecEnvRecipe(AsGivenRecipe):
    """Builds an env as Stable-Baselines3 does: one of the old `gym` is patched, right where it was built."""

    __slots__ = ()

    def build(self) -> Env:
        return VecEnvMember(patched(self.build_foreign()))


def patched(env: Any) -> gymnasium.Env[Any, Any]:
    """The env itself if it is Gymnasium's, else what Stable-Baselines3 makes of it, or its refusal."""
    if isinstance(env, gymnasium.Env):
        return env
    from stable_baselines3.common.vec_env.patch_gym import _patch_env

    return _patch_env(env)


class VecEnvMember(AsGivenEnv):
    """One env, asked as Stable-Baselines3 asks it. `raised` is the last exception of a step or reset, as it was."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self.raised: Exception | None = None

    def _step_as_given(self) -> None:
        step, given = self.step, self._given

        def step_as_given(action: Any) -> tuple[bool, dict[str, Any]]:
            try:
                return step(given.pop() if given else action)
            except Exception as error:
                self.raised = error
                raise

        self.step = step_as_given

    def reset(self, seed: int | None, options: dict[str, Any] | None, task: Any) -> dict[str, Any]:
        """Only what was asked for is passed on: envs without `options`, or even without `seed`, are fine without it."""
        self._given.clear()
        asked: dict[str, Any] = {} if seed is None else {"seed": seed}
        if options:
            asked["options"] = options
        try:
            observation, info = self._env.reset(**asked)
            self._write(observation)
        except Exception as error:
            self.raised = error
            raise
        return info

    def attribute(self, name: str) -> Any:
        return self._env.get_wrapper_attr(name)

    def has(self, name: str) -> bool:
        try:
            self._env.get_wrapper_attr(name)
        except AttributeError:
            return False
        return True

    def set_attr(self, name: str, value: Any) -> None:
        """On the outermost wrapper, as the originals do."""
        setattr(self._env, name, value)
        if name == "step":
            self.bind((self._row,))


# -- run by the worker loop's generic command ------------------------------------------------------------------
def attributes(envs: EnvRange, env_ids: Sequence[int], name: str) -> list[Any]:
    """An attribute of each env, also if it can be called."""
    return _of_each(envs, env_ids, lambda env: env.attribute(name))


def have_attribute(envs: EnvRange, env_ids: Sequence[int], name: str) -> list[Any]:
    return _of_each(envs, env_ids, lambda env: env.has(name))


def set_attributes(envs: EnvRange, env_ids: Sequence[int], name: str, value: Any, shared: bool) -> list[Any]:
    """The same value for each env; unless `shared`, one of its own, as if each had a pipe to itself."""
    shared = shared or len(env_ids) == 1
    nothing = _of_each(envs, env_ids, lambda env: env.set_attr(name, value if shared else own(value)))
    envs.set_attr((), name, ())  # of no env: looks their steps up anew
    return nothing


def methods(
    envs: EnvRange, env_ids: Sequence[int], name: str, args: tuple[Any, ...], kwargs: dict[str, Any], shared: bool
) -> list[Any]:
    """What a method of each env returns."""
    shared = shared or len(env_ids) == 1

    def call(env: VecEnvMember) -> Any:
        own_args, own_kwargs = (args, kwargs) if shared else own((args, kwargs))
        return env.attribute(name)(*own_args, **own_kwargs)

    return _of_each(envs, env_ids, call)


def are_wrapped(envs: EnvRange, env_ids: Sequence[int], wrapper_class: type) -> list[Any]:
    return _of_each(envs, env_ids, lambda env: any(issubclass(cls, wrapper_class) for cls in env.classes()[:-1]))


def exceptions(envs: EnvRange, env_ids: Sequence[int]) -> list[Any]:
    """What each env's last failed step or reset raised: for envs that run in the caller."""
    return _of_each(envs, env_ids, lambda env: env.raised)


def _of_each(envs: EnvRange, env_ids: Sequence[int], ask: Callable[[VecEnvMember], Any]) -> list[Any]:
    answers = []
    for env_id in env_ids:
        env = envs.envs[env_id - envs.config.env_ids.start]
        assert isinstance(env, VecEnvMember)
        try:
            answers.append(ask(env))
        except Exception as error:
            raise InEnv(env_id, error) from error
    return answers

"""The Stable-Baselines3 drop-ins' code in workers. Imports nothing of Stable-Baselines3, which would load torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium

from multiverse.core.env import Env
from multiverse.core.errors import InEnv
from multiverse.executors.env_range import EnvRange
from multiverse.interop.env_side import AsGivenEnv, AsGivenRecipe, own


class VecEnvRecipe(AsGivenRecipe):
    """Builds an env as Stable-Baselines3 does: envs of the old `gym` are patched."""

    __slots__ = ()

    def build(self) -> Env:
        return VecEnvMember(patched(self.build_foreign()))


def patched(env: Any) -> gymnasium.Env[Any, Any]:
    """Return a Gymnasium env unchanged, others as Stable-Baselines3 patches them."""
    if isinstance(env, gymnasium.Env):
        return env
    from stable_baselines3.common.vec_env.patch_gym import _patch_env

    return _patch_env(env)


class VecEnvMember(AsGivenEnv):
    """One env with the calls of Stable-Baselines3. `raised` is the last exception of a step or reset."""

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
        """Pass only arguments that are given: an env without `options` or even `seed` works if these are not used."""
        self._given.clear()
        arguments: dict[str, Any] = {} if seed is None else {"seed": seed}
        if options:
            arguments["options"] = options
        try:
            observation, info = self._env.reset(**arguments)
            self._write(observation)
        except Exception as error:
            self.raised = error
            raise
        return info

    def attribute(self, name: str) -> Any:
        """Return the attribute, even if it is callable."""
        return self._env.get_wrapper_attr(name)

    def method(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self.attribute(name)(*args, **kwargs)

    def is_wrapped(self, wrapper_class: type) -> bool:
        return any(issubclass(cls, wrapper_class) for cls in self.classes()[:-1])

    def has(self, name: str) -> bool:
        try:
            self._env.get_wrapper_attr(name)
        except AttributeError:
            return False
        return True

    def set_attr(self, name: str, value: Any) -> None:
        """Set it on the outermost wrapper, as the originals do."""
        setattr(self._env, name, value)
        if name == "step":
            self.bind((self._row,))


def of_each(
    envs: EnvRange, env_ids: Sequence[int], ask: Callable[..., Any], shared: bool, *arguments: Any
) -> list[Any]:
    """Return ask(env, *arguments) of each env. Unless they are `shared`, each env gets copies of the arguments, as if
    it had its own pipe. Run by the generic command of the worker loop."""
    shared = shared or len(env_ids) == 1
    answers = []
    for env_id in env_ids:
        env = envs.envs[env_id - envs.config.env_ids.start]
        try:
            answers.append(ask(env, *(arguments if shared else own(arguments))))
        except Exception as error:
            raise InEnv(env_id, error) from error
    if ask is VecEnvMember.set_attr:
        envs.set_attr((), arguments[0], ())  # for no env: this looks up their `step` again
    return answers

"""`SyncVectorEnv`: Gymnasium's own, by name, arguments and messages, over envs that our engine steps in the caller."""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable
from typing import Any, Generic, NoReturn

from gymnasium import Env, Space
from gymnasium.core import ActType, ObsType
from gymnasium.vector import AutoresetMode

from multiverse.core.errors import EnvFailed, MultiverseError, SpacesDiffer
from multiverse.core.plan import IN_CALLER
from multiverse.executors.worker_loop import alike
from multiverse.interop.env_side import call_each, set_each
from multiverse.interop.gymnasium.base import EnvFunction, GymnasiumDropIn, check_observation_mode, checked_autoreset
from multiverse.vector.single import Step


class SyncVectorEnv(GymnasiumDropIn, Generic[ObsType, ActType]):
    """`gymnasium.vector.SyncVectorEnv`: the envs run in the caller, one after the other, and are in `envs`.

    As with the original, an env that raised may be stepped on; unlike there, the other envs have taken their step.
    """

    def __init__(
        self,
        env_fns: Iterable[EnvFunction],
        copy: bool = True,
        observation_mode: str | tuple[Space[Any], Space[Any]] = "same",
        autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
    ) -> None:
        """Build the envs here.

        Args:
            env_fns: one function per env.
            copy: False returns observations as views, overwritten by the next step.
            observation_mode: `"same"`, `"different"` (equal shapes and dtypes), or (batched space, single space).
            autoreset_mode: Gymnasium's mode, or its value.
        """
        self.env_fns, self.copy, self.observation_mode = list(env_fns), copy, observation_mode
        self.autoreset_mode, autoreset = checked_autoreset(autoreset_mode)
        check_observation_mode(observation_mode)
        self.envs: list[Env[Any, Any]] = []
        building = [functools.partial(_built_into, self.envs, env_fn) for env_fn in self.env_fns]
        engine = self._started(building, IN_CALLER, autoreset)
        try:
            self._take_over(engine)
        except BaseException:
            engine.close()
            raise

    def _what_differs(self, error: SpacesDiffer) -> str:
        first = self.envs[0]
        if error.kind != "action_space":
            self.single_observation_space = first.observation_space
            same = operator.eq if self.observation_mode == "same" else alike
            others = (env.observation_space for env in self.envs)
            return self._observation_spaces_differ(next(s for s in others if not same(first.observation_space, s)))
        other = next(env.action_space for env in self.envs if env.action_space != first.action_space)
        return (
            "Sub-environment action space doesn't make the `single_action_space`, "
            f"action_space={other}, single_action_space={first.action_space}"
        )

    def _observation_spaces_differ(self, space: Space[Any] | None) -> str:
        if self.observation_mode == "same":
            return (
                "SyncVectorEnv(..., observation_mode='same') however the sub-environments observation spaces are not "
                f"equivalent. single_observation_space={self.single_observation_space}, sub-environment "
                f"observation_space={space}. If this is intentional, use `observation_mode='different'` instead."
            )
        return (
            "SyncVectorEnv(..., observation_mode='different' or custom space) however the sub-environments observation "
            f"spaces do not share a common shape and dtype, single_observation_space={self.single_observation_space}, "
            f"sub-environment observation space={space}"
        )

    # -- Gymnasium's calls -------------------------------------------------------------------------------------
    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode in every env, or in those of `options["reset_mask"]`."""
        try:
            return self.engine.reset(seed=self._seeds(seed), options=options)
        except MultiverseError as error:
            self._raise(error)

    def step(self, actions: Any) -> Step:
        """One step of every env."""
        try:
            return self.engine.step(actions)
        except MultiverseError as error:
            self._raise(error)

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method of each env (or read an attribute)."""
        try:
            self.engine.start_call(call_each, name, args, kwargs)
            return self.engine.finish_call(None)
        except MultiverseError as error:
            self._raise(error)

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute: a list or tuple gives each env its own value, anything else goes to all."""
        each = self._one_per_env(values)
        try:
            self.engine.start_call_with(set_each, name, each)
            self.engine.finish_call(None)
        except MultiverseError as error:
            self._raise(error)

    def close_extras(self, **kwargs: Any) -> None:
        """Close every env, also if some of them raise; then raise what the last of those raised."""
        try:
            self.engine.close()
        except MultiverseError as error:
            self.closed = True
            self._raise(error)

    def _raise(self, error: MultiverseError) -> NoReturn:
        if isinstance(error, EnvFailed):
            self.engine.go_on_after_failures()
        super()._raise(error)


def _built_into(envs: list[Env[Any, Any]], env_fn: EnvFunction) -> Env[Any, Any]:
    env = env_fn()
    envs.append(env)
    return env

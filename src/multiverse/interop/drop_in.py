"""What Gymnasium's two vector envs have in common, over our engine: spaces, attributes, errors."""

from __future__ import annotations

from typing import Any, NoReturn

import gymnasium
import numpy as np
from gymnasium import Space, logger
from gymnasium.error import ClosedEnvironmentError
from gymnasium.vector.utils import batch_differing_spaces

from multiverse.contracts.errors import ClosedError, EnvFailed, MultiverseError
from multiverse.executors.worker_loop import alike
from multiverse.interop.engine import Engine
from multiverse.interop.profile import given_back


class DropIn(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """A vector env of Gymnasium's, by name and manners. `engine` is the `multiverse.VectorEnv` that does the work."""

    engine: Engine
    """Ours underneath: `engine.plan` says how it runs, `engine.failures` what went wrong so far."""

    num_envs: int
    observation_mode: Any

    def _take_over(self, engine: Engine) -> None:
        """Show what the original shows of the envs that the engine runs."""
        self.engine, self.num_envs = engine, engine.num_envs
        self.metadata, self.render_mode = engine.metadata, engine.render_mode
        self.single_action_space, self.action_space = engine.single_action_space, engine.action_space
        if isinstance(self.observation_mode, tuple):
            self.observation_space, self.single_observation_space = self.observation_mode
            if not alike(self.single_observation_space, engine.single_observation_space):
                raise RuntimeError(self._observation_spaces_differ(engine.single_observation_space))
            return
        self.single_observation_space, self.observation_space = (
            engine.single_observation_space,
            engine.observation_space,
        )
        if self.observation_mode == "different":
            self.observation_space = batch_differing_spaces(list(engine.get_attr("observation_space")))

    def _observation_spaces_differ(self, space: Space[Any] | None) -> str:
        """What the original says when an env's observation space does not fit; the space, where it is known."""
        raise NotImplementedError

    # -- attributes --------------------------------------------------------------------------------------------
    @property  # type: ignore[misc]
    def np_random(self) -> tuple[np.random.Generator, ...]:  # type: ignore[override]
        """Each env's random generator."""
        return self.get_attr("np_random")

    @property
    def np_random_seed(self) -> tuple[int, ...]:  # type: ignore[override]
        """Each env's seed."""
        return self.get_attr("np_random_seed")

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method of each env (or read an attribute)."""
        raise NotImplementedError

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """An attribute of each env."""
        return self.call(name)

    def _one_per_env(self, values: Any) -> list[Any]:
        """A list or tuple gives each env its own value, anything else goes to all."""
        if not isinstance(values, list | tuple):
            return [values] * self.num_envs
        if len(values) != self.num_envs:
            raise ValueError(
                "Values must be a list or tuple with length equal to the number of environments. "
                f"Got `{len(values)}` values for {self.num_envs} environments."
            )
        return list(values)

    def _seeds(self, seed: Any) -> list[int | None]:
        """One seed per env: s + i, or those of a list."""
        if seed is None:
            return [None] * self.num_envs
        seeds = [seed + i for i in range(self.num_envs)] if isinstance(seed, int | np.integer) else list(seed)
        if len(seeds) != self.num_envs:
            raise ValueError(
                f"If seeds are passed as a list the length must match num_envs={self.num_envs} "
                f"but got length={len(seeds)}."
            )
        return seeds

    # -- errors ------------------------------------------------------------------------------------------------
    def _assert_is_running(self) -> None:
        if self.closed:
            raise ClosedEnvironmentError(f"Trying to operate on `{type(self).__name__}`, after a call to `close()`.")

    def _raise(self, error: MultiverseError) -> NoReturn:
        """Raise it as the original would, with our own error, which knows more, as its cause."""
        told = self._in_their_words(error)
        if told is error:
            raise error
        raise told from error

    def _in_their_words(self, error: MultiverseError) -> Exception:
        if isinstance(error, EnvFailed):
            return given_back(error)
        if isinstance(error, ClosedError):
            return ClosedEnvironmentError(f"Trying to operate on `{type(self).__name__}`, after a call to `close()`.")
        return error


def report(error: EnvFailed) -> None:
    """Warn of every env that raised, in the words of Gymnasium's `AsyncVectorEnv`."""
    for failure in error.failures:
        logger.error("Received the following error from Worker-%s - Shutting it down", failure.env_id)
        logger.error("%s", failure.traceback or failure)

"""What drop-ins for several originals do alike: a value and a seed for each env, errors in the originals' words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from gymnasium.error import ClosedEnvironmentError

from multiverse.contracts.errors import ClosedError, EnvFailed, MultiverseError
from multiverse.interop.engine import AsyncCalls
from multiverse.interop.profile import given_back
from multiverse.vector.base import NotCopied


class InTheirWords(NotCopied):
    """Says what has gone wrong as the original does."""

    def _raise(self, error: MultiverseError) -> NoReturn:
        """Raise it as the original would, with our own error, which knows more, as its cause."""
        raised = self._in_their_words(error)
        if raised is error:
            raise error
        raise raised from error

    def _in_their_words(self, error: MultiverseError) -> Exception:
        return given_back(error) if isinstance(error, EnvFailed) else error


class DropIn(InTheirWords):
    """A vector env by another's name and manners. `engine` is the vector env of ours that does the work."""

    num_envs: int
    closed: bool

    if TYPE_CHECKING:

        @property
        def engine(self) -> AsyncCalls:
            """Ours underneath: `engine.plan` says how it runs, `engine.failures` what went wrong so far."""

    # -- attributes --------------------------------------------------------------------------------------------
    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method of each env (or read an attribute)."""
        raise NotImplementedError

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """An attribute of each env."""
        return self.call(name)

    def render(self) -> tuple[Any, ...]:
        """A frame of each env."""
        return self.call("render")

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
        seeds = [int(seed) + i for i in range(self.num_envs)] if isinstance(seed, int | np.integer) else list(seed)
        if len(seeds) != self.num_envs:
            raise ValueError(
                f"If seeds are passed as a list the length must match num_envs={self.num_envs} "
                f"but got length={len(seeds)}."
            )
        return seeds

    # -- errors ------------------------------------------------------------------------------------------------
    def _assert_is_running(self) -> None:
        if self.closed:
            raise self._is_closed()

    def _is_closed(self) -> ClosedEnvironmentError:
        return ClosedEnvironmentError(f"Trying to operate on `{type(self).__name__}`, after a call to `close()`.")

    def _in_their_words(self, error: MultiverseError) -> Exception:
        return self._is_closed() if isinstance(error, ClosedError) else super()._in_their_words(error)

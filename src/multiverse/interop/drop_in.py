"""What drop-ins for several originals do alike: our vector env with the originals' manners, a value and a seed for each
env, errors in the originals' words.

It looks at no values, knows no deadlines but the caller's, parks while it waits (an original's user expects idle
workers to cost nothing), and hands an env's own exception back where its type is one that everybody knows.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from multiprocessing import get_all_start_methods, get_start_method
from typing import TYPE_CHECKING, Any, NoReturn, cast, get_args

import gymnasium.error
import numpy as np
from gymnasium.error import ClosedEnvironmentError

from multiverse.adapters.agents import NOTHING_SAID, AgentOptions
from multiverse.adapters.env_source import Recipe, recipes
from multiverse.core import errors
from multiverse.core.errors import ClosedError, EnvFailed, MultiverseError, RemoteError
from multiverse.core.failures import FailureOptions
from multiverse.core.plan import Autoreset, ExecutorName, StartMethod, Timeouts, WorkerOptions
from multiverse.executors import startup
from multiverse.executors.choose import decide
from multiverse.executors.env_range import RangeConfig
from multiverse.interop.engine import AsyncCalls
from multiverse.vector.base import NotCopied, Running

CLOSE_S = 60.0
"""How long `close` waits for envs that are in the middle of something, where an original would wait for ever."""
PARKED = WorkerOptions(waiting="park")


def recipes_of(
    env_fns: Sequence[Callable[[], Any]], recipe: type[Recipe], agents: AgentOptions = NOTHING_SAID
) -> list[Recipe]:
    """One recipe of that class per function; it says how the env is built where it runs."""
    return [recipe(r.source, r.kwargs, r.wrappers, agents) for r in recipes(list(env_fns), None, None, None)]


def start(
    each: list[Recipe],
    executor: ExecutorName,
    autoreset: Autoreset,
    *,
    workers: WorkerOptions = PARKED,
    copy: bool = True,
    bounds_may_differ: bool = False,
) -> Running:
    """Envs that run; a vector env over them is the caller's to make."""
    plan = decide(executor, each, workers)
    config = RangeConfig(
        env_ids=range(len(each)), autoreset=autoreset, with_infos=True, failures=FailureOptions(on_bad_value="off")
    )
    timeouts = Timeouts(reply_s=None, reset_s=None, close_s=CLOSE_S)
    opened = startup.open_envs(plan, each, config, timeouts=timeouts, bounds_may_differ=bounds_may_differ)
    return Running(
        executor=opened.bind(),
        description=opened.description,
        plan=plan,
        autoreset=autoreset,
        copy=copy,
        infos=True,
        failures=config.failures,
    )


def start_method_of(context: str | None) -> StartMethod:
    """The start method a `multiprocessing` context stands for; None: the program's own default, as the originals do."""
    method = get_start_method(allow_none=True) or get_all_start_methods()[0] if context is None else context
    if method not in get_args(StartMethod):
        raise ValueError(f"cannot find context for {context!r}")
    return cast(StartMethod, method)


# -- exceptions ------------------------------------------------------------------------------------------------
_KNOWN = {"builtins": builtins, "gymnasium.error": gymnasium.error, errors.__name__: errors}


def given_back(error: EnvFailed) -> Exception:
    """The last failure as its env raised it, if its type is a builtin, Gymnasium's or ours; else the error itself.

    Raise it `from error`, which lists all failures with their tracebacks.
    """
    return _as_raised(error.failures[-1]) or error


def _as_raised(failure: RemoteError) -> Exception | None:
    found = getattr(_KNOWN.get(failure.module), failure.type_name, None)
    if not (isinstance(found, type) and issubclass(found, Exception)):
        return None
    try:
        return found(failure.message)
    except Exception:  # one that takes more than a message
        return None


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

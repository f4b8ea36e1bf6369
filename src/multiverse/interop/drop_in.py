"""Common base of the drop-ins: a vector env of ours that behaves like that of another library, the original.

`DropIn` takes a value and a seed for each env and raises the errors of the original; `AsyncDropIn` adds requests in two
halves, of which one may be pending. A drop-in checks no values, has only the deadlines of the caller, parks while it
waits (users of an original expect idle workers to cost nothing), and raises the exception of an env itself if the
caller can be expected to know its type.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from multiprocessing import TimeoutError as MultiprocessingTimeoutError
from multiprocessing import get_all_start_methods, get_start_method
from typing import TYPE_CHECKING, Any, NoReturn, cast, get_args

import gymnasium.error
import numpy as np
from gymnasium import logger
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, NoAsyncCallError
from gymnasium.vector.async_vector_env import AsyncState

from multiverse.adapters.agents import DEFAULT_AGENTS, AgentOptions
from multiverse.adapters.env_source import Recipe, recipes
from multiverse.core import errors
from multiverse.core.errors import ClosedError, EnvFailed, MultiverseError, ReceiveTimeout, RemoteError, RequestPending
from multiverse.core.failures import FailureOptions
from multiverse.core.infos import Infos
from multiverse.core.plan import DEFAULT_TIMEOUTS, Autoreset, ExecutorName, StartMethod, Timeouts, WorkerOptions
from multiverse.executors import startup
from multiverse.executors.choose import decide
from multiverse.executors.env_range import RangeConfig
from multiverse.interop.engine import AsyncCalls
from multiverse.interop.env_side import call_each_but_some, set_each
from multiverse.vector.base import NotCopied, Running

CLOSE_S = 60.0
"""Time that `close` waits for busy envs; the originals wait forever."""
PARKED = WorkerOptions(waiting="park")


def recipes_of(
    env_fns: Sequence[Callable[[], Any]], recipe: type[Recipe], agents: AgentOptions = DEFAULT_AGENTS
) -> list[Recipe]:
    """Return one recipe of that class per function, which builds the env where it runs."""
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
    """Return running envs, for a vector env of the caller."""
    plan = decide(executor, each, workers)
    config = RangeConfig(
        env_ids=range(len(each)), autoreset=autoreset, with_infos=True, failures=FailureOptions(on_bad_value="off")
    )
    timeouts = Timeouts(reply_s=None, reset_s=None, close_s=CLOSE_S)
    opened = startup.start_hosts(plan, each, config, timeouts=timeouts, bounds_may_differ=bounds_may_differ)
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
    """Return the start method of a `multiprocessing` context; None: the default of the program, as in the originals."""
    method = get_start_method(allow_none=True) or get_all_start_methods()[0] if context is None else context
    if method not in get_args(StartMethod):
        raise ValueError(f"cannot find context for {context!r}")
    return cast(StartMethod, method)


# -- exceptions ------------------------------------------------------------------------------------------------
_KNOWN = {"builtins": builtins, "gymnasium.error": gymnasium.error, errors.__name__: errors}


def original_exception(error: EnvFailed) -> Exception:
    """Return the last failure as its env raised it, if its type is a builtin, Gymnasium's or ours; else this error.

    Raise it `from error`, which lists all failures with their tracebacks.
    """
    return _as_raised(error.failures[-1]) or error


def _as_raised(failure: RemoteError) -> Exception | None:
    exception = getattr(_KNOWN.get(failure.module), failure.type_name, None)
    if not (isinstance(exception, type) and issubclass(exception, Exception)):
        return None
    try:
        return exception(failure.message)
    except Exception:  # an exception that needs more than a message
        return None


class ErrorTranslator(NotCopied):
    """Raises the errors of the original."""

    def _raise(self, error: MultiverseError) -> NoReturn:
        """Raise what the original would raise, with our own, more detailed error as its cause."""
        raised = self._translated(error)
        if raised is error:
            raise error
        raise raised from error

    def _translated(self, error: MultiverseError) -> Exception:
        return original_exception(error) if isinstance(error, EnvFailed) else error


class DropIn(ErrorTranslator):
    """A vector env with the interface of another library. `engine` is our vector env that does the work."""

    num_envs: int
    closed: bool

    if TYPE_CHECKING:

        @property
        def engine(self) -> AsyncCalls:
            """Our vector env: `engine.plan` has the executor, `engine.failures` the counts of failures."""

    # -- attributes --------------------------------------------------------------------------------------------
    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method of each env (or read an attribute)."""
        raise NotImplementedError

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Return an attribute of each env."""
        return self.call(name)

    def render(self) -> tuple[Any, ...]:
        """Return a frame of each env."""
        return self.call("render")

    def _one_per_env(self, values: Any) -> list[Any]:
        """Return a value for each env: those of a list or tuple, or the same one for all."""
        if not isinstance(values, list | tuple):
            return [values] * self.num_envs
        if len(values) != self.num_envs:
            raise ValueError(
                "Values must be a list or tuple with length equal to the number of environments. "
                f"Got `{len(values)}` values for {self.num_envs} environments."
            )
        return list(values)

    def _seeds(self, seed: Any) -> list[int | None]:
        """Return a seed for each env: seed + i, or those of a list."""
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

    def _translated(self, error: MultiverseError) -> Exception:
        return self._is_closed() if isinstance(error, ClosedError) else super()._translated(error)


# -- requests in two halves ------------------------------------------------------------------------------------
class AsyncDropIn(DropIn):
    """One request at a time: started, then finished, within the deadline of the caller or not at all."""

    _states: Any = AsyncState  # the enum of the original
    _state: Any
    _timed_out = ""  # the call that timed out, until the next reset

    # -- reset -------------------------------------------------------------------------------------------------
    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, Infos]:
        """Begin an episode in every env; an int gives env i the seed plus i, a list gives each its own."""
        self.reset_async(seed=seed, options=options)
        return self.reset_wait()

    def reset_async(self, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None) -> None:
        """Start a reset; `reset_wait` has its results."""
        self._assert_is_running()
        seeds = self._seeds(seed)
        self._refuse_pending("reset_async", end="")
        self._ask(lambda: self.engine.start_reset(seeds, options), "reset")

    def reset_wait(self, timeout: float | None = None) -> tuple[Any, Infos]:
        """Return the results of `reset_async`; raise `multiprocessing.TimeoutError` after `timeout` seconds."""
        result = self._answer(lambda: self.engine.finish_reset(timeout), "reset", timeout)
        self._timed_out = ""
        return result  # type: ignore[no-any-return]

    # -- step --------------------------------------------------------------------------------------------------
    def step(self, actions: Any) -> Any:
        """Step every env."""
        if self.closed or self._state is not self._states.DEFAULT:
            self._assert_is_running()
            self._refuse_pending("step_async")
        try:
            return self.engine.step(actions)
        except MultiverseError as error:
            self._raise(error)
        except BaseException:
            if self.engine.step_under_way:  # Ctrl-C: the step can still be finished
                self._state = self._states.WAITING_STEP
            raise

    def step_async(self, actions: Any) -> None:
        """Start a step of every env; `step_wait` has its results."""
        self._assert_is_running()
        self._refuse_pending("step_async")
        self._ask(lambda: self.engine.send(actions), "step")

    def step_wait(self, timeout: float | None = None) -> Any:
        """Return the results of `step_async`; raise `multiprocessing.TimeoutError` after `timeout` seconds."""
        return self._answer(lambda: self.engine.receive(timeout_s=timeout), "step", timeout)

    # -- calls -------------------------------------------------------------------------------------------------
    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method of each env (or read an attribute)."""
        self.call_async(name, *args, **kwargs)
        return self.call_wait()

    def call_async(self, name: str, *args: Any, **kwargs: Any) -> None:
        """Start such a call; `call_wait` has its results."""
        self._assert_is_running()
        self._refuse_pending("call_async")
        self._ask(lambda: self.engine.start_call(call_each_but_some, name, args, kwargs), "call")

    def call_wait(self, timeout: float | None = None) -> tuple[Any, ...]:
        """Return the results of `call_async`; raise `multiprocessing.TimeoutError` after `timeout` seconds."""
        return self._answer(lambda: self.engine.finish_call(timeout), "call", timeout)  # type: ignore[no-any-return]

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute of each env: to its entry in a list or tuple, or to any other value for all."""
        self._assert_is_running()
        each = self._one_per_env(values)
        self._refuse_pending("set_attr")
        self._ask(lambda: self.engine.start_call_with(set_each, name, each), "call")
        self.call_wait()

    # -- the end -----------------------------------------------------------------------------------------------
    def _end(self, engine: AsyncCalls | None, timeout: float | None, terminate: bool) -> None:
        """End the workers, if there are any: after the pending request or after `timeout`; `terminate`: at once."""
        if self._state.value != self._states.DEFAULT.value:
            logger.warn(f"Calling `close` while waiting for a pending call to `{self._state.value}` to complete.")
        self._state = self._states.DEFAULT
        if engine is None:
            return
        patience_s = DEFAULT_TIMEOUTS.close_s if self._timed_out else CLOSE_S
        try:
            engine.close_when_done(0.0 if terminate else patience_s if timeout is None else timeout)
        except EnvFailed as error:  # raised by the `close` of an env; all workers have ended
            _report(error)

    # -- states and errors -------------------------------------------------------------------------------------
    def _refuse_pending(self, asked: str, end: str = ".") -> None:
        pending = str(self._state.value)
        if pending != self._states.DEFAULT.value:
            raise AlreadyPendingCallError(
                f"Calling `{asked}` while waiting for a pending call to `{pending}` to complete{end}", pending
            )

    def _ask(self, ask: Callable[[], None], name: str) -> None:
        try:
            ask()
        except MultiverseError as error:
            self._raise(error)
        self._state = self._states(name)

    def _answer(self, receive: Callable[[], Any], name: str, timeout: float | None) -> Any:
        """Return the results. Afterwards nothing is pending, except a step after Ctrl-C."""
        self._assert_is_running()
        if self._state.value != name:
            raise not_requested(name)
        step_stays = False
        try:
            return receive()
        except ReceiveTimeout:
            self._timed_out = name
            raise timed_out(name, timeout) from None
        except MultiverseError as error:
            self._raise(error)
        except BaseException:
            step_stays = self.engine.step_under_way
            raise
        finally:
            if not step_stays:
                self._state = self._states.DEFAULT

    def _raise(self, error: MultiverseError) -> NoReturn:
        if isinstance(error, EnvFailed):
            _report(error)
            logger.error("Raising the last exception back to the main process.")
        super()._raise(error)

    def _translated(self, error: MultiverseError) -> Exception:
        if isinstance(error, RequestPending) and self._timed_out:
            return AlreadyPendingCallError(
                f"The last call to `{self._timed_out}_wait` has timed out, and its result is lost: call `reset` or "
                "`close`.",
                self._timed_out,
            )
        if isinstance(error, RequestPending) and self.engine.failed_env_ids:
            return self._reset_first(self.engine.failed_env_ids)
        return super()._translated(error)

    def _reset_first(self, failed: list[int]) -> Exception:
        """Return the error of other requests after envs have raised."""
        return RequestPending(f"envs {failed} have raised: call `reset` or `close`")


def not_requested(name: str) -> NoAsyncCallError:
    return NoAsyncCallError(f"Calling `{name}_wait` without any prior call to `{name}_async`.", name)


def timed_out(name: str, timeout: float | None) -> MultiprocessingTimeoutError:
    return MultiprocessingTimeoutError(f"The call to `{name}_wait` has timed out after {timeout} second(s).")


def _report(error: EnvFailed) -> None:
    """Log every env that raised, with the messages of Gymnasium's `AsyncVectorEnv`."""
    for failure in error.failures:
        logger.error("Received the following error from Worker-%s - Shutting it down", failure.env_id)
        logger.error("%s", failure.traceback or failure)

"""Drop-ins whose requests come in two halves: what is under way, and what may therefore not be asked now."""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing import TimeoutError as MultiprocessingTimeoutError
from typing import Any, NoReturn

from gymnasium import logger
from gymnasium.error import AlreadyPendingCallError, NoAsyncCallError
from gymnasium.vector.async_vector_env import AsyncState

from multiverse.core.errors import EnvFailed, MultiverseError, ReceiveTimeout, RequestPending
from multiverse.core.infos import Infos
from multiverse.core.plan import DEFAULT_TIMEOUTS
from multiverse.interop.drop_in import CLOSE_S, DropIn
from multiverse.interop.engine import AsyncCalls
from multiverse.interop.env_side import call_each_but_some, set_each


class AsyncDropIn(DropIn):
    """One request at a time: asked for, then answered, within the caller's deadline or not at all."""

    _states: Any = AsyncState  # the original's own enum of them
    _state: Any
    _timed_out = ""  # the call whose answer came too late, until the next reset

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
        """The results of `reset_async`; `multiprocessing.TimeoutError` if they are not there in so many seconds."""
        result = self._answer(lambda: self.engine.finish_reset(timeout), "reset", timeout)
        self._timed_out = ""
        return result  # type: ignore[no-any-return]

    # -- step --------------------------------------------------------------------------------------------------
    def step(self, actions: Any) -> Any:
        """One step of every env."""
        if self.closed or self._state is not self._states.DEFAULT:
            self._assert_is_running()
            self._refuse_pending("step_async")
        try:
            return self.engine.step(actions)
        except MultiverseError as error:
            self._raise(error)
        except BaseException:
            if self.engine.step_under_way:  # Ctrl-C: what was asked for can still be waited for
                self._state = self._states.WAITING_STEP
            raise

    def step_async(self, actions: Any) -> None:
        """Start a step of every env; `step_wait` has its results."""
        self._assert_is_running()
        self._refuse_pending("step_async")
        self._ask(lambda: self.engine.send(actions), "step")

    def step_wait(self, timeout: float | None = None) -> Any:
        """The results of `step_async`; `multiprocessing.TimeoutError` if they are not there in so many seconds."""
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
        """The results of `call_async`; `multiprocessing.TimeoutError` if they are not there in so many seconds."""
        return self._answer(lambda: self.engine.finish_call(timeout), "call", timeout)  # type: ignore[no-any-return]

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute: a list or tuple gives each env its own value, anything else goes to all."""
        self._assert_is_running()
        each = self._one_per_env(values)
        self._refuse_pending("set_attr")
        self._ask(lambda: self.engine.start_call_with(set_each, name, each), "call")
        self.call_wait()

    # -- the end -----------------------------------------------------------------------------------------------
    def _end(self, engine: AsyncCalls | None, timeout: float | None, terminate: bool) -> None:
        """End the workers, if there are any: when what is under way is done or `timeout` has passed, or at once."""
        if self._state.value != self._states.DEFAULT.value:
            logger.warn(f"Calling `close` while waiting for a pending call to `{self._state.value}` to complete.")
        self._state = self._states.DEFAULT
        if engine is None:
            return
        patience_s = DEFAULT_TIMEOUTS.close_s if self._timed_out else CLOSE_S
        try:
            engine.close_when_done(0.0 if terminate else patience_s if timeout is None else timeout)
        except EnvFailed as error:  # an env's own `close`: everything has ended all the same
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
        """The results; whatever becomes of them, nothing is pending afterwards (but a step after Ctrl-C)."""
        self._assert_is_running()
        if self._state.value != name:
            raise never_asked(name)
        step_stays = False
        try:
            return receive()
        except ReceiveTimeout:
            self._timed_out = name
            raise late(name, timeout) from None
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

    def _in_their_words(self, error: MultiverseError) -> Exception:
        if isinstance(error, RequestPending) and self._timed_out:
            return AlreadyPendingCallError(
                f"The last call to `{self._timed_out}_wait` has timed out and its answer goes to nobody: only `reset` "
                "or `close` may follow.",
                self._timed_out,
            )
        if isinstance(error, RequestPending) and self.engine.failed_env_ids:
            return self._reset_first(self.engine.failed_env_ids)
        return super()._in_their_words(error)

    def _reset_first(self, failed: list[int]) -> Exception:
        """What whoever asks for something else is told, when envs have raised."""
        return RequestPending(f"envs {failed} have raised: only `reset` or `close` may follow")


def never_asked(name: str) -> NoAsyncCallError:
    return NoAsyncCallError(f"Calling `{name}_wait` without any prior call to `{name}_async`.", name)


def late(name: str, timeout: float | None) -> MultiprocessingTimeoutError:
    return MultiprocessingTimeoutError(f"The call to `{name}_wait` has timed out after {timeout} second(s).")


def _report(error: EnvFailed) -> None:
    """Warn of every env that raised, in the words of Gymnasium's `AsyncVectorEnv`."""
    for failure in error.failures:
        logger.error("Received the following error from Worker-%s - Shutting it down", failure.env_id)
        logger.error("%s", failure.traceback or failure)

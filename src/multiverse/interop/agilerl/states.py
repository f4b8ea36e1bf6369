"""What is under way in the AgileRL drop-in, what may therefore not be asked now, and in whose words that is said."""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing import TimeoutError as MultiprocessingTimeoutError
from typing import Any, NoReturn

from gymnasium import logger
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, NoAsyncCallError

from multiverse.contracts.errors import (
    ClosedError,
    EnvFailed,
    MultiverseError,
    NothingPending,
    ReceiveTimeout,
    RequestPending,
)
from multiverse.interop.agilerl.engine import AgentsEngine
from multiverse.interop.agilerl.peer import AsyncState
from multiverse.interop.drop_in import report
from multiverse.interop.profile import given_back


class ShutDown(RequestPending, AssertionError):
    """Envs have raised; the original has ended their workers, and asserts that nobody talks to them."""


class States:
    """One request at a time: asked for, then answered, within the caller's deadline or not at all."""

    closed: bool
    _state: Any
    _timed_out: str  # the call whose answer came too late, until the next reset
    _unbuilt: EnvFailed | None  # why there are no envs
    _engine: AgentsEngine | None

    @property
    def engine(self) -> AgentsEngine:
        """Ours underneath: `engine.plan` says how it runs, `engine.failures` what went wrong so far."""
        if self._engine is None:
            assert self._unbuilt is not None
            self._raise(self._unbuilt)
        return self._engine

    def _assert_is_running(self) -> None:
        if self.closed:
            raise self._closed()

    def _closed(self) -> ClosedEnvironmentError:
        return ClosedEnvironmentError(f"Trying to operate on `{type(self).__name__}`, after a call to `close()`.")

    def _refuse_pending(self, asked: str, end: str = ".") -> None:
        pending = str(self._state.value)
        if pending != AsyncState.DEFAULT.value:
            raise AlreadyPendingCallError(
                f"Calling `{asked}` while waiting for a pending call to `{pending}` to complete{end}", pending
            )

    def _expect(self, name: str) -> None:
        self._assert_is_running()
        if self._state.value != name:
            raise NoAsyncCallError(f"Calling `{name}_wait` without any prior call to `{name}_async`.", name)

    def _ask(self, ask: Callable[[AgentsEngine], None], state: Any) -> None:
        try:
            ask(self.engine)
        except MultiverseError as error:
            self._raise(error)
        self._state = state

    def _answer(self, receive: Callable[[AgentsEngine], Any], name: str, timeout: float | None) -> Any:
        """The results; whatever becomes of them, nothing is pending afterwards (but a step after Ctrl-C)."""
        step_stays = False
        try:
            return receive(self.engine)
        except ReceiveTimeout:
            self._timed_out = name
            raise self._late(name, timeout) from None
        except NothingPending:  # somebody else has set the state: what was never asked for does not come
            if timeout is not None:
                raise self._late(name, timeout) from None
            raise NoAsyncCallError(f"Calling `{name}_wait` without any prior call to `{name}_async`.", name) from None
        except MultiverseError as error:
            self._raise(error)
        except BaseException:
            step_stays = self.engine.step_under_way
            raise
        finally:
            if not step_stays:
                self._state = AsyncState.DEFAULT

    def _late(self, name: str, timeout: float | None) -> MultiprocessingTimeoutError:
        return MultiprocessingTimeoutError(f"The call to `{name}_wait` has timed out after {timeout} second(s).")

    # -- errors ------------------------------------------------------------------------------------------------
    def _raise(self, error: MultiverseError) -> NoReturn:
        """Raise it as the original would, with our own error, which knows more, as its cause."""
        if isinstance(error, EnvFailed):
            report(error)
            logger.error("Raising the last exception back to the main process.")
        told = self._in_their_words(error)
        if told is error:
            raise error
        raise told from error

    def _in_their_words(self, error: MultiverseError) -> Exception:
        if isinstance(error, EnvFailed):
            return given_back(error)
        if isinstance(error, ClosedError):
            return self._closed()
        if isinstance(error, RequestPending) and self._timed_out:
            return AlreadyPendingCallError(
                f"The last call to `{self._timed_out}_wait` has timed out and its answer goes to nobody: only `reset` "
                "or `close` may follow.",
                self._timed_out,
            )
        if isinstance(error, RequestPending) and self.engine.failed_env_ids:
            return ShutDown(
                "Cannot communicate with workers that were shut down after an error. (Here they are as they were: "
                f"envs {self.engine.failed_env_ids} have raised, and `reset` begins anew.)"
            )
        return error

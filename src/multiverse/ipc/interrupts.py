"""Deferred signals: Ctrl-C for a moment, so that it cannot split operations; and stop requests until a run is saved."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import contextlib
import logging
import math
import os
import signal
import threading
import time
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import Any, NoReturn, Self

log = logging.getLogger("multiverse")

EXIT_CODES = {signal.SIGTERM: 143}
"""Signals that ask a program to end, with the exit code for each."""
SAVE: signal.Signals | None = getattr(signal, "SIGUSR1", None)
"""The warning that SLURM sends before a job's time is up."""
if SAVE is not None:  # guard: sigusr1-is-a-request
    EXIT_CODES[SAVE] = 128 + SAVE

NOTED = "%s: saving and ending; Ctrl-C or SIGTERM now ends at once"

PATIENCE_S = 1.0
"""Time that a worker may still take to answer after a stop was requested."""
JUST_NOW_S = 30.0
NAP_S = 0.2
"""Interval at which a sleeping caller checks for stop requests: a deferred signal does not wake it."""

# `_signal` has the functions behind `signal`, which do not convert every number to an enum and are ten times as fast.


class HeldInterrupts:
    """`with HeldInterrupts():` defers Ctrl-C to the end of the block; a second one takes effect at once.

    Python runs signal handlers in the main thread only, so in other threads there is nothing to defer; likewise if
    SIGINT is ignored, as in our workers.
    """

    __slots__ = ("_handler", "_held")

    def __enter__(self) -> None:
        self._held, self._handler = False, None
        if threading.current_thread() is threading.main_thread():
            handler: Any = _signal.getsignal(_signal.SIGINT)
            if callable(handler):
                self._handler = handler
                _signal.signal(_signal.SIGINT, self._hold)

    def _hold(self, number: int, frame: FrameType | None) -> None:
        if self._held and self._handler is not None:  # guard: a-second-ctrl-c-kills
            self._handler(number, frame)
        self._held = True

    def __exit__(self, *exception: object) -> None:
        if self._handler is not None:
            _signal.signal(_signal.SIGINT, self._handler)
            if self._held:
                self._handler(_signal.SIGINT, None)


def end_on_request(number: int, frame: FrameType | None) -> NoReturn:
    """Handler of SIGTERM and SIGUSR1: raises SystemExit, so that everything is closed."""
    raise SystemExit(EXIT_CODES[signal.Signals(number)])


def would_end_program(number: signal.Signals) -> bool:
    """Whether a signal would end the program: it has no handler, neither of the program nor of faulthandler, which
    `signal` does not report."""
    handler = signal.getsignal(number)
    if handler is not signal.SIG_DFL:
        return handler is end_on_request
    try:
        with open("/proc/self/status") as status:
            caught = next(int(line.split()[1], 16) for line in status if line.startswith("SigCgt"))
    except (OSError, StopIteration):  # no /proc
        return True
    return not caught >> (number - 1) & 1


@contextlib.contextmanager
def ended_on_request() -> Iterator[None]:
    """In the main thread, have SIGTERM and SIGUSR1 raise SystemExit if they would kill the program."""
    main = threading.current_thread() is threading.main_thread()
    handled = [number for number in EXIT_CODES if main and would_end_program(number)]
    before = {number: signal.signal(number, end_on_request) for number in handled}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class StopWaiting(KeyboardInterrupt):
    """A stop was requested, and a worker does not answer."""


class StopRequests:
    """Context in which signals are recorded as requests to stop, for a run that saves itself first.

    In the main thread Ctrl-C, SIGTERM and SIGUSR1 are recorded: the first requests to save and end, a second one ends
    the program at once, unless it is SIGUSR1. In another thread, `ask` makes the request. From then on the thread that
    has entered the context waits at most `PATIENCE_S` for a worker.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._before: dict[signal.Signals, Any] = {}
        self.asked_at = math.inf  # by `time.monotonic`

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, *EXIT_CODES):
                if number in (signal.SIGINT, signal.SIGTERM) or would_end_program(number):
                    self._before[number] = signal.signal(number, self._note)
        _this_thread.stop_requests = self
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if _this_thread.stop_requests is self:
            _this_thread.stop_requests = None
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None:
            if number == SAVE:  # a run of several seeds may get it twice: from the scheduler, and from its parent
                return
            self.raise_stop()
        self.received, self.asked_at = signal.Signals(number), time.monotonic()
        # guard: signals-wait-for-a-save
        try:
            log.warning(NOTED, self.received.name)
        except RuntimeError:  # this thread is printing a line, and the stream cannot be used recursively
            with contextlib.suppress(OSError):
                os.write(2, f"\n{NOTED % self.received.name}\n".encode())

    def ask(self) -> None:
        """Request a stop, from any thread."""
        self.asked_at = min(self.asked_at, time.monotonic())

    def asked(self) -> bool:
        """Whether a stop was requested."""
        return self.asked_at < math.inf

    def raise_stop(self) -> None:
        """Raise the exception that the signal would have raised if it had not been deferred."""
        if self.received in EXIT_CODES:
            raise SystemExit(EXIT_CODES[self.received])
        raise KeyboardInterrupt


class _ThisThread(threading.local):
    stop_requests: StopRequests | None = None  # the context that this thread has entered


_this_thread = _ThisThread()
_hung_since = -math.inf  # time (`time.monotonic`) of the stop request after which a worker did not answer


def longest_nap_s() -> float:
    """Longest time to sleep between two calls of `stop_waiting`."""
    return math.inf if _this_thread.stop_requests is None else NAP_S


def stop_waiting() -> None:
    """Raise `StopWaiting` if a stop was requested and `PATIENCE_S` has passed. Called while waiting for a worker."""
    global _hung_since
    requests = _this_thread.stop_requests
    if requests is not None and time.monotonic() > requests.asked_at + PATIENCE_S:
        _hung_since = requests.asked_at
        raise StopWaiting  # guard: a-stop-does-not-wait-for-a-hang


def close_by(close_s: float) -> float:
    """The deadline (`time.monotonic`) for closing within `close_s`. After a recent stop request to which a worker did
    not answer it counts from the request, but leaves the other workers a moment to close their envs."""
    now = time.monotonic()
    if now > _hung_since + JUST_NOW_S:
        return now + close_s
    return min(now + close_s, max(now + PATIENCE_S, _hung_since + close_s))  # guard: closing-counts-from-the-signal

"""Signals held back: Ctrl-C for a moment, so that what must not be cut in two is not; and until a run is saved."""

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
"""How long, after a stop was asked for, somebody may still be waited for."""
JUST_NOW_S = 30.0
NAP_S = 0.2
"""How often a sleeper looks whether one was; a signal that is only noted wakes nobody."""

# `_signal` holds the functions behind `signal`; these do not turn every number into an enum, and take a tenth of the
# time.


class HeldInterrupts:
    """`with HeldInterrupts():` lets Ctrl-C take effect at the end of the block; a second one comes through at once.

    Python runs signal handlers in the main thread only, so elsewhere there is nothing to hold back; likewise where
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
    """A handler of SIGTERM and SIGUSR1: everything is closed on the way out."""
    raise SystemExit(EXIT_CODES[signal.Signals(number)])


def is_ours(number: signal.Signals) -> bool:
    """Whether a signal would end the program: the program has no handler for it, nor has faulthandler, of which
    `signal` does not know."""
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
    """In the main thread: SIGTERM and SIGUSR1 raise SystemExit where they would kill the program."""
    main = threading.current_thread() is threading.main_thread()
    before = {number: signal.signal(number, end_on_request) for number in EXIT_CODES if main and is_ours(number)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class StopWaiting(KeyboardInterrupt):
    """A stop was asked for, and whoever is waited for does not answer."""


class StopRequests:
    """While it is entered, in the main thread, Ctrl-C, SIGTERM and SIGUSR1 are noted: the first asks to save and end,
    the second ends at once, unless it is SIGUSR1. Entered in another thread, it is `ask` that asks. After that, a
    wait for a worker in the thread that has entered it takes `PATIENCE_S` and no longer."""

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._before: dict[signal.Signals, Any] = {}
        self.asked_at = math.inf  # of `time.monotonic`

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, *EXIT_CODES):
                if number in (signal.SIGINT, signal.SIGTERM) or is_ours(number):
                    self._before[number] = signal.signal(number, self._note)
        _here.noting = self
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _here.noting = None if _here.noting is self else _here.noting
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None:
            if number == SAVE:  # a run of a set may get it twice: from the scheduler, and from the set's program
                return
            self.raise_it()
        self.received, self.asked_at = signal.Signals(number), time.monotonic()
        # guard: signals-wait-for-a-save
        try:
            log.warning(NOTED, self.received.name)
        except RuntimeError:  # it came in the middle of a line that this thread prints: the stream takes no other now
            with contextlib.suppress(OSError):
                os.write(2, f"\n{NOTED % self.received.name}\n".encode())

    def ask(self) -> None:
        """From any thread: whoever has entered this is to end."""
        self.asked_at = min(self.asked_at, time.monotonic())

    def asked(self) -> bool:
        return self.asked_at < math.inf

    def raise_it(self) -> None:
        """What the signal would have done, had nobody asked it to wait."""
        if self.received in EXIT_CODES:
            raise SystemExit(EXIT_CODES[self.received])
        raise KeyboardInterrupt


class _Here(threading.local):
    noting: StopRequests | None = None  # whose stops are noted now, in this thread


_here = _Here()
_hung_since = -math.inf  # the stop, of `time.monotonic`, for which somebody was not waited for any longer


def longest_nap_s() -> float:
    """How long one who waits may sleep without calling `stop_waiting`."""
    return math.inf if _here.noting is None else NAP_S


def stop_waiting() -> None:
    """To be called by whoever waits for a worker: raises `StopWaiting` if a stop was asked for and time is up."""
    global _hung_since
    noting = _here.noting
    if noting is not None and time.monotonic() > noting.asked_at + PATIENCE_S:
        _hung_since = noting.asked_at
        raise StopWaiting  # guard: a-stop-does-not-wait-for-a-hang


def close_by(close_s: float) -> float:
    """The deadline (of `time.monotonic`) for closing, which may take so long. Counted from the stop for which somebody
    hangs, if that has just been; but for a moment in which the others can close their envs."""
    now = time.monotonic()
    if now > _hung_since + JUST_NOW_S:
        return now + close_s
    return min(now + close_s, max(now + PATIENCE_S, _hung_since + close_s))  # guard: closing-counts-from-the-signal

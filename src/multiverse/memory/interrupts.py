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
from types import FrameType, TracebackType
from typing import Any, Self

log = logging.getLogger("multiverse")

EXIT_CODES = {signal.SIGTERM: 143}

NOTED = "%s: saving and ending; once more ends it at once"

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


class StopWaiting(KeyboardInterrupt):
    """A stop was asked for, and whoever is waited for does not answer."""


class StopRequests:
    """While it is entered, in the main thread, Ctrl-C and SIGTERM are noted: the first asks to save and end, the second
    ends at once. Entered in another thread, it is `ask` that asks. Whoever waits for a worker after that, in the thread
    that has entered it, does so for `PATIENCE_S` and no longer."""

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._before: dict[signal.Signals, Any] = {}
        self.asked_at = math.inf  # of `time.monotonic`

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
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

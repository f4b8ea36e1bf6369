"""Signals held back: Ctrl-C for a moment, so that what must not be cut in two is not; and until a run is saved."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import logging
import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self

log = logging.getLogger("multiverse")

EXIT_CODES = {signal.SIGTERM: 143}

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


class StopRequests:
    """While it is entered, in the main thread, Ctrl-C and SIGTERM are noted: the first asks to save and end, the second
    ends at once."""

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None:
            self.raise_it()
        self.received = signal.Signals(number)
        # guard: signals-wait-for-a-save
        log.warning("%s: saving and ending; once more ends it at once", self.received.name)

    def raise_it(self) -> None:
        """What the signal would have done, had nobody asked it to wait."""
        if self.received in EXIT_CODES:
            raise SystemExit(EXIT_CODES[self.received])
        raise KeyboardInterrupt

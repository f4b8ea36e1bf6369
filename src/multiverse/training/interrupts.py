"""Ctrl-C and SIGTERM while a run trains: the first asks it to save and end, the second ends it at once."""

from __future__ import annotations

import logging
import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self

log = logging.getLogger("multiverse")

EXIT_CODES = {signal.SIGTERM: 143}


class StopRequests:
    """While it is entered, in the main thread, signals are noted instead of raised."""

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

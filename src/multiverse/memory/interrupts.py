"""Ctrl-C, held back for a moment: what must not be cut in two is not."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import threading
from types import FrameType
from typing import Any

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

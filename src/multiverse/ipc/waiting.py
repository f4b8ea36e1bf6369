"""The waiting rule: spin for a short time, then sleep in the kernel.

Spinning occupies a core; waking up takes tens of microseconds. So a side spins for up to 200 µs and yields the core
after every 8 checks; after two consecutive waits that had to sleep anyway, the next 64 sleep at once. As many workers
as there are spare cores beside the caller's spin for up to 1 ms: they are still awake when a learner takes half of
that to choose its next actions, and no other process needs these cores.
"""

from __future__ import annotations

import math
import os
import select
import time
from collections.abc import Callable
from typing import Literal

from multiverse.ipc.interrupts import longest_nap_s, stop_waiting

SPIN_NS = 200_000
LONG_LOOK_NS = 1_000_000
LOOKS_BEFORE_YIELD = 8
FAILED_SPINS_BEFORE_SLEEPING = 2
PARKED_WAITS = 64
FIRST_SLEEP_S = 0.02
"""A sleeper wakes once after this time and checks again, in case a ring was missed: see `mailbox`."""

_yield_core: Callable[[], object] = getattr(os, "sched_yield", lambda: time.sleep(0))


class Waiting:
    """Waiting of one side, adapting to its last waits. "auto" is the rule above; "spin" always spins, "park" never."""

    __slots__ = ("_adapt", "_misses", "_park_next", "_spare_core", "_spin")

    def __init__(self, kind: Literal["auto", "spin", "park"], spare_core: bool = False) -> None:
        self._spare_core = spare_core
        self._spin, self._adapt = kind != "park", kind == "auto"
        self._misses = 0
        self._park_next = 0

    def look(self, ready: Callable[[], bool]) -> bool:
        """Spin until the event according to the rule; False if the side has to sleep."""
        if ready():
            return True
        if not self._spin:
            return False
        if self._park_next:
            self._park_next -= 1
            return False
        give_up = time.perf_counter_ns() + (LONG_LOOK_NS if self._spare_core else SPIN_NS)
        while True:
            _yield_core()  # first, because the other side may be waiting for this core
            for _ in range(LOOKS_BEFORE_YIELD):
                if ready():
                    self._misses = 0
                    return True
            if time.perf_counter_ns() > give_up:
                break
        self._misses += 1
        if self._misses >= FAILED_SPINS_BEFORE_SLEEPING and self._adapt:
            self._misses = 0
            self._park_next = PARKED_WAITS
        return False


def readable(fd: int, timeout_s: float | None) -> bool:
    """Whether `fd` becomes readable (or hangs up) within the time. Works with any number of open files."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(None if timeout_s is None else max(0.0, timeout_s) * 1e3))


class WaitSet:
    """Sleeps in one poll over doorbells and sentinels of ended workers, with a monotonic deadline."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._wakers: dict[int, Callable[[], None]] = {}
        self._set_asleep: dict[int, Callable[[bool], None]] = {}

    def add_doorbell(self, fd: int, drain: Callable[[], None], set_asleep: Callable[[bool], None]) -> None:
        self._poll.register(fd, select.POLLIN)
        self._wakers[fd] = drain
        self._set_asleep[fd] = set_asleep

    def add_sentinel(self, fd: int, on_end: Callable[[], None], readable: bool = True) -> None:
        """Wake and call `on_end` once when `fd` becomes readable (or, if not `readable`, hangs up)."""

        def report_once() -> None:
            self.remove(fd)
            on_end()

        self._poll.register(fd, select.POLLIN if readable else 0)
        self._wakers[fd] = report_once

    def remove(self, fd: int) -> None:
        self._set_asleep.pop(fd, None)
        if self._wakers.pop(fd, None) is not None:
            self._poll.unregister(fd)

    def sleep_until(self, ready: Callable[[], bool], deadline: float | None) -> bool:
        """Sleep until `ready`; False if the deadline (`time.monotonic`) passed first."""
        for set_asleep in self._set_asleep.values():
            set_asleep(True)
        try:
            first_nap_s: float | None = FIRST_SLEEP_S
            while not ready():
                stop_waiting()
                left_s = math.inf if deadline is None else deadline - time.monotonic()  # guard: sleep-is-monotonic
                if left_s <= 0:
                    return False
                if not self._sleep_briefly(min(left_s, first_nap_s or math.inf, longest_nap_s())):
                    first_nap_s = None
            return True
        finally:
            for set_asleep in self._set_asleep.values():
                set_asleep(False)

    def check(self) -> None:
        """Process doorbells and ended workers without sleeping."""
        self._sleep_briefly(0.0)

    def _sleep_briefly(self, seconds: float) -> bool:
        """Sleep until an event; False if only the time passed."""
        events = self._poll.poll(None if seconds == math.inf else seconds * 1e3)
        for fd, _ in events:
            waker = self._wakers.get(fd)
            if waker is not None:
                waker()
        return bool(events)

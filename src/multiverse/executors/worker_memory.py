"""Memory of worker processes: the caller reads it every few seconds, warns about growth and enforces a limit."""

from __future__ import annotations

import itertools
import logging
import os
import signal
from collections.abc import Iterable, Sequence
from contextlib import suppress

import psutil

from multiverse.core.errors import InvalidRequest
from multiverse.core.wording import describe_ids, format_bytes
from multiverse.executors.worker_host import WorkerHost

log = logging.getLogger("multiverse")

LOOK_EVERY_S = 5.0
WORTH_A_WARNING = 256 << 20
"""Bytes by which a worker must have grown since its first sample."""
SAMPLES = 16
"""Maximum number of samples per worker; above it every second one is dropped, and the interval is doubled."""
LEAST_SHARE = 0.1
"""Least share of the growth in each quarter of the time for growth to count as steady."""
FLAG = "worker_memory_limit= (--worker-memory-limit 2GiB)"


class WorkerMemory:
    """Memory of the workers of one vector env over time."""

    def __init__(self, limit_bytes: int | None = None) -> None:
        self._limit, self.look_at_s = limit_bytes, 0.0
        self._growth: dict[int, Growth] = {}  # by process
        self._unchecked: set[int] = set()  # processes that were busy at the last check, and may exceed the limit

    def check_start(self, workers: Iterable[WorkerHost]) -> None:
        """Refuse a limit that would replace workers at once."""
        for worker in workers:
            held = rss_bytes(worker.life.pid)
            if self._limit is not None and held is not None and held >= self._limit:
                raise InvalidRequest(
                    f"worker_memory_limit={self._limit} ({format_bytes(self._limit)}) is too low: worker "
                    f"{worker.worker} uses {format_bytes(held)} right after building its envs; raise it, or use "
                    "fewer envs per worker"
                )

    def check(self, now: float, workers: Sequence[WorkerHost], asked: Iterable[WorkerHost]) -> None:
        """Before a request to the workers `asked`: check all workers if a check is due, or else those of `asked` that
        were busy at the last check."""
        if now >= self.look_at_s:
            self._look(now, workers)
        elif self._unchecked:
            for worker in asked:
                pid = worker.life.pid
                if pid in self._unchecked and not worker.pending:  # guard: a-busy-worker-is-checked-when-it-is-free
                    self._unchecked.discard(pid)
                    self._enforce_limit(worker, rss_bytes(pid))

    def _look(self, now: float, workers: Iterable[WorkerHost]) -> None:
        """End every idle worker above the limit, so that it is replaced; warn about others that grow steadily."""
        self.look_at_s, self._unchecked = now + LOOK_EVERY_S, set()
        growth = {}
        for worker in workers:
            pid = worker.life.pid
            held = rss_bytes(pid)
            if pid is None or held is None or self._enforce_limit(worker, held):
                continue
            growth[pid] = mine = self._growth.get(pid) or Growth()
            if mine.warns(now, held):
                log.warning(
                    "the memory of worker %d (envs %s) grows steadily: %s now, %s more than %.0f s ago; an env may "
                    "leak memory. %s replaces workers that use more",
                    *(worker.worker, describe_ids(worker.env_ids), format_bytes(held), format_bytes(held - mine.first)),
                    *(now - mine.since_s, FLAG),
                )
        self._growth = growth

    def _enforce_limit(self, worker: WorkerHost, held: int | None) -> bool:
        """End this worker if it is idle and above the limit; return whether it was ended."""
        pid = worker.life.pid
        if self._limit is None or pid is None or held is None:
            return False
        if worker.pending:
            self._unchecked.add(pid)
            return False
        if held <= self._limit:
            return False
        limit = f"worker_memory_limit={format_bytes(self._limit)}"
        worker.retired = f"was ended by its caller because it used {format_bytes(held)}, more than {limit}"
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)  # guard: a-worker-above-its-limit-is-replaced
        return True


class Growth:
    """Growth of the memory of one process."""

    def __init__(self) -> None:
        self._samples: list[tuple[float, int]] = []
        self._keep_every, self._looks, self._warn_at = 1, 0, 0

    @property
    def first(self) -> int:
        return self._samples[0][1]

    @property
    def since_s(self) -> float:
        return self._samples[0][0]

    def warns(self, now: float, held: int) -> bool:
        """Add a sample; True if growth should be reported: at first when it is steady, then when memory has doubled."""
        if self._looks % self._keep_every == 0:
            self._samples.append((now, held))
        self._looks += 1
        if len(self._samples) > SAMPLES:
            self._samples, self._keep_every = self._samples[::2], 2 * self._keep_every
        gained = held - self.first
        if held < self._warn_at or gained < WORTH_A_WARNING or not self._steady(gained):
            return False
        self._warn_at = 2 * held
        return True

    def _steady(self, gained: int) -> bool:
        quarter = (len(self._samples) - 1) // 4
        marks = [held for _, held in self._samples[:: quarter or 1]][:5]
        return quarter > 0 and all(b - a >= LEAST_SHARE * gained for a, b in itertools.pairwise(marks))


def rss_bytes(pid: int | None) -> int | None:
    """Resident memory of a process in bytes; None if unknown."""
    if pid is None:
        return None
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except (OSError, psutil.Error):
        return None

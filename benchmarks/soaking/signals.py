"""SIGKILL and SIGSTOP for worker processes, at seeded random times."""

from __future__ import annotations

import os
import queue
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

KILL_EVERY, STOP_EVERY = 250, 900
"""Mean number of calls between two signals of a kind; at least half of it."""
FIRST = {signal.SIGKILL: 40, signal.SIGSTOP: 90}
"""The first ones come soon, for a short soak's sake, and to the last worker: the others are to meet first what the
schedule has for each of them."""
MOST_DELAY_S, LATE_DELAY_S, LATE = 0.002, 0.4, 0.15
"""A signal comes within the first (or what a longer call takes) after its call began; some within the second, when
a worker may just be in replacement."""


@dataclass(slots=True)
class Hits:
    """Worker processes with a fault, each noted before the fault happens.

    Each is replaced exactly once, whatever else happens to it: the counters must match their number.
    """

    killed: set[str] = field(default_factory=set)
    silenced: set[str] = field(default_factory=set)  # stopped, or an env of theirs hangs
    workers: defaultdict[int, set[str]] = field(default_factory=lambda: defaultdict(set))  # hit from outside, by worker
    proc: Path = Path("/proc")
    _last: dict[int, str] = field(default_factory=dict)  # process by pid, as it was seen last

    def process(self, pid: int) -> str:
        """Name of the process that has this pid: with the time of its start, because pids are used again."""
        try:
            stat = (self.proc / str(pid) / "stat").read_bytes()
        except (FileNotFoundError, ProcessLookupError):  # it has ended
            return self._last.get(pid, str(pid))
        started = stat.rpartition(b")")[2].split()[19].decode()
        self._last[pid] = f"{pid}, started at {started}"
        return self._last[pid]

    def __contains__(self, process: str) -> bool:
        return process in self.killed or process in self.silenced

    def __len__(self) -> int:
        return len(self.killed | self.silenced)


@dataclass(frozen=True, slots=True)
class _Shot:
    worker: int
    signal: signal.Signals
    delay_s: float


class Sniper:
    """Sends signals from a separate thread, so that they can arrive at any point of a call."""

    def __init__(
        self,
        seed: int,
        spared_workers: int,
        worker_pids: Callable[[], Sequence[int]],
        hits: Hits,
        most_delay_s: float = MOST_DELAY_S,
    ) -> None:
        self._draw, self._spared, self._worker_pids = np.random.default_rng((seed, 2)), spared_workers, worker_pids
        self._hits, self._most_delay_s = hits, most_delay_s
        self.kills = self.stops = self.missed = 0
        self._next, self._resting = dict(FIRST), False
        self._shots: queue.SimpleQueue[_Shot | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._fire, name="sniper", daemon=True)
        self._thread.start()

    def look(self, call: int) -> None:
        """Called with the number of every call: schedule a signal if one is due."""
        for kind, every in () if self._resting else ((signal.SIGKILL, KILL_EVERY), (signal.SIGSTOP, STOP_EVERY)):
            if call >= self._next[kind]:
                self._next[kind] = call + every // 2 + int(self._draw.geometric(2 / every))
                most_s = LATE_DELAY_S if self._draw.random() < LATE else self._most_delay_s
                last = len(self._worker_pids()) - 1
                worker = last if call == FIRST[kind] else int(self._draw.integers(self._spared, last + 1))
                self._shots.put(_Shot(worker, kind, float(self._draw.uniform(0, most_s))))

    def rest(self) -> None:
        """Send the scheduled signals, then stop."""
        self._resting = True
        self._shots.put(None)
        self._thread.join()

    def _fire(self) -> None:
        while (shot := self._shots.get()) is not None:
            time.sleep(shot.delay_s)
            self._fire_at(shot, self._worker_pids()[shot.worker])

    def _fire_at(self, shot: _Shot, pid: int) -> None:
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            self.missed += 1
            return
        try:
            if self._worker_pids()[shot.worker] != pid:  # replaced meanwhile: the number may be another's by now
                self.missed += 1
                return
            process = self._hits.process(pid)
            self._hits.workers[shot.worker].add(process)
            (self._hits.killed if shot.signal == signal.SIGKILL else self._hits.silenced).add(process)
            signal.pidfd_send_signal(descriptor, shot.signal)
            self.kills += shot.signal == signal.SIGKILL
            self.stops += shot.signal == signal.SIGSTOP
        except ProcessLookupError:  # it was dead already, by an earlier hit
            self.missed += 1
        finally:
            os.close(descriptor)

"""What a program holds: processes, descriptors, threads, named shared memory; and how its memory goes over time."""

from __future__ import annotations

import gc
import os
import threading
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import psutil

WARM_UP = 0.3
"""The first part of a run that does not count: allocators fill their pools, modules are loaded late."""


@dataclass(frozen=True, slots=True)
class Holdings:
    """Counted, not named: a replaced worker is another process but not one more."""

    processes: int
    descriptors: int
    threads: int
    shared_memory: int  # entries of /dev/shm that no other program uses

    @classmethod
    def now(cls) -> Holdings:
        gc.collect()  # what nobody can reach any more is not held
        children = [child for child in psutil.Process().children(recursive=True) if _lives(child)]
        return cls(
            len(children),
            len(os.listdir("/proc/self/fd")),
            threading.active_count(),
            _named_memory({os.getpid(), *(child.pid for child in children)}),
        )


def _lives(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _named_memory(own_pids: set[int]) -> int:
    """Entries of /dev/shm, without those that somebody else on this machine has mapped."""
    names = {str(path) for path in Path("/dev/shm").iterdir()}
    for pid in psutil.pids() if names else []:
        if pid not in own_pids:
            try:
                names -= {line.split(maxsplit=5)[-1] for line in Path(f"/proc/{pid}/maps").read_text().splitlines()}
            except OSError:  # ended meanwhile, or not ours to read
                continue
    return len(names)


@dataclass(slots=True)
class Memory:
    """Resident memory of one process, looked at now and then."""

    pid: int
    seen: list[tuple[float, int]] = field(default_factory=list)  # seconds, bytes

    def look(self, seconds: float) -> None:
        try:
            self.seen.append((seconds, psutil.Process(self.pid).memory_info().rss))
        except psutil.NoSuchProcess:  # a fault has just ended it
            pass

    def growth_mib(self) -> float:
        """A straight line through what was seen after the warm-up: how much it rises from its begin to its end."""
        counted = np.array(self.seen[int(len(self.seen) * WARM_UP) :], float)
        if len(counted) < 3:
            return 0.0
        slope, _ = np.polyfit(counted[:, 0], counted[:, 1], 1)
        return float(slope * (counted[-1, 0] - counted[0, 0]) / 2**20)

"""Resources of a program: processes, descriptors, threads, shared memory, and the growth of memory."""

from __future__ import annotations

import gc
import os
import threading
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import psutil

WARM_UP = 0.3
"""Share of a run that is ignored, in which allocators fill their pools and modules are loaded."""


@dataclass(frozen=True, slots=True)
class Holdings:
    """Numbers of resources. A replaced worker does not change them."""

    processes: int
    descriptors: int
    threads: int
    shared_memory: int  # entries of /dev/shm that no other program uses

    @classmethod
    def now(cls) -> Holdings:
        gc.collect()  # unreachable objects are not counted
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
    """Return the number of entries of /dev/shm that no other program has mapped."""
    names = {str(path) for path in Path("/dev/shm").iterdir()}
    for pid in psutil.pids() if names else []:
        if pid not in own_pids:
            try:
                names -= {line.split(maxsplit=5)[-1] for line in Path(f"/proc/{pid}/maps").read_text().splitlines()}
            except OSError:  # ended meanwhile, or not readable
                continue
    return len(names)


@dataclass(slots=True)
class Memory:
    """Resident memory of one process, sampled over time."""

    pid: int
    seen: list[tuple[float, int]] = field(default_factory=list)  # seconds, bytes

    def look(self, seconds: float) -> None:
        try:
            self.seen.append((seconds, psutil.Process(self.pid).memory_info().rss))
        except psutil.NoSuchProcess:  # a fault has just ended it
            pass

    def growth_mib(self) -> float:
        """Return the growth of a line fitted to the samples after the warm-up."""
        counted = np.array(self.seen[int(len(self.seen) * WARM_UP) :], float)
        if len(counted) < 3:
            return 0.0
        slope, _ = np.polyfit(counted[:, 0], counted[:, 1], 1)
        return float(slope * (counted[-1, 0] - counted[0, 0]) / 2**20)

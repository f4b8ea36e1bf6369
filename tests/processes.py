"""Processes that should have ended, and files that should have been closed."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterable

import psutil


def still_alive(pids: Iterable[int], deadline_s: float = 10.0) -> list[int]:
    """Return the processes that have not ended by the deadline. A zombie has ended: reaping it is up to its parent."""
    left = [process for process in map(process_of, pids) if process is not None]
    give_up = time.monotonic() + deadline_s
    while True:
        left = [process for process in left if has_not_ended(process)]
        if not left or time.monotonic() > give_up:
            return [process.pid for process in left]
        time.sleep(0.01)  # the end of a process that is not our child cannot be awaited


def process_of(pid: int) -> psutil.Process | None:
    try:
        return psutil.Process(pid)
    except psutil.NoSuchProcess:
        return None


def has_not_ended(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def count_descriptors() -> int:
    """Number of descriptors of this process after a garbage collection: those that earlier tests have dropped would
    otherwise be closed during the test that counts."""
    gc.collect()
    return psutil.Process().num_fds()

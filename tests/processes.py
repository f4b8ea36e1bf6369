"""Processes that should have ended, and files that should have been closed."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterable

import psutil


def still_alive(pids: Iterable[int], deadline_s: float = 10.0) -> list[int]:
    """Those that have not ended by the deadline. A zombie has: when it is buried is up to its parent."""
    left = [process for process in map(found, pids) if process is not None]
    give_up = time.monotonic() + deadline_s
    while True:
        left = [process for process in left if lives(process)]
        if not left or time.monotonic() > give_up:
            return [process.pid for process in left]
        time.sleep(0.01)  # nobody tells us of the end of a process that is not our child


def found(pid: int) -> psutil.Process | None:
    try:
        return psutil.Process(pid)
    except psutil.NoSuchProcess:
        return None


def lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def opened_before() -> int:
    """How many descriptors this process has, without those that only wait for the collector: what earlier tests have
    dropped would else be closed in the middle of the test that counts."""
    gc.collect()
    return psutil.Process().num_fds()

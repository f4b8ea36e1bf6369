"""A worker must never outlive the process it works for, whatever it is doing at that moment.

Three lines of defence: the fork server watches the caller and kills its workers when it ends; the kernel kills a
worker whose parent ends (Linux); and where neither holds, a thread in the worker watches the caller.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING

from multiverse.memory import platform
from multiverse.memory.waiting import readable

if TYPE_CHECKING:
    import resource  # not on every platform

_PR_SET_PDEATHSIG = 1


def die_with_parent(expected_parent: int) -> bool:
    """Ask the kernel to kill this process when its parent's starting thread ends; False where it cannot."""
    if sys.platform != "linux" or platform.fallback_forced():
        return False
    # guard: the-kernel-kills-with-the-parent
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        return False
    if os.getppid() != expected_parent:  # it died before the kernel was asked: the signal is not retroactive
        os._exit(1)
    return True


def watch_process(pid: int) -> None:
    """Start a thread that kills this process group as soon as process `pid`, our parent, has ended."""
    threading.Thread(target=_kill_self_after, args=(pid,), name="orphan-guard", daemon=True).start()


def _kill_self_after(pid: int) -> None:
    wait_for_end(pid)
    kill_group(os.getpid())


def wait_for_end(pid: int) -> None:
    """Return when the parent process `pid` has ended."""
    if platform.has_pidfd():
        try:
            fd = os.pidfd_open(pid)
        except ProcessLookupError:
            return
        try:
            readable(fd, None)
        finally:
            os.close(fd)
        return
    while os.getppid() == pid:
        time.sleep(0.2)  # no descriptor to wait on here: macOS


def lead_own_group() -> None:
    """Become the leader of a process group, so that whatever an env starts can be ended with its worker."""
    try:
        os.setpgid(0, 0)  # guard: a-worker-leads-a-group
    except OSError:  # a session leader already has its own
        pass


def kill_group(pid: int) -> None:
    """Kill the group that `pid` leads: the worker and whatever its envs have started."""
    try:
        os.killpg(pid, signal.SIGKILL)  # guard: the-whole-group-is-killed
    except (ProcessLookupError, PermissionError):
        pass


def kill_group_left_by(pid: int) -> None:
    """The same for a worker that somebody else has reaped: not if its number belongs to another process by now.

    The kernel gives no number away that is still a group's: a process of that number means that the group is empty.
    """
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        kill_group(pid)
    except PermissionError:
        pass


def peak_rss_bytes(used: resource.struct_rusage) -> int:
    """The most memory that an ended process held, as the kernel noted it."""
    return int(used.ru_maxrss) * (1 if sys.platform == "darwin" else 1024)

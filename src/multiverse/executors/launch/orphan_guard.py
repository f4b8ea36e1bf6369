"""Guards that end a worker with its caller, whatever the worker is doing.

There are three: the fork server watches the caller and kills its workers when it ends; the kernel kills a worker whose
parent ends (Linux); and without these, a thread in the worker watches the caller.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time

from multiverse.ipc import platform
from multiverse.ipc.waiting import readable

_PR_SET_PDEATHSIG = 1


def kernel_guards() -> bool:
    """Whether the kernel can kill a process with its parent."""
    return sys.platform == "linux" and not platform.fallback_forced()


def end_with(parent: int, thread_stays: bool = True) -> None:
    """Ensure that this process ends with its parent. `thread_stays`: the thread that started it lives as long."""
    # The kernel sends its signal when that *thread* ends.
    if not (thread_stays and die_with_parent(parent)):
        watch_process(parent)


def die_with_parent(expected_parent: int) -> bool:
    """Ask the kernel to kill this process when its parent's starting thread ends; False where it cannot."""
    if not kernel_guards():
        return False
    # guard: the-kernel-kills-with-the-parent
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        return False
    if os.getppid() != expected_parent:  # it died before the call, so no signal will come
        os._exit(1)
    return True


def watch_process(pid: int) -> None:
    """Start a thread that kills this process group when process `pid`, our parent, has ended."""
    threading.Thread(target=_kill_self_after, args=(pid,), name="orphan-guard", daemon=True).start()


def _kill_self_after(pid: int) -> None:
    wait_for_end(pid)
    kill_group(os.getpid())


def wait_for_end(pid: int) -> None:
    """Return when the parent process `pid` has ended."""
    fd = open_pidfd(pid)
    while fd is None and os.getppid() == pid:
        time.sleep(0.2)  # macOS has no descriptor to wait on
    if fd is not None:
        try:
            readable(fd, None)
        finally:
            os.close(fd)


def open_pidfd(pid: int) -> int | None:
    """A descriptor that becomes readable when the process ends; None if unsupported, or if the process has ended."""
    try:
        return os.pidfd_open(pid) if platform.has_pidfd() else None
    except OSError:
        return None


def lead_own_group() -> None:
    """Become the leader of a process group, so that processes that envs start can be ended with their worker."""
    try:
        os.setpgid(0, 0)  # guard: a-worker-leads-a-group
    except OSError:  # a session leader leads its group already
        pass


def kill_group(pid: int) -> None:
    """Kill the group that `pid` leads: the worker, and processes that its envs have started."""
    try:
        os.killpg(pid, signal.SIGKILL)  # guard: the-whole-group-is-killed
    except (ProcessLookupError, PermissionError):
        pass


def kill_group_left_by(pid: int) -> None:
    """Kill the group of a worker that other code has reaped, unless another process has its number now.

    The kernel does not reuse the number of a group that exists, so if another process has it, the group is empty.
    """
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        kill_group(pid)
    except PermissionError:
        pass


def reaped(pid: int) -> tuple[int, int] | None:
    """A child's exit code and peak memory in bytes, if it has ended; processes that it had started are ended too."""
    if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        return None
    kill_group(pid)  # before reaping, after which another process may get the number
    _, status, used = os.wait4(pid, 0)
    return os.waitstatus_to_exitcode(status), used.ru_maxrss * (1 if sys.platform == "darwin" else 1024)

"""The fork server itself: it has numpy and gymnasium loaded, forks on request, reaps, and ends with the caller.

It imports nothing of the user's, and kills the process groups of all workers when the caller ends, also of those that
the caller has forked itself.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import socket
import sys

from multiverse.executors.launch import orphan_guard
from multiverse.executors.launch.first_steps import run_as_worker
from multiverse.executors.launch.fork_server import FORGET, GUARD, REQUEST, SPAWN, STATUS, command
from multiverse.memory import platform

_MAX_FDS = 16


def serve(control_fd: int, caller: int) -> None:
    """The server's main loop: fork on request, reap, and end with the caller."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _preload()
    control = socket.socket(fileno=control_fd)
    wake_r, wake_w = os.pipe()
    for fd in (wake_r, wake_w):
        os.set_blocking(fd, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake_w, warn_on_full_buffer=False)
    poll = select.poll()
    poll.register(control, select.POLLIN)
    poll.register(wake_r, select.POLLIN)
    caller_fd = _open_pidfd(caller)
    if caller_fd is not None:
        poll.register(caller_fd, select.POLLIN)
    server_fds = [control_fd, wake_r, wake_w, *([caller_fd] if caller_fd is not None else [])]
    status_pipes: dict[int, int] = {}
    guarded: set[int] = set()
    try:
        while os.getppid() == caller:
            ready = {fd for fd, _ in poll.poll(None if caller_fd is not None else 200)}
            if wake_r in ready:
                _drain(wake_r)
                _reap(status_pipes)
            if caller_fd in ready:
                break
            if control_fd in ready and not _answer(control, status_pipes, guarded, server_fds):
                break
    finally:
        _hear_last_words(control, guarded)
        for pid in (*status_pipes, *guarded):  # guard: the-fork-server-ends-its-workers
            orphan_guard.kill_group(pid)
        os._exit(0)


def _preload() -> None:
    """Load what every worker needs, once; then hide it from the collector so that forks keep sharing the pages."""
    import numpy.random  # noqa: F401

    import multiverse.executors.worker_loop  # noqa: F401

    gc.collect()
    gc.freeze()


def _open_pidfd(pid: int) -> int | None:
    if not platform.has_pidfd():
        return None
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None


def _drain(fd: int) -> None:
    try:
        while os.read(fd, 4096):
            pass
    except BlockingIOError:
        pass


def _answer(control: socket.socket, status_pipes: dict[int, int], guarded: set[int], server_fds: list[int]) -> bool:
    """One request: fork and tell the pid, or note one. False when the caller has hung up."""
    message, fds, _, _ = socket.recv_fds(control, REQUEST.size, _MAX_FDS)
    if len(message) < REQUEST.size:
        return False
    for fd in fds:
        os.set_inheritable(fd, False)
    how, whose = REQUEST.unpack(message)
    if _noted(how, whose, guarded):
        return True
    status_w = fds.pop()
    server = os.getpid()
    pid = os.fork()
    if pid == 0:
        for fd in (*server_fds, status_w, *status_pipes.values()):
            os.close(fd)
        run_as_worker(
            lambda: _exec_fresh(fds) if how == SPAWN else _be_worker(fds),
            lambda: _guard_forked(server),
        )
    for fd in fds:
        os.close(fd)
    status_pipes[pid] = status_w
    os.write(status_w, STATUS.pack(pid))
    return True


def _noted(what: bytes, pid: int, guarded: set[int]) -> bool:
    """Whether the request was about a process that the caller has forked itself."""
    if what == GUARD:
        guarded.add(pid)
    elif what == FORGET:
        guarded.discard(pid)
    return what in (GUARD, FORGET)


def _hear_last_words(control: socket.socket, guarded: set[int]) -> None:
    """The caller may have been killed while this server was still starting: what it said by then still counts."""
    control.setblocking(False)
    try:
        while len(message := socket.recv_fds(control, REQUEST.size, _MAX_FDS)[0]) == REQUEST.size:
            what, pid = REQUEST.unpack(message)
            _noted(what, pid, guarded)
    except OSError:  # nothing more
        pass


def _reap(status_pipes: dict[int, int]) -> None:
    """Tell how each ended worker ended, and end what its envs had started."""
    for pid in list(status_pipes):
        if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            continue
        orphan_guard.kill_group(pid)  # before reaping: until then nobody else can have this number
        _, status, used = os.wait4(pid, 0)
        status_w = status_pipes.pop(pid)
        try:
            code, peak = os.waitstatus_to_exitcode(status), orphan_guard.peak_rss_bytes(used)
            os.write(status_w, STATUS.pack(code) + STATUS.pack(peak))  # guard: peak-memory-forkserver
        except OSError:  # the caller closed its end
            pass
        os.close(status_w)


# -- the worker, in the child ----------------------------------------------------------------------------------
def _be_worker(fds: list[int]) -> int:
    from multiverse.executors import worker_loop  # loaded already; not imported on the caller's side

    return worker_loop.main(fds)


def _exec_fresh(fds: list[int]) -> int:
    """Replace the child by a fresh interpreter. The kernel's promise to kill it with its parent survives the exec."""
    for fd in fds:
        os.set_inheritable(fd, True)
    os.execv(sys.executable, command("run_fresh", fds))


def run_fresh(fds: list[int]) -> None:
    """The first call in a fresh interpreter."""
    for fd in fds:
        os.set_inheritable(fd, False)
    run_as_worker(lambda: _be_worker(fds), _guard_by_thread if not _kernel_guards() else lambda: None)


def _kernel_guards() -> bool:
    return sys.platform == "linux" and not platform.fallback_forced()


def _guard_by_thread() -> None:
    """Without the kernel's help the worker watches the server, which watches the caller."""
    orphan_guard.watch_process(os.getppid())


def _guard_forked(server: int) -> None:
    if not orphan_guard.die_with_parent(server):
        _guard_by_thread()

"""The fork server itself: it has numpy and gymnasium loaded, forks on request, reaps, and ends with the caller.

It imports nothing of the user's, and kills the process groups of all workers when the caller ends, also of those that
the caller has forked itself.
"""

from __future__ import annotations

import errno
import gc
import os
import select
import signal
import socket
import sys
import traceback

from multiverse.executors.launch import orphan_guard, output
from multiverse.executors.launch.black_box import CALLERS_SIGNALS
from multiverse.executors.launch.crash_report import Watched
from multiverse.executors.launch.first_steps import run_as_worker
from multiverse.executors.launch.fork_server import (
    FORGET,
    GUARD,
    REGISTERED,
    REQUEST,
    SPAWN,
    STATUS,
    UNWATCH,
    WATCH,
    command,
)
from multiverse.ipc.doorbell import PipeDoorbell

_MAX_FDS = 16


def serve(control_fd: int, caller: int) -> None:
    """The server's main loop: fork on request, reap, and end with the caller."""
    for number in CALLERS_SIGNALS:
        signal.signal(number, signal.SIG_IGN)  # guard: sigusr1-does-not-end-the-fork-server
    output.hold_standard_descriptors()  # the caller may have files there that no other program inherits
    _preload()
    control = socket.socket(fileno=control_fd)
    wake = PipeDoorbell.new()  # rung by the interpreter, when a worker has ended
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake.fds[1], warn_on_full_buffer=False)
    poll = select.poll()
    poll.register(control, select.POLLIN)
    poll.register(wake.wait_fd, select.POLLIN)
    caller_fd = orphan_guard.open_pidfd(caller)
    if caller_fd is not None:
        poll.register(caller_fd, select.POLLIN)
    server_fds = [control_fd, *wake.fds, *([caller_fd] if caller_fd is not None else [])]
    status_pipes: dict[int, int] = {}
    guarded: set[int] = set()
    watched = Watched()
    try:
        while os.getppid() == caller:
            ready = {fd for fd, _ in poll.poll(None if caller_fd is not None else 200)}
            if wake.wait_fd in ready:
                wake.drain()
                _reap(status_pipes)
            if caller_fd in ready:
                break
            if control_fd in ready and not _answer(control, status_pipes, guarded, watched, server_fds):
                break
    except Exception:
        traceback.print_exc()
    finally:
        _hear_last_words(control, guarded)
        watched.report()
        for pid in (*status_pipes, *guarded):  # guard: the-fork-server-ends-its-workers
            orphan_guard.kill_group(pid)
        os._exit(0)


def _preload() -> None:
    """Load what every worker needs, once; then hide it from the collector so that forks keep sharing the pages."""
    import numpy.random  # noqa: F401

    import multiverse.executors.worker_loop  # noqa: F401

    gc.collect()
    gc.freeze()


def _answer(
    control: socket.socket, status_pipes: dict[int, int], guarded: set[int], watched: Watched, server_fds: list[int]
) -> bool:
    """One request: fork and tell the pid (or, below 0, why there is none), or note one. False when the caller has hung
    up. What goes wrong with one request is no harm to the workers of others."""
    message, fds, flags, _ = socket.recv_fds(control, REQUEST.size, _MAX_FDS)
    if len(message) < REQUEST.size:
        return False
    for fd in fds:
        os.set_inheritable(fd, False)
    how, whose = REQUEST.unpack(message)
    if _noted(how, whose, guarded):
        return True
    if how == UNWATCH or (how == WATCH and not fds):
        watched.forget(whose)
        return True
    if how == WATCH:
        watched.take(whose, fds[0])
        return True
    if flags & socket.MSG_CTRUNC:  # out of descriptors: the last one, by which to answer, has not come
        _close(fds)
        return True
    status_w = fds.pop()
    if how == REGISTERED:
        _close(fds)
        _tell_registered(status_w)
        return True
    server = os.getpid()
    try:
        pid = os.fork()
    except OSError as error:  # guard: one-failed-fork-is-one-error
        _tell(status_w, -(error.errno or errno.EAGAIN))
        _close([*fds, status_w])
        return True
    if pid == 0:
        printed = fds.pop(0) if whose else None
        for fd in (*server_fds, status_w, *status_pipes.values(), *watched.fds):
            os.close(fd)
        run_as_worker(
            lambda: _exec_fresh(fds) if how == SPAWN else _be_worker(fds),
            lambda: _begin(server, printed),
        )
    _close(fds)
    status_pipes[pid] = status_w
    _tell(status_w, pid)
    return True


def _begin(server: int, printed: int | None) -> None:
    orphan_guard.end_with(server)
    if printed is not None:
        output.take(printed)


def _close(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)


def _tell(status_w: int, *numbers: int) -> None:
    try:
        os.write(status_w, b"".join(map(STATUS.pack, numbers)))
    except OSError:  # the caller closed its end  # guard: nobody-need-listen-to-the-fork-server
        pass


def _tell_registered(status_w: int) -> None:
    from multiverse.adapters.registered import digests  # loaded already; not imported on the caller's side

    try:
        with open(status_w, "wb") as answer:
            answer.write(b"".join(digests()))
    except OSError:  # the caller closed its end
        pass


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
        ended = orphan_guard.reaped(pid)
        if ended is None:
            continue
        code, peak = ended
        status_w = status_pipes.pop(pid)
        _tell(status_w, code, peak)  # guard: peak-memory-forkserver
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
    run_as_worker(lambda: _be_worker(fds), _guard_fresh)


def _guard_fresh() -> None:
    """Without the kernel's help the worker watches the server, which watches the caller."""
    if not orphan_guard.kernel_guards():
        orphan_guard.watch_process(os.getppid())

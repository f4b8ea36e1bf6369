"""The fork server's process: it has numpy and gymnasium loaded, forks and reaps workers, and ends with the caller.

It imports none of the user's code. When the caller ends it kills the process groups of all workers, including those
that the caller has forked itself. The first and last steps of every worker process are here too (`run_as_worker`).
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
from collections.abc import Callable

from multiverse.executors.launch import orphan_guard, output
from multiverse.executors.launch.black_box import CALLERS_SIGNALS
from multiverse.executors.launch.crash_report import Watched
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
    output.hold_standard_descriptors()  # the caller may have files there that are not inherited
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
    """Load what every worker needs once, and hide it from the garbage collector, so that forks share its pages."""
    import numpy.random  # noqa: F401

    import multiverse.executors.worker_loop  # noqa: F401

    gc.collect()
    gc.freeze()


def _answer(
    control: socket.socket, status_pipes: dict[int, int], guarded: set[int], watched: Watched, server_fds: list[int]
) -> bool:
    """Process one request: fork and send the pid (or a negative error number), or record it. False if the caller has
    closed the connection. A failed request does not affect other workers."""
    message, fds, flags, _ = socket.recv_fds(control, REQUEST.size, _MAX_FDS)
    if len(message) < REQUEST.size:
        return False
    for fd in fds:
        os.set_inheritable(fd, False)
    request, number = REQUEST.unpack(message)
    if _recorded(request, number, guarded):
        return True
    if request == UNWATCH or (request == WATCH and not fds):
        watched.forget(number)
        return True
    if request == WATCH:
        watched.take(number, fds[0])
        return True
    if flags & socket.MSG_CTRUNC:  # out of descriptors: the last one, for the answer, is missing
        _close(fds)
        return True
    status_w = fds.pop()
    if request == REGISTERED:
        _close(fds)
        _send_registered(status_w)
        return True
    server = os.getpid()
    try:
        pid = os.fork()
    except OSError as error:  # guard: one-failed-fork-is-one-error
        _send(status_w, -(error.errno or errno.EAGAIN))
        _close([*fds, status_w])
        return True
    if pid == 0:
        printed = fds.pop(0) if number else None
        for fd in (*server_fds, status_w, *status_pipes.values(), *watched.fds):
            os.close(fd)
        run_as_worker(
            lambda: _exec_fresh(fds) if request == SPAWN else _run_worker(fds),
            lambda: _begin(server, printed),
        )
    _close(fds)
    status_pipes[pid] = status_w
    _send(status_w, pid)
    return True


def _begin(server: int, printed: int | None) -> None:
    orphan_guard.end_with(server)
    if printed is not None:
        output.redirect(printed)


def _close(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)


def _send(status_w: int, *numbers: int) -> None:
    try:
        os.write(status_w, b"".join(map(STATUS.pack, numbers)))
    except OSError:  # the caller closed its end  # guard: nobody-need-listen-to-the-fork-server
        pass


def _send_registered(status_w: int) -> None:
    from multiverse.adapters.registered import digests  # loaded in the server, but not in the caller

    try:
        with open(status_w, "wb") as answer:
            answer.write(b"".join(digests()))
    except OSError:  # the caller closed its end
        pass


def _recorded(request: bytes, pid: int, guarded: set[int]) -> bool:
    """Record a request about a process that the caller has forked; False for other requests."""
    if request == GUARD:
        guarded.add(pid)
    elif request == FORGET:
        guarded.discard(pid)
    return request in (GUARD, FORGET)


def _hear_last_words(control: socket.socket, guarded: set[int]) -> None:
    """Record the last requests of a caller that was killed, for example while this server was starting."""
    control.setblocking(False)
    try:
        while len(message := socket.recv_fds(control, REQUEST.size, _MAX_FDS)[0]) == REQUEST.size:
            request, pid = REQUEST.unpack(message)
            _recorded(request, pid, guarded)
    except OSError:  # nothing more
        pass


def _reap(status_pipes: dict[int, int]) -> None:
    """Send the exit status of each ended worker, and end processes that its envs had started."""
    for pid in list(status_pipes):
        ended = orphan_guard.reaped(pid)
        if ended is None:
            continue
        code, peak = ended
        status_w = status_pipes.pop(pid)
        _send(status_w, code, peak)  # guard: peak-memory-forkserver
        os.close(status_w)


# -- the worker, in the child ----------------------------------------------------------------------------------
def run_as_worker(run: Callable[[], int], guard: Callable[[], object]) -> None:
    """In a new child process: ensure that it ends with its caller, run, and end the process. Never returns."""
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        for number in CALLERS_SIGNALS:  # sent to the whole process group, and handled by the caller
            # guard: ctrl-c-is-the-callers
            signal.signal(number, signal.SIG_IGN)
        orphan_guard.lead_own_group()
        guard()
        with open(os.devnull, "rb") as nothing:
            os.dup2(nothing.fileno(), 0)  # an env that reads input gets an end of file and does not hang
        code = run()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        output.flush_output()
        os._exit(code)


def _run_worker(fds: list[int]) -> int:
    from multiverse.executors import worker_loop  # loaded in the server, but not in the caller

    return worker_loop.main(fds)


def _exec_fresh(fds: list[int]) -> int:
    """Replace the child by a fresh interpreter. The kernel still kills it with its parent after the exec."""
    for fd in fds:
        os.set_inheritable(fd, True)
    os.execv(sys.executable, command("run_fresh", fds))


def run_fresh(fds: list[int]) -> None:
    """Entry point of a fresh interpreter."""
    for fd in fds:
        os.set_inheritable(fd, False)
    run_as_worker(lambda: _run_worker(fds), _guard_fresh)


def _guard_fresh() -> None:
    """Watch the server, which watches the caller, unless the kernel does."""
    if not orphan_guard.kernel_guards():
        orphan_guard.watch_process(os.getppid())

"""A fork server of our own: a small clean process that has numpy and gymnasium loaded and forks workers on demand.

Why not multiprocessing's: that one re-imports the caller's `__main__` in every worker (torch and all, and the
`if __name__ == "__main__"` guard with it), is a singleton that libraries fight over, and leaves workers behind
when they are stuck in C while the caller dies. This one imports nothing of the user's, watches the caller, reaps
its workers, and ends what their envs have started. It also starts `spawn` workers: fresh interpreters, but
children of a process that is there to look after them.
"""

from __future__ import annotations

import atexit
import gc
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading

from multiverse.contracts.errors import PreflightError
from multiverse.executors.launch import orphan_guard
from multiverse.executors.launch.first_steps import run_as_worker
from multiverse.memory import platform
from multiverse.memory.waiting import readable

FORK, SPAWN = b"F", b"S"
_STATUS = struct.Struct("<q")
_MAX_FDS = 16
_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")


# -- the caller's side -----------------------------------------------------------------------------------------
class ForkServer:
    """The caller's handle. One per process; started when first needed, ends with the caller."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        environment = dict(os.environ)
        for name in _ONE_THREAD:
            environment.setdefault(name, "1")  # every worker has one core to itself
        self._process = subprocess.Popen(
            _command("serve", theirs.fileno(), os.getpid()),
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            env=environment,
            process_group=0,  # a Ctrl-C in the terminal is for the caller, also before the server can ignore it
        )
        theirs.close()
        self._socket = ours
        self._lock = threading.Lock()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def fds(self) -> list[int]:
        return [self._socket.fileno()]

    def alive(self) -> bool:
        return self._process.poll() is None

    def start(self, how: bytes, fds: list[int]) -> int:
        """Ask for a worker that gets `fds`; returns a descriptor that yields its pid and, when it has ended, its exit
        code and the most memory it held."""
        status_r, status_w = os.pipe()
        try:
            with self._lock:
                socket.send_fds(self._socket, [how + bytes([len(fds) + 1])], [*fds, status_w])
        except OSError as error:
            os.close(status_r)
            raise PreflightError(f"the fork server is gone ({error}); its own message is on standard error") from error
        finally:
            os.close(status_w)
        return status_r

    def stop(self) -> None:
        self._socket.close()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def read_status(fd: int, timeout_s: float) -> int | None:
    """The next number on a worker's status pipe; None at its end (the server itself is gone) or after the timeout."""
    data = os.read(fd, _STATUS.size) if readable(fd, timeout_s) else b""
    return _STATUS.unpack(data)[0] if len(data) == _STATUS.size else None


def interpreter_flags() -> list[str]:
    """Run workers under the interpreter options of the caller (-O, -X, -W and so on)."""
    return subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined, no-any-return]


_server: ForkServer | None = None
_server_owner = 0
_starting = threading.Lock()


def fork_server() -> ForkServer:
    """This process's fork server, started now if there is none (or only one inherited by a fork)."""
    global _server, _server_owner
    with _starting:
        if _server is None or _server_owner != os.getpid() or not _server.alive():
            _server, _server_owner = ForkServer(), os.getpid()
            atexit.unregister(stop_fork_server)
            atexit.register(stop_fork_server)
        return _server


def stop_fork_server() -> None:
    """End this process's fork server, if it has one, with whatever workers it still has."""
    global _server
    if _server is not None and _server_owner == os.getpid():
        _server.stop()
        _server = None


# -- the server's side -----------------------------------------------------------------------------------------
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
    try:
        while os.getppid() == caller:
            ready = {fd for fd, _ in poll.poll(None if caller_fd is not None else 200)}
            if wake_r in ready:
                _drain(wake_r)
                _reap(status_pipes)
            if caller_fd in ready:
                break
            if control_fd in ready and not _answer(control, status_pipes, server_fds):
                break
    finally:
        for pid in status_pipes:
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


def _answer(control: socket.socket, status_pipes: dict[int, int], server_fds: list[int]) -> bool:
    """One request: fork, tell the pid. False when the caller has hung up."""
    message, fds, _, _ = socket.recv_fds(control, 2, _MAX_FDS)
    if len(message) < 2:
        return False
    for fd in fds:
        os.set_inheritable(fd, False)
    how, status_w = message[:1], fds.pop()
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
    os.write(status_w, _STATUS.pack(pid))
    return True


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
            os.write(status_w, _STATUS.pack(code) + _STATUS.pack(peak))
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
    os.execv(sys.executable, _command("run_fresh", fds))


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


def _command(function: str, *arguments: object) -> list[str]:
    """A command line for a fresh interpreter that finds the same modules and calls one function of this one."""
    called = ", ".join(repr(a) for a in arguments)
    code = f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import {function}; {function}({called})"
    return [sys.executable, *interpreter_flags(), "-c", code]

"""The fork server, from the caller's side: a small clean process that forks workers on demand.

Why not the one of multiprocessing: it imports the caller's `__main__` in every worker (with torch, and the need for
`if __name__ == "__main__"`), is a singleton that several libraries may want to configure, and leaves workers behind if
they hang in C when the caller dies. Ours imports none of the user's code, watches the caller, reaps its workers, and
ends processes that their envs have started. It also starts `spawn` workers, which are fresh interpreters, but children
of the server.
"""

from __future__ import annotations

import atexit
import os
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable

from multiverse.adapters.registered import DIGEST_BYTES
from multiverse.core.errors import PreflightError
from multiverse.executors.launch import output
from multiverse.ipc.waiting import readable

FORK, SPAWN, GUARD, FORGET, WATCH, UNWATCH, REGISTERED = b"F", b"S", b"G", b"N", b"W", b"U", b"R"
REQUEST = struct.Struct("<cq")  # (request, pid); for a new process: (request, whether it gets an output descriptor)
STATUS = struct.Struct("<q")
REGISTERED_DEADLINE_S = 60.0
SERVER = "multiverse.executors.launch.server_loop"
_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")


class ForkServer:
    """The caller's handle. There is one server per process; it starts when first needed, and ends with the caller."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        environment = dict(os.environ)
        for name in _ONE_THREAD:
            environment.setdefault(name, "1")  # every worker has one core
        try:
            self._process = subprocess.Popen(
                command("serve", theirs.fileno(), os.getpid()),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env=environment,
                # guard: ctrl-c-does-not-reach-the-fork-server
                process_group=0,  # keeps Ctrl-C in the terminal away before the server can ignore it
            )
        except OSError as error:
            ours.close()
            raise PreflightError(
                f"worker processes cannot be started here ({error.strerror}: {error.filename}); use executor='serial' "
                "or 'thread', which start none. `multiverse doctor` shows details"
            ) from error
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        self._socket = ours  # guard: no-port-is-opened
        self._lock = threading.Lock()
        self._registered: frozenset[bytes] | None = None

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def fds(self) -> list[int]:
        return [self._socket.fileno()]

    def alive(self) -> bool:
        return self._process.poll() is None

    def start(self, request: bytes, fds: list[int]) -> int:
        """Request a worker that gets `fds`; returns a descriptor from which its pid can be read and, when it has ended,
        its exit code and peak memory."""
        printed = [] if output.fd is None else [output.fd]
        status_r, status_w = os.pipe()
        try:
            with self._lock:
                socket.send_fds(self._socket, [REQUEST.pack(request, len(printed))], [*printed, *fds, status_w])
        except OSError as error:
            os.close(status_r)
            raise PreflightError(f"the fork server has ended ({error}); see its message on standard error") from error
        finally:
            os.close(status_w)
        return status_r

    def registered(self) -> frozenset[bytes]:
        """Digests of the envs that every new worker has in Gymnasium's registry (`adapters.registered`). None if the
        server does not answer, which raises an error when the next worker is started."""
        if self._registered is None:
            answer, data = self.start(REGISTERED, []), b""
            try:
                while readable(answer, REGISTERED_DEADLINE_S) and (more := os.read(answer, 65_536)):
                    data += more
            finally:
                os.close(answer)
            self._registered = frozenset(data[i : i + DIGEST_BYTES] for i in range(0, len(data), DIGEST_BYTES))
        return self._registered

    def guard(self, pid: int) -> None:
        """End the process group of `pid`, which the caller has forked, if the caller is killed."""
        self._notify(GUARD, pid)

    def forget(self, pid: int) -> None:
        """Stop guarding a process group that has ended."""
        self._notify(FORGET, pid)

    def watch(self, number: int, fd: int) -> None:
        """Keep a file in case the caller crashes: see `crash_report`."""
        self._notify(WATCH, number, [fd])

    def unwatch(self, number: int) -> None:
        self._notify(UNWATCH, number)

    def _notify(self, request: bytes, number: int, fds: list[int] | None = None) -> None:
        try:
            with self._lock:
                socket.send_fds(self._socket, [REQUEST.pack(request, number)], fds or [])
        except OSError:  # the server has ended; the kernel still ends the worker
            pass

    def stop(self) -> None:
        self._socket.close()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def read_status(fd: int, timeout_s: float) -> int | None:
    """The next number on a worker's status pipe; None at its end (the server has ended) or after the timeout."""
    data = os.read(fd, STATUS.size) if readable(fd, timeout_s) else b""
    return STATUS.unpack(data)[0] if len(data) == STATUS.size else None


listeners: list[Callable[[ForkServer | None], None]] = []
"""Called with a server that was started, and with None before one is stopped."""

_server: ForkServer | None = None
_server_owner = 0
_starting = threading.Lock()


def fork_server() -> ForkServer:
    """This process's fork server, started now if there is none (or only one inherited from a parent process)."""
    global _server, _server_owner
    with _starting:
        if _server is not None and _server_owner == os.getpid() and not _server.alive():
            stop_fork_server()  # release the resources of a server that was killed
        if _server is None or _server_owner != os.getpid():
            _server, _server_owner = ForkServer(), os.getpid()
            atexit.unregister(stop_fork_server)
            atexit.register(stop_fork_server)
            for listener in listeners:
                listener(_server)
        return _server


def running() -> ForkServer | None:
    """This process's fork server, if there is one."""
    return _server if _server is not None and _server_owner == os.getpid() and _server.alive() else None


def stop_fork_server() -> None:
    """End this process's fork server, if it has one, with all its workers."""
    global _server
    if _server is not None and _server_owner == os.getpid():
        for listener in listeners:
            listener(None)
        _server.stop()
        _server = None


def command(function: str, *arguments: object) -> list[str]:
    """Command line of a fresh interpreter with this one's options (-O, -X, -W and so on) and module path, which calls a
    function of `server_loop`."""
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    called = ", ".join(repr(a) for a in arguments)
    code = f"import sys; sys.path[:] = {sys.path!r}; from {SERVER} import {function}; {function}({called})"
    return [sys.executable, *flags, "-c", code]

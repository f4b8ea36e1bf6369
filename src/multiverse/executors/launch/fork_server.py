"""A fork server of our own, seen from the caller: a small clean process that forks workers on demand.

Why not multiprocessing's: that one re-imports the caller's `__main__` in every worker (torch and all, and the
`if __name__ == "__main__"` guard with it), is a singleton that libraries fight over, and leaves workers behind
when they are stuck in C while the caller dies. This one imports nothing of the user's, watches the caller, reaps
its workers, and ends what their envs have started. It also starts `spawn` workers: fresh interpreters, but
children of a process that is there to look after them.
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
REQUEST = struct.Struct("<cq")  # what, and of which process; of a new one: whether it is told where to print
STATUS = struct.Struct("<q")
REGISTERED_DEADLINE_S = 60.0
SERVER = "multiverse.executors.launch.server_loop"
_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")


class ForkServer:
    """The caller's handle. One per process; started when first needed, ends with the caller."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        environment = dict(os.environ)
        for name in _ONE_THREAD:
            environment.setdefault(name, "1")  # every worker has one core to itself
        try:
            self._process = subprocess.Popen(
                command("serve", theirs.fileno(), os.getpid()),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env=environment,
                # guard: ctrl-c-does-not-reach-the-fork-server
                process_group=0,  # a Ctrl-C in the terminal is for the caller, also before the server can ignore it
            )
        except OSError as error:
            ours.close()
            raise PreflightError(
                f"worker processes cannot be started here ({error.strerror}: {error.filename}); executor='serial' and "
                "'thread' start none, and `multiverse doctor` says more"
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

    def start(self, how: bytes, fds: list[int]) -> int:
        """Ask for a worker that gets `fds`; returns a descriptor that yields its pid and, when it has ended, its exit
        code and the most memory it held."""
        printed = [] if output.fd is None else [output.fd]
        status_r, status_w = os.pipe()
        try:
            with self._lock:
                socket.send_fds(self._socket, [REQUEST.pack(how, len(printed))], [*printed, *fds, status_w])
        except OSError as error:
            os.close(status_r)
            raise PreflightError(f"the fork server is gone ({error}); its own message is on standard error") from error
        finally:
            os.close(status_w)
        return status_r

    def registered(self) -> frozenset[bytes]:
        """Digests of the envs that every new worker has in Gymnasium's registry (`adapters.registered`); none if the
        server does not answer, which is an error for the next worker that is started."""
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
        """End the process group of `pid`, which the caller itself has forked, should the caller be killed."""
        self._tell(GUARD, pid)

    def forget(self, pid: int) -> None:
        """It has ended, and so has its group."""
        self._tell(FORGET, pid)

    def watch(self, number: int, fd: int) -> None:
        """Keep a file for the case that the caller crashes: `crash_report`."""
        self._tell(WATCH, number, [fd])

    def unwatch(self, number: int) -> None:
        self._tell(UNWATCH, number)

    def _tell(self, what: bytes, number: int, fds: list[int] | None = None) -> None:
        try:
            with self._lock:
                socket.send_fds(self._socket, [REQUEST.pack(what, number)], fds or [])
        except OSError:  # the server is gone; the kernel still ends the worker itself
            pass

    def stop(self) -> None:
        self._socket.close()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def read_status(fd: int, timeout_s: float) -> int | None:
    """The next number on a worker's status pipe; None at its end (the server itself is gone) or after the timeout."""
    data = os.read(fd, STATUS.size) if readable(fd, timeout_s) else b""
    return STATUS.unpack(data)[0] if len(data) == STATUS.size else None


listeners: list[Callable[[ForkServer | None], None]] = []
"""Called with a server that has been started, and with None when one is about to be stopped."""

_server: ForkServer | None = None
_server_owner = 0
_starting = threading.Lock()


def fork_server() -> ForkServer:
    """This process's fork server, started now if there is none (or only one inherited by a fork)."""
    global _server, _server_owner
    with _starting:
        if _server is not None and _server_owner == os.getpid() and not _server.alive():
            stop_fork_server()  # give back what is left of one that was killed
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
    """End this process's fork server, if it has one, with whatever workers it still has."""
    global _server
    if _server is not None and _server_owner == os.getpid():
        for listener in listeners:
            listener(None)
        _server.stop()
        _server = None


def command(function: str, *arguments: object) -> list[str]:
    """A command line for a fresh interpreter, under the options of this one (-O, -X, -W and so on), that finds the same
    modules and calls a function of `server_loop`."""
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    called = ", ".join(repr(a) for a in arguments)
    code = f"import sys; sys.path[:] = {sys.path!r}; from {SERVER} import {function}; {function}({called})"
    return [sys.executable, *flags, "-c", code]

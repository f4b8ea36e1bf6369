"""The three start methods of worker processes, with one kind of handle."""

from __future__ import annotations

import os
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable

from multiverse.core.errors import PreflightError
from multiverse.core.plan import StartMethod
from multiverse.executors.launch import fork_server, orphan_guard, output
from multiverse.executors.launch.output import flush_output
from multiverse.executors.launch.server_loop import run_as_worker
from multiverse.ipc.waiting import readable

START_DEADLINE_S = 60.0

MORE_PROCESSES = "End other programs, use fewer workers, or raise the limits (ulimit -u, a container's pids and memory)"

UNKNOWN_EXIT = 255
"""Exit code of a worker that other code has reaped: the program ignores SIGCHLD, or reaps every child process."""

caller_fds: set[int] = set()
"""Descriptors of the caller that forked workers must close: an open copy would hide that the other side has closed."""


class WorkerProcess(ABC):
    """A started worker process."""

    pid: int
    sentinel: int
    """A descriptor that becomes readable when the process has ended; -1 after `release`."""
    peak_rss_bytes: int | None = None
    """Peak memory; known when the process has ended."""
    orphaned = False
    """Whether it has ended because the fork server ended."""
    _exit_code: int | None = None

    @abstractmethod
    def exit_code(self, timeout_s: float) -> int | None:
        """The exit code (negative: the signal that killed it); None if it does not end within the time."""

    def kill(self) -> None:
        """Kill the process, and the processes that its envs have started."""
        if self.exit_code(0) is None:
            orphan_guard.kill_group(self.pid)

    def release(self) -> None:
        """Close the handle's descriptor."""
        if self.sentinel >= 0:
            caller_fds.discard(self.sentinel)
            os.close(self.sentinel)
            self.sentinel = -1


class ServedProcess(WorkerProcess):
    """A process started by the fork server, which reaps it and reports its exit status."""

    LOST = -signal.SIGKILL  # if the server has ended, the kernel has killed its workers

    def __init__(self, request: bytes, fds: list[int]) -> None:
        server = fork_server.fork_server()
        self.sentinel = server.start(request, fds)
        caller_fds.add(self.sentinel)
        pid = None
        try:
            pid = fork_server.read_status(self.sentinel, START_DEADLINE_S)
            if pid is None or pid < 0:
                raise PreflightError(self._why_none(server, pid))
        except BaseException:
            self.release()
            raise
        self.pid = pid

    def _why_none(self, server: fork_server.ForkServer, answer: int | None) -> str:
        """The reason why there is no worker, from the server's negative answer, or None without one."""
        if answer is not None:
            return f"{os.strerror(-answer)} (the fork server's fork). {MORE_PROCESSES}"
        if not readable(self.sentinel, 0):
            return f"the fork server did not start it within {START_DEADLINE_S:g} s; this machine may be overloaded"
        if server.alive():
            return "the fork server has too many open files; close vector envs, or raise the limit (ulimit -n)"
        return "the fork server ended first; see its message above"

    def exit_code(self, timeout_s: float) -> int | None:
        if self._exit_code is None and self.sentinel >= 0 and readable(self.sentinel, timeout_s):
            code, peak = fork_server.read_status(self.sentinel, 0), fork_server.read_status(self.sentinel, 0)
            self.orphaned = code is None  # guard: not-every-kill-is-out-of-memory
            self._exit_code, self.peak_rss_bytes = self.LOST if code is None else code, peak
        return self._exit_code


class ForkedProcess(WorkerProcess):
    """A process forked from the caller: it has everything that the caller has loaded, and nothing is pickled."""

    def __init__(self, run: Callable[[], int]) -> None:
        # The kernel ends the worker with the caller; the server ends the processes that its envs have started.
        self._guard = fork_server.fork_server()
        flush_output()  # otherwise the child would print it again
        caller, from_main = os.getpid(), threading.current_thread() is threading.main_thread()
        alive_r, alive_w = os.pipe()
        try:
            self.pid = os.fork()
        except OSError:
            os.close(alive_r)
            os.close(alive_w)
            raise
        if self.pid == 0:
            os.close(alive_r)
            run_as_worker(run, lambda: _let_go_of_caller(caller, from_main))
        os.close(alive_w)
        self._guard.guard(self.pid)
        self.sentinel = self._opened_sentinel(alive_r)
        caller_fds.add(self.sentinel)

    def _opened_sentinel(self, alive_r: int) -> int:
        """A descriptor of the process, or else the pipe, which ends with the child, its only writer."""
        pidfd = orphan_guard.open_pidfd(self.pid)
        if pidfd is None:  # also if it has ended and other code has reaped it
            return alive_r
        os.close(alive_r)
        return pidfd

    def exit_code(self, timeout_s: float) -> int | None:
        deadline = time.monotonic() + timeout_s
        while self._exit_code is None:
            self._exit_code = self._reaped()
            if self._exit_code is None:
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    return None
                readable(self.sentinel, left_s)
        return self._exit_code

    def _reaped(self) -> int | None:
        """The exit code if it has ended; processes that its envs had started have ended then too."""
        try:
            ended = orphan_guard.reaped(self.pid)
        except ChildProcessError:
            self._guard.forget(self.pid)
            orphan_guard.kill_group_left_by(self.pid)
            return UNKNOWN_EXIT
        if ended is None:
            return None
        code, peak = ended
        self.peak_rss_bytes = peak  # guard: peak-memory-fork
        self._guard.forget(self.pid)
        return code


def _let_go_of_caller(caller: int, from_main: bool) -> None:
    """In a forked child: start the guard, and close the caller's descriptors."""
    orphan_guard.end_with(caller, thread_stays=from_main)  # only the main thread lives as long as the caller
    if output.fd is not None:
        output.redirect(output.fd)
    server = fork_server._server
    for fd in (*caller_fds, *(server.fds if server is not None else ())):
        try:
            os.close(fd)
        except OSError:
            pass
    caller_fds.clear()


def launch(method: StartMethod, fds: list[int], run_forked: Callable[[], int]) -> WorkerProcess:
    """Start a worker that gets `fds` or, if forked, runs `run_forked` in a copy of this process."""
    if method == "fork":
        return ForkedProcess(run_forked)
    return ServedProcess(fork_server.FORK if method == "forkserver" else fork_server.SPAWN, fds)

"""Worker processes over one shared block. They do not import the user's `__main__`; its objects are sent by value."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any

import cloudpickle
import psutil

from multiverse.adapters.registered import NOTHING_REGISTERED, additions
from multiverse.core.errors import PreflightError
from multiverse.core.layout import Array, Field, FieldName, Views
from multiverse.core.plan import Plan, StartMethod
from multiverse.core.wording import format_bytes
from multiverse.executors import machine, preflight, worker_loop
from multiverse.executors.env_recovery import OUT_OF_MEMORY
from multiverse.executors.launch import fork_server, start_methods
from multiverse.executors.launch.black_box import StackDump
from multiverse.executors.worker_host import Death, State, WorkerHost
from multiverse.executors.worker_loop import Assignment, LayoutMessage, Surroundings
from multiverse.ipc.block import Block, size_of
from multiverse.ipc.doorbell import Doorbell, new_doorbell
from multiverse.ipc.link import LinkBroken, PipeLink
from multiverse.ipc.mailbox import CONTROL, CallerMailbox


class ProcessLife:
    """Life of one worker process."""

    def __init__(self, process: start_methods.WorkerProcess, black_box: StackDump) -> None:
        self.process, self.pid, self._black_box = process, process.pid, black_box

    @property
    def sentinel(self) -> int:
        return self.process.sentinel

    def death(self) -> Death:
        code = self.process.exit_code(1.0)
        peak = self.process.peak_rss_bytes
        if code is None:
            return Death("closed its connection but is still running")
        if self.process.orphaned:
            return Death("ended with its fork server (which was killed or crashed)", "the next start makes a new one")
        if code == start_methods.UNKNOWN_EXIT:
            return Death("ended with code 255 or an unknown one (the program may ignore SIGCHLD or reap all children)")
        if code == OUT_OF_MEMORY:
            return Death("ended because one of its envs ran out of memory", "", peak, out_of_memory=True)
        if code >= 0:
            return Death(f"exited with code {code}", "", peak)
        hint = ""
        if -code == signal.SIGKILL:  # guard: possibly-out-of-memory
            available = machine.memory_available()
            free = f" ({format_bytes(available)} are free now)" if available < machine.UNKNOWN else ""
            hint = f"possibly out of memory{free}: fewer envs per machine need less"
        return Death(f"was killed by {_signal_name(-code)}", hint, peak)

    def state(self) -> State:
        try:
            process = psutil.Process(self.pid)
            status, rss_bytes = process.status(), process.memory_info().rss
        except (OSError, psutil.Error):
            if psutil.pid_exists(os.getpid()):
                return State("its process no longer exists")
            return State("its state is unknown without /proc", self._black_box.stack_of(self.pid))
        if status == psutil.STATUS_STOPPED:  # guard: stopped-is-called-stopped
            return State("it is stopped (SIGSTOP): `kill -CONT` resumes it", "", rss_bytes)
        return State(f"it is {status}", self._black_box.stack_of(self.pid), rss_bytes)  # guard: the-hung-stack-is-shown

    def end(self, deadline: float) -> bool:
        if self.process.exit_code(max(0.0, deadline - time.monotonic())) is None:
            # guard: kill-and-not-only-ask
            self.process.kill()  # works on stopped processes too; SIGTERM would stay pending
            self.process.exit_code(5.0)
        self.process.release()
        return True


class ProcessHost(WorkerHost):
    """A worker process, with the doorbells that it was started with."""

    def __init__(self, assignment: Assignment, link: PipeLink, life: ProcessLife, bells: tuple[Doorbell, Doorbell]):
        super().__init__(assignment.worker, assignment.config.env_ids, link, life)
        self.bells = bells
        self._fds = [link.fileno(), *bells[0].fds, *bells[1].fds]
        start_methods.caller_fds.update(self._fds)

    def connect(self, views: Views, workers: int, replacing: bool = False) -> None:
        """Send the layout of the block, which has its final size now."""
        views[CONTROL][self.worker] = 0
        self.bind(CallerMailbox(views[CONTROL], self.worker, self.bells), views)
        try:
            self.link.send(LayoutMessage(views.layout, workers, replacing))
        except LinkBroken as error:
            raise self.died() from error

    def close_bells(self) -> None:
        start_methods.caller_fds.difference_update(self._fds)
        for bell in self.bells:
            bell.close()


def pickled(assignments: Sequence[Assignment]) -> list[bytes]:
    """The pickled assignments; `PreflightError`, before anything is started, if they cannot be pickled."""
    try:
        return [cloudpickle.dumps(a) for a in assignments]
    except Exception as error:  # guard: what-cannot-travel-is-refused-first
        raise PreflightError(
            f"the env factory (with its kwargs, wrappers and reset plan) cannot be sent to a worker process: "
            f"{type(error).__name__}: {error}. Create objects that cannot be pickled (locks, sockets, open files) "
            "inside the factory, or use executor='thread' or start_method='fork'"
        ) from error


class Processes:
    """The worker processes of one vector env, over one block, with a file for their stacks."""

    def __init__(self) -> None:
        self.hosts: list[WorkerHost] = []
        self._block, self._black_box = Block.empty(), StackDump.empty()
        self._method: StartMethod = "forkserver"
        self._assignments: dict[int, tuple[Assignment, bytes]] = {}  # by worker, and pickled

    def start(self, assignments: Sequence[Assignment], plan: Plan) -> None:
        self._method = plan.start_method or "forkserver"
        preflight.check_processes(len(assignments), self._method)
        data = pickled(assignments) if self._method != "fork" else [b""] * len(assignments)
        self._assignments = {a.worker: (a, bytes_) for a, bytes_ in zip(assignments, data)}
        surroundings = self._surroundings()
        for worker in self._assignments:
            self.hosts.append(self._started(worker, surroundings))

    def _surroundings(self) -> Surroundings:
        """The caller's surroundings. A forked worker has its registry; others start with the fork server's."""
        forked = self._method == "fork"
        return Surroundings.here(NOTHING_REGISTERED if forked else additions(fork_server.fork_server().registered()))

    def _started(self, worker: int, surroundings: Surroundings) -> ProcessHost:
        """Start a process. If the system refuses, this start alone fails, with a typed error."""
        try:
            host = self._launched(worker)
        except (OSError, PreflightError) as error:  # guard: a-start-that-fails-is-typed
            more = f"{error.strerror}. {start_methods.MORE_PROCESSES}" if isinstance(error, OSError) else str(error)
            raise PreflightError(f"worker {worker} could not be started: {more}") from error
        if self._method != "fork":
            try:
                host.link.send((surroundings, self._assignments[worker][1]))
            except LinkBroken as error:
                died = host.died()
                host.kill()
                raise died from error
        return host

    def _launched(self, worker: int) -> ProcessHost:
        assignment, _ = self._assignments[worker]
        with contextlib.ExitStack() as closed_on_error:
            ours, theirs = _connected()
            closed_on_error.callback(ours.close)
            with contextlib.closing(theirs):
                opened = [closed_on_error.enter_context(contextlib.closing(new_doorbell())) for _ in range(2)]
                bells = opened[0], opened[1]
                fds = [theirs.fileno(), self._block.fd, self._black_box.fd, *bells[0].fds, *bells[1].fds]

                def run_forked() -> int:
                    ours.close()
                    return worker_loop.run_process(assignment, PipeLink(theirs), fds)

                process = start_methods.launch(self._method, fds, run_forked)
            closed_on_error.pop_all()
        return ProcessHost(assignment, PipeLink(ours), ProcessLife(process, self._black_box), bells)

    def arrays(self, fields: Sequence[Field]) -> dict[FieldName, Array]:
        self._block.resize(size_of(fields))
        return self._block.views(fields)

    def connect(self, views: Views) -> None:
        for host in self.hosts:
            assert isinstance(host, ProcessHost)
            host.connect(views, len(self.hosts))

    def start_again(self, host: WorkerHost, views: Views, check: Callable[[WorkerHost], None]) -> WorkerHost:
        new = self._started(host.worker, self._surroundings())
        try:
            check(new)
            new.connect(views, len(self.hosts), replacing=True)
        except BaseException:
            new.kill()
            raise
        return new

    def abandon(self) -> None:
        pass  # the workers end with their links

    def close(self) -> None:
        self._block.close()
        self._black_box.close()


def _connected() -> tuple[Connection[Any, Any], Connection[Any, Any]]:
    """Both ends of a link, as `multiprocessing.Pipe` makes them, but independent of programs that patch it."""
    ours, theirs = socket.socketpair()
    return Connection(ours.detach()), Connection(theirs.detach())


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def usable_here() -> bool:
    """Whether this platform has worker processes; others have serial and thread only."""
    return os.name == "posix"

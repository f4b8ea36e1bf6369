"""Worker processes over one shared block. Nothing of the user's `__main__` is imported in them: it travels by value."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

import cloudpickle
import psutil

from multiverse.contracts.errors import PreflightError, in_bytes
from multiverse.contracts.plan import StartMethod
from multiverse.contracts.views import Views
from multiverse.executors import worker_loop
from multiverse.executors.hosts import Death, State, WorkerHost
from multiverse.executors.launch import start_methods
from multiverse.executors.launch.black_box import BlackBox
from multiverse.executors.worker_loop import Assignment, LayOut, Surroundings
from multiverse.memory.block import Block
from multiverse.memory.doorbell import Doorbell, descriptors_per_doorbell, new_doorbell
from multiverse.memory.link import LinkBroken, PipeLink
from multiverse.memory.mailbox import CONTROL, CallerMailbox


class Shared:
    """What all worker processes of an executor share with the caller: the block, and a place for stacks."""

    def __init__(self) -> None:
        self.block, self.black_box = Block.empty(), BlackBox.empty()

    def close(self) -> None:
        self.block.close()
        self.black_box.close()


def descriptors_per_worker() -> int:
    """Ours while it runs (link, sentinel, two bells), plus the worker's end of the link while it starts."""
    return 3 + 2 * descriptors_per_doorbell()


class ProcessLife:
    """One incarnation of a worker process."""

    def __init__(self, process: start_methods.WorkerProcess, black_box: BlackBox) -> None:
        self.process, self._black_box = process, black_box

    @property
    def sentinel(self) -> int:
        return self.process.sentinel

    @property
    def pid(self) -> int:
        return self.process.pid

    def death(self) -> Death:
        code = self.process.exit_code(1.0)
        peak = self.process.peak_rss_bytes
        if code is None:
            return Death("closed its connection but lives on")
        if code == start_methods.UNKNOWN_EXIT:
            return Death("ended with code 255, or unseen (does the program ignore SIGCHLD, or reap any child?)")
        if code >= 0:
            return Death(f"exited with code {code}", "", peak)
        hint = ""
        if -code == signal.SIGKILL:  # guard: possibly-out-of-memory
            free = in_bytes(psutil.virtual_memory().available)
            hint = f"possibly out of memory ({free} are free now): fewer envs per machine need less"
        return Death(f"was killed by {_signal_name(-code)}", hint, peak)

    def state(self) -> State:
        try:
            process = psutil.Process(self.pid)
            status, rss_bytes = process.status(), process.memory_info().rss
        except psutil.Error:
            return State("it is gone")
        if status == psutil.STATUS_STOPPED:  # guard: stopped-is-called-stopped
            return State("it is stopped (SIGSTOP): kill -CONT lets it go on", "", rss_bytes)
        return State(f"it is {status}", self._black_box.stack_of(self.pid), rss_bytes)  # guard: the-hung-stack-is-shown

    def end(self, deadline: float) -> bool:
        if self.process.exit_code(max(0.0, deadline - time.monotonic())) is None:
            # guard: kill-and-not-only-ask
            self.process.kill()  # also when it is stopped: SIGTERM would stay pending there
            self.process.exit_code(5.0)
        self.process.release()
        return True


class ProcessHost(WorkerHost):
    """A worker process, with the bells it was started with."""

    def __init__(self, assignment: Assignment, link: PipeLink, life: ProcessLife, bells: tuple[Doorbell, Doorbell]):
        super().__init__(assignment.worker, assignment.config.env_ids, link, life)
        self.bells = bells
        self._fds = [link.fileno(), *bells[0].fds, *bells[1].fds]
        start_methods.caller_fds.update(self._fds)

    def connect(self, views: Views, workers: int, replacing: bool = False) -> None:
        """Tell the worker what lies where in the block, which has its size by now."""
        views[CONTROL][self.worker] = 0
        self.bind(CallerMailbox(views[CONTROL], self.worker, *self.bells), views)
        try:
            self.link.send(LayOut(views.layout, workers, replacing))
        except LinkBroken as error:
            raise self.died() from error

    def be_replaced_by(self, new: ProcessHost) -> None:
        """From now on this host *is* the new worker: whoever holds it need not know. What it was asked is lost."""
        asked = self.asked
        self.__dict__.update(new.__dict__)
        self.asked = self.collected = asked

    def close_bells(self) -> None:
        start_methods.caller_fds.difference_update(self._fds)
        for bell in self.bells:
            bell.close()


def pickled(assignments: Sequence[Assignment]) -> list[bytes]:
    """The assignments as bytes, or the reason why they cannot travel: found out before anything is started."""
    try:
        return [cloudpickle.dumps(a) for a in assignments]
    except Exception as error:  # guard: what-cannot-travel-is-refused-first
        raise PreflightError(
            f"the env factory (with its kwargs, wrappers and reset plan) cannot be sent to a worker process: "
            f"{type(error).__name__}: {error}. Build what cannot be pickled (locks, sockets, open files) inside the "
            "factory, or use executor='thread', or start_method='fork'"
        ) from error


def start_process(
    assignment: Assignment, data: bytes, method: StartMethod, shared: Shared, surroundings: Surroundings
) -> ProcessHost:
    ours, theirs = _connected()
    bells = new_doorbell(), new_doorbell()
    fds = [theirs.fileno(), shared.block.fd, shared.black_box.fd, *bells[0].fds, *bells[1].fds]

    def run_forked() -> int:
        ours.close()
        return worker_loop.run_process(assignment, PipeLink(theirs), fds)

    try:
        process = start_methods.launch(method, fds, run_forked)
    except BaseException:
        for end in (ours, *bells):
            end.close()
        raise
    finally:
        theirs.close()
    host = ProcessHost(assignment, PipeLink(ours), ProcessLife(process, shared.black_box), bells)
    if method != "fork":
        try:
            host.link.send((surroundings, data))
        except LinkBroken as error:
            died = host.died()
            host.kill()
            raise died from error
    return host


def _connected() -> tuple[Connection[Any, Any], Connection[Any, Any]]:
    """Both ends of a link. As `multiprocessing.Pipe` makes them, and yet ours, whatever a program does to that."""
    ours, theirs = socket.socketpair()
    return Connection(ours.detach()), Connection(theirs.detach())


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def usable_here() -> bool:
    """Whether worker processes exist on this platform; elsewhere serial and thread do."""
    return os.name == "posix"

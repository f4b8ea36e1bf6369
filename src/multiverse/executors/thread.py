"""Worker threads, for envs whose step releases the GIL. They never spin, because a spinning thread would hold it."""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from multiverse.core.errors import PreflightError, RemoteError
from multiverse.core.layout import Array, Field, FieldName, Views
from multiverse.core.plan import Plan
from multiverse.executors import preflight, worker_loop
from multiverse.executors.launch import crash_report
from multiverse.executors.worker_host import Death, State, WorkerHost
from multiverse.executors.worker_loop import Assignment
from multiverse.ipc.block import private_arrays
from multiverse.ipc.doorbell import new_doorbell
from multiverse.ipc.link import Link, QueueLink
from multiverse.ipc.mailbox import CONTROL, CallerMailbox, WorkerMailbox
from multiverse.ipc.waiting import WaitSet


class _StartGivenUp(Exception):
    """The caller has abandoned the envs."""


class ThreadLife:
    """Life of a worker thread, a daemon: if it hangs it cannot be killed, but the program can end."""

    pid = None

    def __init__(self, assignment: Assignment, link: Link) -> None:
        self._assignment, self._link = assignment, link
        self._ended = new_doorbell()
        self._cause = "ended"
        # guard: a-hung-thread-does-not-keep-the-program
        self._thread = threading.Thread(target=self._run, name=f"multiverse-worker-{assignment.worker}", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:
            self._ended.close()
            # guard: a-thread-that-cannot-start-is-refused
            raise PreflightError(
                f"worker {assignment.worker} cannot be started: {error}. The limit of processes (ulimit -u) also "
                "counts threads: raise it, use fewer workers, or executor='serial'"
            ) from error

    @property
    def sentinel(self) -> int:
        return self._ended.wait_fd

    def death(self) -> Death:
        return Death(self._cause)

    def state(self) -> State:
        stack = stack_of(self._thread)
        return State("it is a thread, and threads cannot be killed", stack)  # guard: threads-cannot-be-killed-is-said

    def end(self, deadline: float) -> bool:
        self._thread.join(max(0.0, deadline - time.monotonic()))
        if self._thread.is_alive():
            return False
        self._ended.close()
        return True

    def _run(self) -> None:
        try:
            worker_loop.work(self._assignment, self._link, _connect, WaitSet())
        except _StartGivenUp:
            pass
        # guard: sys-exit-ends-its-thread-only
        except BaseException as error:  # also SystemExit: an env that calls sys.exit() ends only its thread
            self._cause = f"was ended by {type(error).__name__}: {error}"
            self._link.send(RemoteError.of(error))  # received during the start; later its sentinel reports the end
        finally:
            self._ended.ring()


def stack_of(thread: threading.Thread) -> str:
    """Stack of a thread of this process, innermost frame first, in faulthandler's format."""
    frame = sys._current_frames().get(thread.ident or 0)
    frames = reversed(traceback.extract_stack(frame)) if frame is not None else ()
    return "".join(f'  File "{f.filename}", line {f.lineno} in {f.name}\n' for f in frames)


class Threads:
    """The worker threads of one vector env, over arrays of this process."""

    def __init__(self) -> None:
        self.hosts: list[WorkerHost] = []
        self._watched = True
        crash_report.watch(None)

    def start(self, assignments: Sequence[Assignment], plan: Plan) -> None:
        preflight.check_threads(len(assignments))
        for assignment in assignments:
            ours, theirs = QueueLink.pair()
            life = ThreadLife(assignment, theirs)
            self.hosts.append(WorkerHost(assignment.worker, assignment.config.env_ids, ours, life))

    def arrays(self, fields: Sequence[Field]) -> dict[FieldName, Array]:
        return private_arrays(fields)

    def connect(self, views: Views) -> None:
        words = views[CONTROL]
        for host in self.hosts:
            bells = new_doorbell(), new_doorbell()
            host.bind(CallerMailbox(words, host.worker, bells), views)
            host.link.send((views, WorkerMailbox(words, host.worker, bells)))

    def start_again(self, host: WorkerHost, views: Views, check: Callable[[WorkerHost], None]) -> WorkerHost:
        raise host.died()  # threads cannot be ended, so they are never replaced

    def abandon(self) -> None:
        for host in self.hosts:  # instead of arrays: the thread closes its envs and ends
            host.link.send(None)

    def close(self) -> None:
        if self._watched:
            crash_report.unwatch(None)
        self._watched = False


def _connect(answer: Any) -> worker_loop.Connected:
    if answer is None:
        raise _StartGivenUp
    views, mailbox = answer
    return views, mailbox, False

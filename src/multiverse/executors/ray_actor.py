"""A worker inside a Ray actor: the usual worker loop, in a thread, over arrays that mirror the caller's."""

from __future__ import annotations

import os
import pickle
import sys
import threading
import traceback

import psutil

from multiverse.core.errors import RemoteError
from multiverse.core.imports import loads_modules
from multiverse.core.layout import Layout, Views
from multiverse.executors import env_recovery, worker_loop
from multiverse.executors.step_reply import EXTRAS
from multiverse.executors.thread import stack_of
from multiverse.executors.worker_loop import CLOSE, ROWS, RUN, Surroundings
from multiverse.ipc.block import Changes, Mirror, private_arrays
from multiverse.ipc.doorbell import new_doorbell
from multiverse.ipc.link import PackedLink
from multiverse.ipc.mailbox import CONTROL, CallerMailbox, WorkerMailbox, control_field
from multiverse.ipc.waiting import WaitSet


class RayActor:
    """The actor. It processes one request at a time; `stop` and `state` may be called during a request."""

    def __init__(self, surroundings: Surroundings, assignment: bytes) -> None:
        self._inner, self._link = PackedLink.beside(by_name_first=True)
        self._mailbox: CallerMailbox | None = None
        self._wait_set = WaitSet()
        self._stopped = self._rows = -1  # numbers of the last rollout to be stopped, and of the last one begun
        self._rows_lock = threading.Lock()  # held to begin or stop a rollout
        self._thread = threading.Thread(target=self._work, args=(surroundings, assignment), daemon=True)
        self._thread.start()

    @loads_modules
    def _work(self, surroundings: Surroundings, data: bytes) -> None:
        try:
            try:
                surroundings.adopt_elsewhere()
                assignment = pickle.loads(data)
            except Exception as error:
                self._inner.send(RemoteError.of(error))
                return
            self._env_ids = assignment.config.env_ids
            env_recovery.replaceable_process = assignment.config.failures.restarts
            worker_loop.work(assignment, self._inner, lambda replacing: (*self._bound, replacing), WaitSet())
        except SystemExit as error:  # ends a worker process too
            self._exit(error.code if isinstance(error.code, int) else int(error.code is not None))
        except BaseException:
            traceback.print_exc()
            self._exit(1)

    def _exit(self, code: int) -> None:
        sys.stderr.flush()
        os._exit(code)  # guard: an-actor-ends-with-its-worker

    def described(self) -> tuple[bytes, int, str]:
        """(the worker's description of its envs, its pid, its node)."""
        import ray

        return self._link.receive()[1], os.getpid(), ray.get_runtime_context().get_node_id()

    def connect(self, layout: Layout, changes: Changes, replacing: bool) -> None:
        arrays = private_arrays([control_field(1), *layout.fields()])
        views, bells = Views.over(layout, arrays), (new_doorbell(), new_doorbell())
        self._mirror = Mirror(views, self._env_ids)
        self._mirror.apply(changes)
        self._mailbox = CallerMailbox(arrays[CONTROL], 0, bells)
        self._mailbox.add_to(self._wait_set)
        self._bound = views, WorkerMailbox(arrays[CONTROL], 0, bells)
        self._link.send_packed(pickle.dumps(replacing), 0)

    def request(self, packed: bytes, stored: bytes | None) -> bytes:
        """(command, number, message or None, changes) → (flags, message or None, the row reached, changes). Both are
        pickled here, because Ray passes bytes unchanged and is slow with all other types."""
        command, number, message, changes = pickle.loads(packed)
        message = message if stored is None else stored
        mailbox = self._mailbox
        assert mailbox is not None
        self._mirror.apply(changes)
        if command == ROWS:
            self._begin_rows(mailbox, number)
        mailbox.post(command, number)
        if message is not None:
            self._link.send_packed(message, number)
        self._wait_set.sleep_until(mailbox.answered, None)
        flags = mailbox.flags()
        more = command == RUN or (flags if command == ROWS else flags & EXTRAS)
        reply = self._link.receive()[1] if more else None
        return pickle.dumps((flags, reply, mailbox.row, self._mirror.changes()))

    def stop(self, number: int) -> None:
        """Stop the rollout of this number, running or about to begin, after its current row."""
        with self._rows_lock:
            self._stopped = max(self._stopped, number)
            if self._mailbox is not None and self._rows == number:  # not a later one
                self._mailbox.stop_rows()

    def _begin_rows(self, mailbox: CallerMailbox, number: int) -> None:
        with self._rows_lock:
            self._rows = number
            mailbox.begin_rows(0)
            if self._stopped == number:  # stopped before it began
                mailbox.stop_rows()

    def state(self) -> tuple[int, str, int]:
        """(its row, its Python stack, its memory in bytes)."""
        row = 0 if self._mailbox is None else self._mailbox.row
        return row, stack_of(self._thread), psutil.Process().memory_info().rss

    def close(self, number: int) -> bytes:
        """Close the envs; returns the errors that they raised, pickled."""
        assert self._mailbox is not None
        self._mailbox.post(CLOSE, number)
        return bytes(self._link.receive()[1])

"""Many steps in one request: every host fills the rows of a rollout independently, and the caller waits for all.

A row has the guarantees of a step: its time limit is that of a step, and if a worker is lost, only its current row is:
the worker that replaces it continues with the next one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from multiverse.core.errors import ReplyTimeout, WorkerDied
from multiverse.executors.executor import Executor
from multiverse.executors.hosts import Host
from multiverse.executors.step_reply import Extras
from multiverse.executors.worker_host import RunFunction, WorkerHost
from multiverse.ipc.interrupts import HeldInterrupts

OnLost = Callable[[WorkerHost, int], int]
"""(a worker that was lost and replaced, its row at that time) → the row to continue with."""
OnAnswer = Callable[[WorkerHost, Extras], None]
"""(a worker that has answered, its extras)."""
Again = Callable[[range], tuple[Any, ...] | None]
"""(the envs of a worker that has answered) → the arguments of its next request; None: not yet."""

REST_S = 0.002
"""Interval at which `again` is called for resting workers."""


class RowRun:
    """Runs function(env_range, step, go_on, first row, *arguments) on every host in parallel. The function takes one
    step per row, and calls `go_on(row)` before it; False stops it."""

    def __init__(
        self,
        executor: Executor,
        function: RunFunction,
        arguments: tuple[Any, ...],
        should_stop: Callable[[], bool],
        on_lost: OnLost,
        on_answer: OnAnswer | None = None,
        again: Again | None = None,
    ) -> None:
        """`on_answer`, `again`: workers do not wait for each other, and the run continues until it is stopped."""
        self._executor, self._function, self._arguments = executor, function, arguments
        self._should_stop, self._on_lost, self._on_answer, self._again = should_stop, on_lost, on_answer, again
        self._resting: list[WorkerHost] = []
        self._requests: dict[WorkerHost, tuple[Any, ...]] = {}  # arguments of each worker's last request
        self._waiting: list[WorkerHost] = []
        self._extras: dict[Host, Extras] = {}
        self._unreported_steps = 0  # env steps of workers that were lost after the stop
        self._own_row = 0  # of the caller's own share
        self.stopped = False

    def run(self) -> dict[Host, Extras]:
        """Run until all hosts have finished; returns their extras. A failed env stops all hosts, as does
        `should_stop`."""
        executor = self._executor
        try:
            self._ask(executor.workers, 0, self._arguments)
            if executor.local is not None:
                own = executor.local
                self._take(own, own.run_rows(executor.number, self._function, self._arguments, self._go_on))
            while self._waiting or (self._resting and not self.stopped):
                until = time.monotonic() + REST_S if self._resting else None
                executor.sleep_with_patience(self._anything_new, self._waiting, until)
                for worker in [w for w in self._waiting if w in executor.lost or w.answered()]:
                    self._hear(worker)
                if self._resting and not self.stopped:
                    self._wake()
        except BaseException:
            self._stop()
            raise
        return self._extras

    def env_steps(self) -> int:
        """Number of env steps taken so far that were not passed to `on_answer`."""
        executor = self._executor
        own = 0 if executor.local is None else self._own_row * len(executor.local.env_ids)
        workers = executor.workers if self._on_answer is None else self._waiting
        return own + self._unreported_steps + sum(worker.mailbox.row * len(worker.env_ids) for worker in workers)

    def _ask(self, workers: Sequence[WorkerHost], row: int, arguments: tuple[Any, ...]) -> None:
        executor = self._executor
        executor.memory.check(time.monotonic(), executor.workers, workers)
        prepared = workers[0].prepare(self._function, (row, *arguments)) if workers else None  # equal for all
        executor.number += 1
        with HeldInterrupts():
            for worker in workers:
                self._requests[worker] = arguments
                worker.post_rows(executor.number, prepared, row)
                self._waiting.append(worker)

    def _hear(self, worker: WorkerHost) -> None:
        """Handle a worker that has answered, or is lost."""
        executor = self._executor
        if worker not in executor.lost:
            try:
                extras = worker.finish_run()
            except (WorkerDied, ReplyTimeout) as error:
                executor.recover_cut_off(worker, error)
            else:
                self._waiting.remove(worker)
                self._take(worker, extras)
                if self._on_answer is not None:
                    self._on_answer(worker, extras)
                    self._resting.append(worker)
                return
        self._waiting.remove(worker)
        lost_row = executor.lost[worker].row
        row = self._on_lost(worker, lost_row)
        if not self.stopped:
            self._ask([worker], row, self._requests[worker])  # guard: a-lost-worker-costs-one-row
        elif self._on_answer is not None:
            self._unreported_steps += lost_row * len(worker.env_ids)

    def _wake(self) -> None:
        """Send the next request to resting workers that may begin it."""
        assert self._again is not None
        for worker in self._resting[:]:
            if (arguments := self._again(worker.env_ids)) is not None:
                self._resting.remove(worker)
                self._ask([worker], 0, arguments)

    def _take(self, host: Host, extras: Extras) -> None:
        self._extras[host] = extras
        if any(step.failures for step in extras.before):
            self._stop()

    def _anything_new(self) -> bool:
        if not self.stopped and self._should_stop():
            self._stop()
        return bool(self._executor.lost) or any(worker.answered() for worker in self._waiting)

    def _go_on(self, row: int) -> bool:
        """Called before every row of the caller's own share."""
        self._own_row = row
        if not self.stopped and self._should_stop():
            self._stop()
        return not self.stopped

    def _stop(self) -> None:
        self.stopped = True
        for worker in self._executor.workers:
            worker.mailbox.stop_rows()  # guard: workers-are-told-to-stop

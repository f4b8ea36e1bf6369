"""Many steps in one request: every host goes through the rows of a rollout by itself, and the caller waits for all.

A row is as good as a step of its own: its deadline is that of a step, and a worker that is lost in it costs that row
only: the worker that replaces it goes on with the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from multiverse.contracts.errors import ReplyTimeout, WorkerDied
from multiverse.executors.executor import Executor
from multiverse.executors.hosts import Host, RunFunction, WorkerHost
from multiverse.executors.step_reply import Extras
from multiverse.memory.interrupts import HeldInterrupts

OnLost = Callable[[WorkerHost, int], int]
"""(a worker that was lost and replaced, the row it was in) → the row to go on with."""


class RowRun:
    """function(env_range, step, go_on, first row, *arguments) on every host, side by side: it takes one step for each
    row, and calls `go_on(row)` before it; False ends it."""

    def __init__(
        self,
        executor: Executor,
        function: RunFunction,
        arguments: tuple[Any, ...],
        should_stop: Callable[[], bool],
        on_lost: OnLost,
    ) -> None:
        self._executor, self._function, self._arguments = executor, function, arguments
        self._should_stop, self._on_lost = should_stop, on_lost
        self._waiting: list[WorkerHost] = []
        self._said: dict[Host, Extras] = {}
        self._own_row = 0  # of the caller's own share
        self.stopped = False

    def run(self) -> dict[Host, Extras]:
        """What the hosts had to say. An env that failed stops all of them, and so does `should_stop`."""
        executor = self._executor
        try:
            self._ask(executor.workers, 0)
            if executor.local is not None:
                own = executor.local
                self._take(own, own.run_rows(executor.number, self._function, self._arguments, self._go_on))
            while self._waiting:
                executor.sleep_with_patience(self._anything_new, self._waiting, None)
                for worker in [w for w in self._waiting if w in executor.lost or w.answered()]:
                    self._hear(worker)
        except BaseException:
            self._stop()
            raise
        return self._said

    def env_steps(self) -> int:
        """Taken so far."""
        executor = self._executor
        own = 0 if executor.local is None else self._own_row * len(executor.local.env_ids)
        return own + sum(worker.mailbox.row * len(worker.env_ids) for worker in executor.workers)

    def _ask(self, workers: Sequence[WorkerHost], row: int) -> None:
        executor = self._executor
        prepared = workers[0].prepare(self._function, (row, *self._arguments)) if workers else None  # alike for all
        executor.number += 1
        with HeldInterrupts():
            for worker in workers:
                worker.post_rows(executor.number, prepared, row)
                self._waiting.append(worker)

    def _hear(self, worker: WorkerHost) -> None:
        """It has answered, or is lost."""
        executor = self._executor
        self._waiting.remove(worker)
        if worker not in executor.lost:
            try:
                self._take(worker, worker.finish_run())
                return
            except (WorkerDied, ReplyTimeout) as error:
                executor.recover_cut_off(worker, error)
        row = self._on_lost(worker, executor.lost[worker].row)
        if not self.stopped:
            self._ask([worker], row)  # guard: a-lost-worker-costs-one-row

    def _take(self, host: Host, said: Extras) -> None:
        self._said[host] = said
        if any(step.failures for step in said.before):
            self._stop()

    def _anything_new(self) -> bool:
        if not self.stopped and self._should_stop():
            self._stop()
        return bool(self._executor.lost) or any(worker.answered() for worker in self._waiting)

    def _go_on(self, row: int) -> bool:
        """Before every row of the caller's own share."""
        self._own_row = row
        if not self.stopped and self._should_stop():
            self._stop()
        return not self.stopped

    def _stop(self) -> None:
        self.stopped = True
        for worker in self._executor.workers:
            worker.mailbox.stop_rows()  # guard: workers-are-told-to-stop

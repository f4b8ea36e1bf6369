"""The executor: sends requests to its hosts, collects their answers, and has lost workers replaced."""

from __future__ import annotations

import atexit
import os
import time
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from multiverse.core.errors import EnvFailed, MultiverseError, RemoteError, ReplyTimeout, WorkerDied
from multiverse.core.layout import Views
from multiverse.core.plan import Waiting
from multiverse.executors.backends import Workers
from multiverse.executors.env_range import EnvRange
from multiverse.executors.hosts import Host, LocalHost
from multiverse.executors.step_reply import EXTRAS, Extras
from multiverse.executors.supervisor import Supervisor
from multiverse.executors.worker_host import RunFunction, WorkerHost
from multiverse.executors.worker_memory import WorkerMemory
from multiverse.executors.worker_waits import WorkerWaits
from multiverse.ipc.env_rows import put_object_rows
from multiverse.ipc.interrupts import HeldInterrupts, close_by

_live: weakref.WeakSet[Executor] = weakref.WeakSet()


def _close_live() -> None:
    """At interpreter exit: end the workers of vector envs that were not closed, before the fork server ends."""
    for executor in list(_live):
        try:
            executor.close()
        except BaseException:  # Ctrl-C, or an env that cannot be closed: too late to report it
            pass


@dataclass(frozen=True, slots=True)
class Lost:
    """A worker that was replaced: the cause, the extras of the new envs' first reset, and the lost worker's row."""

    cause: MultiverseError
    extras: Extras
    row: int


Answers = tuple[dict[Host, Any], dict[Host, MultiverseError]]
"""Results and errors of a call, by host."""


def results_of(answers: Answers) -> dict[Host, Any]:
    """The results; raises the first error, if there is one."""
    results, errors = answers
    if errors:
        raise next(iter(errors.values()))
    return results


class _LostAgain(Exception):
    """A worker that was started to replace a lost one is lost too."""

    def __init__(self, cause: MultiverseError) -> None:
        self.cause = cause


class Executor(WorkerWaits):
    """Steps hosts together or one by one, for one caller at a time. `close` does nothing in a forked copy."""

    def __init__(self, hosts: Sequence[Host], views: Views, waiting: Waiting, team: Workers | None) -> None:
        super().__init__(waiting)
        self.hosts = list(hosts)
        self.views = views
        self.known_tasks: int | None = None  # number of tasks that hosts know by index
        self._team = team
        self.local = next((h for h in hosts if isinstance(h, LocalHost)), None)
        self.workers = [h for h in hosts if isinstance(h, WorkerHost)]
        self.memory = WorkerMemory()
        self.number = 0  # of the last request
        self._recovering: list[WorkerHost] = []
        self._owner = os.getpid()
        _live.add(self)
        atexit.unregister(_close_live)
        atexit.register(_close_live)  # again, so that it runs before functions registered in the meantime
        self.supervisor: Supervisor | None = None
        self.broken = False  # a worker was lost and could not be replaced
        self.lost: dict[Host, Lost] = {}  # workers that were replaced, until that was reported
        for worker in self.workers:
            self._watch(worker)

    @property
    def worker_pids(self) -> tuple[int, ...]:
        return tuple(w.life.pid for w in self.workers if w.life.pid is not None)

    # -- lock-step -------------------------------------------------------------------------------------------
    def step_all(self) -> int:
        """Step every env, with the actions in the block. Returns the hosts' flags; call `settle` after reading them."""
        self.start_step_all()
        return self.finish_step_all()

    def start_step_all(self) -> None:
        """Begin a step of every env: the workers start, the caller's own share does not yet."""
        self.number = number = self.number + 1
        now = time.monotonic()
        self.memory.check(now, self.workers, self.workers)
        for worker in self.workers:
            worker.asked_at = now
            worker.post_step(number, False)
        if self.local is not None:
            self.local.post_step(number, False)

    def finish_step_all(self) -> int:
        """Finish a step of every env; may be called again after an interrupt."""
        flags = 0
        if self.local is not None and not self.local.answered():
            self.local.step_now()
        for worker in self.workers:
            if not worker.answered() and not self._waiting.look(worker.answered):
                while not worker.answered():  # twice if a worker that has hung before is in a reset
                    self._sleep_for([worker], self.patience.limit_s(worker))  # guard: a-step-has-a-deadline
        for host in self.hosts:
            flags |= host.flags()
        return flags

    def settle(self, hosts: Sequence[Host]) -> None:
        """Mark the answers of these hosts as collected, and their losses as reported."""
        for host in hosts:
            host.collected = host.asked
        if self.lost:
            self.take_lost(hosts)
        if self._late:
            self._count_late(hosts)

    def _count_late(self, hosts: Sequence[Host]) -> None:
        """Count answers that came after their time limit."""
        answered = [worker for worker in self._late if worker in hosts]
        self.failures.late_replies += len(answered)  # guard: late-replies-are-counted
        self._late = [worker for worker in self._late if worker not in answered]

    def complete_step(self, number_before: int) -> bool:
        """After an interrupt of a step of all envs: ensure that each host was asked exactly once, and that no answer
        counts as collected. False if the step had not begun."""
        number = number_before + 1
        if self.number < number:
            return False
        now = time.monotonic()
        for host in self.hosts:
            host.asked_at = now
            if host.asked < number:
                host.post_step(number, False)
            elif host.asked == number:
                host.post_again()
            host.collected = number_before  # also of a worker that was replaced meanwhile, and got further requests
        return True

    # -- first come, first served ----------------------------------------------------------------------------
    @property
    def pending(self) -> list[Host]:
        return [h for h in self.hosts if h.pending]

    def post_step(self, hosts: Mapping[Host, bool]) -> None:
        """Ask hosts to step: all their envs or, if True, only those marked in the block."""
        self.number = number = self.number + 1
        now = time.monotonic()
        self.memory.check(now, self.workers, (host for host in hosts if isinstance(host, WorkerHost)))
        with HeldInterrupts():
            for host, only_some in hosts.items():
                host.asked_at = now  # guard: time-runs-from-when-it-was-asked
                host.post_step(number, only_some)

    def wait(self, sizes: Mapping[Host, int], enough_envs: int, deadline: float | None) -> list[Host]:
        """Wait until hosts with at least `enough_envs` envs are done, and return them. `sizes`: number of envs that
        each host was asked for. Empty if the caller's deadline passed first. The answers are not settled.
        """
        local = self.local if self.local in sizes else None
        if local is not None and not local.answered():
            local.step_now()
        workers = [h for h in sizes if isinstance(h, WorkerHost)]
        missing = enough_envs - (sizes[local] if local is not None else 0)

        def enough() -> bool:
            return sum(sizes[w] for w in workers if w.answered()) >= missing

        if not self._waiting.look(enough) and not self.sleep_with_patience(enough, workers, deadline):
            return []
        unanswered = [w for w in workers if not w.answered()]
        if unanswered:  # report the losses among the other workers without waiting for them
            self._wait_set.check()
            while (worker := self._first_dead(unanswered)) is not None:
                self.recover(worker, worker.died())
            self._recover_overdue(unanswered)
        return [h for h in sizes if h.answered()]

    def recover(self, worker: WorkerHost, cause: MultiverseError) -> None:
        """Replace a lost worker; without a supervisor, or past what it allows, the cause is raised."""
        if self.supervisor is None:
            raise cause
        if worker in self._recovering:
            raise _LostAgain(cause)
        self.patience.note_loss(worker, cause)
        self.broken = True  # until it is whole again
        row = worker.mailbox.row
        # guard: a-hung-worker-is-replaced
        begin = worker.was_stepping and self.views.layout.with_final_observations  # same_step shows the next episode
        extras = self._replaced(worker, cause, begin)
        self._late = [late for late in self._late if late is not worker]  # its answer will never come
        self.failures.worker_restarts += 1
        self.keep_objects(worker, extras)
        self.lost[worker] = Lost(cause, extras, row)
        self.broken = False

    def recover_cut_off(self, worker: WorkerHost, cause: WorkerDied | ReplyTimeout) -> None:
        """Recover a worker that died or was stopped between its word and the message by pipe."""
        self.failures.timeouts += isinstance(cause, ReplyTimeout)
        self.recover(worker, cause)

    def _replaced(self, worker: WorkerHost, cause: MultiverseError, begin: bool) -> Extras:
        """Try until a new worker has taken over, or the supervisor raises."""
        assert self.supervisor is not None
        self._recovering.append(worker)
        try:
            while True:
                self._unwatch(worker)
                self.supervisor.allow(worker, cause)
                try:
                    self.supervisor.replace(worker, self.views, self.timeouts.reset_s)
                    self._dead[:] = [dead for dead in self._dead if dead is not worker]  # in place: sentinels hold it
                    self._watch(worker)
                    return self._taken_over(worker, begin)
                except _LostAgain as again:
                    cause = again.cause
                # guard: a-replacement-may-fail-too
                except MultiverseError as again:  # it could not be started, built or reset
                    cause = again
        finally:
            self._recovering.remove(worker)

    def _taken_over(self, worker: WorkerHost, begin: bool) -> Extras:
        self.start_run(EnvRange.take_over, {worker: (begin,)})
        self._sleep_for([worker], self.timeouts.reset_s)
        extras: Extras = worker.finish_run()
        return extras

    def take_lost(self, hosts: Iterable[Host]) -> dict[Host, Lost]:
        """Take the hosts among these that were replaced since the last call; their requests are lost."""
        return {host: self.lost.pop(host) for host in list(hosts) if host in self.lost}

    # -- everything else -------------------------------------------------------------------------------------
    def run(
        self, function: RunFunction, arguments: Mapping[Host, tuple[Any, ...]], timeout_s: float | None = None
    ) -> dict[Host, Any]:
        """Run function(env_range, *arguments) on each host named, in parallel; raises errors when all are done."""
        return results_of(self.try_run(function, arguments, timeout_s))

    def try_run(
        self, function: RunFunction, arguments: Mapping[Host, tuple[Any, ...]], timeout_s: float | None
    ) -> Answers:
        """Likewise, returning results and errors by host. A host that was lost meanwhile is in `lost` too."""
        self.start_run(function, arguments)
        return self.finish_run(function, arguments, timeout_s)

    def start_run(self, function: RunFunction, arguments: Mapping[Host, tuple[Any, ...]]) -> None:
        """Send the request to the workers named and return at once; see `wait` and `finish_run`."""
        workers = [h for h in arguments if isinstance(h, WorkerHost)]
        if function is EnvRange.reset:
            self.memory.check(time.monotonic(), self.workers, workers)
        prepared = {worker: worker.prepare(function, arguments[worker]) for worker in workers}
        self.number = number = self.number + 1
        with HeldInterrupts():
            for worker in workers:
                worker.post_run(number, function, prepared[worker])

    def finish_run(
        self, function: RunFunction, arguments: Mapping[Host, tuple[Any, ...]], timeout_s: float | None
    ) -> Answers:
        """Run the caller's own share, and return the answers to `start_run`."""
        workers = [h for h in arguments if isinstance(h, WorkerHost)]
        results: dict[Host, Any] = {}
        errors: dict[Host, MultiverseError] = {}
        for host in arguments:
            if isinstance(host, LocalHost):
                try:
                    results[host] = host.run(function, arguments[host])
                except EnvFailed as error:
                    errors[host] = error
        self._sleep_for(workers, timeout_s)  # guard: a-reset-has-its-own-deadline
        for worker in workers:
            if worker in self.lost:  # so is its answer
                errors[worker] = self.lost[worker].cause
                continue
            try:
                results[worker] = worker.finish_run()
            except (EnvFailed, WorkerDied, ReplyTimeout) as error:
                errors[worker] = error
                if not isinstance(error, EnvFailed) and self.supervisor is not None:
                    self.recover_cut_off(worker, error)
        return results, errors

    def discard_pending(self) -> list[tuple[Host, Extras]]:
        """Wait for pending requests and discard their results; returns extras with announcements for later steps."""
        discarded = []
        for host in self.pending:
            if isinstance(host, WorkerHost):
                host.mailbox.stop_rows()  # in case an interrupt came before it was stopped
                self._sleep_for([host], self.timeouts.reset_s)
            if host in self.lost:
                host.collected = host.asked
            else:
                try:
                    discarded.append((host, host.discard()))
                except (WorkerDied, ReplyTimeout) as error:
                    if self.supervisor is None or not isinstance(host, WorkerHost):
                        raise
                    self.recover_cut_off(host, error)
                self._count_late([host])
        return discarded

    def keep_objects(self, host: Host, extras: Extras) -> None:
        """Store a host's rows that the block cannot hold, and that came by pipe."""
        put_object_rows(self.views, extras.objects, host.env_ids)

    def extras_of(self, hosts: Sequence[Host]) -> list[tuple[Host, Extras]]:
        """The extras of finished hosts; may be called again."""
        by_host: list[tuple[Host, Extras]] = []
        for host in hosts:
            if host.flags() & EXTRAS:
                try:
                    by_host.append((host, host.extras()))
                except (WorkerDied, ReplyTimeout) as error:
                    # guard: a-death-between-word-and-pipe
                    if self.supervisor is None or not isinstance(host, WorkerHost):
                        raise
                    self.recover_cut_off(host, error)
        return by_host

    def close(self, timeout_s: float | None = None) -> None:
        """End every worker within the time limit, whatever it is doing. Closing twice has no effect."""
        if os.getpid() != self._owner:
            return  # in a forked copy of the caller, of which the workers are not children
        deadline = close_by(self.timeouts.close_s if timeout_s is None else timeout_s)
        failures: list[RemoteError] = []
        try:
            for host in self.hosts:
                host.ask_to_close(self.number + 1)
            while self.hosts:
                failures += self.hosts[-1].close(deadline)
                self.hosts.pop()
        except BaseException:
            self._kill()
            raise
        self._release()
        if failures:
            raise EnvFailed("raised in close", None, failures)

    def _kill(self) -> None:
        """End all hosts after an error or Ctrl-C during `close`."""
        while self.hosts:
            try:
                self.hosts[-1].kill()
            finally:
                self.hosts.pop()
        self._release()

    def _release(self) -> None:
        _live.discard(self)
        self.workers, self.local = [], None
        if self._team is not None:
            self._team.close()

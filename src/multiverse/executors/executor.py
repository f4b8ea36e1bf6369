"""The executor: some hosts, the arrays they share, and how to wait for them. Where envs run is decided elsewhere."""

from __future__ import annotations

import atexit
import functools
import logging
import math
import os
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from multiverse.core.errors import EnvFailed, MultiverseError, RemoteError, ReplyTimeout, WorkerDied, describe_ids
from multiverse.core.failures import Failures
from multiverse.core.plan import DEFAULT_TIMEOUTS
from multiverse.core.views import Views
from multiverse.executors.backends import Workers
from multiverse.executors.env_range import EnvRange
from multiverse.executors.hosts import Host, LocalHost, RunFunction, WorkerHost
from multiverse.executors.patience import Patience
from multiverse.executors.step_reply import EXTRAS, Extras
from multiverse.executors.supervisor import Supervisor
from multiverse.executors.worker_memory import WorkerMemory
from multiverse.ipc.env_rows import put_object_rows
from multiverse.ipc.interrupts import HeldInterrupts, close_by
from multiverse.ipc.waiting import Waiting, WaitSet

log = logging.getLogger("multiverse")

SILENCE_S = 5.0
"""After this long without a reply one line names the env that is waited for; at most once a minute."""
MOST_NAMED = 3
"""Silent workers that are asked for what they are doing, at most."""
SAY_EVERY_S = 60.0

WAS_STOPPED_S = 0.5
"""Waking this long after a deadline means that this process did not run at the time."""

_live: weakref.WeakSet[Executor] = weakref.WeakSet()


def _close_live() -> None:
    """At interpreter exit: end the workers of vector envs nobody closed, before the fork server goes."""
    for executor in list(_live):
        try:
            executor.close()
        except BaseException:  # Ctrl-C once more, or an env that cannot be closed: nobody is left to be told
            pass


@dataclass(frozen=True, slots=True)
class Lost:
    """A worker that was replaced: why, what the first reset of its new envs said, and the row it was in, if in one."""

    cause: MultiverseError
    extras: Extras
    row: int


Answers = tuple[dict[Host, Any], dict[Host, MultiverseError]]
"""Results and errors of a call, by host."""


def results_of(answers: Answers) -> dict[Host, Any]:
    """The results, if there are no errors; else the first of those."""
    results, errors = answers
    if errors:
        raise next(iter(errors.values()))
    return results


class _LostAgain(Exception):
    """A worker that was to replace a lost one is lost itself."""

    def __init__(self, cause: MultiverseError) -> None:
        self.cause = cause


class Executor:
    """Steps hosts together or one by one. One caller at a time; a forked copy of it does nothing at close."""

    def __init__(
        self,
        hosts: Sequence[Host],
        views: Views,
        waiting: Literal["auto", "spin", "park"],
        team: Workers | None,
    ) -> None:
        self.hosts = list(hosts)
        self.views = views
        self.timeouts, self.patience = DEFAULT_TIMEOUTS, Patience(DEFAULT_TIMEOUTS.step_s)
        self.known_tasks: int | None = None  # how many tasks the hosts know by index
        self._team = team
        self.local = next((h for h in hosts if isinstance(h, LocalHost)), None)
        self.workers = [h for h in hosts if isinstance(h, WorkerHost)]
        self._waiting, self._wait_set = Waiting(waiting), WaitSet()
        self.memory = WorkerMemory()
        self.number = 0  # of the last request
        self._said_at = -math.inf  # who is waited for
        self._dead: list[WorkerHost] = []
        self._recovering: list[WorkerHost] = []
        self._late: list[WorkerHost] = []  # have not answered in time, and may yet
        self._owner = os.getpid()
        _live.add(self)
        atexit.unregister(_close_live)
        atexit.register(_close_live)  # again, to come before whatever was registered since
        self.supervisor: Supervisor | None = None
        self.broken = False  # a worker was lost and could not be replaced
        self.failures = Failures()
        self.lost: dict[Host, Lost] = {}  # workers that were replaced, until somebody has been told
        for worker in self.workers:
            self._watch(worker)

    def _watch(self, worker: WorkerHost) -> None:
        worker.mailbox.add_to(self._wait_set)
        # guard: a-death-is-seen
        self._wait_set.add_sentinel(worker.life.sentinel, functools.partial(self._dead.append, worker))

    @property
    def worker_pids(self) -> tuple[int, ...]:
        return tuple(w.life.pid for w in self.workers if w.life.pid is not None)

    # -- lock-step -------------------------------------------------------------------------------------------
    def step_all(self) -> int:
        """Every env one step; the actions are in the block. Returns the hosts' flags; `settle` when they are read."""
        self.start_step_all()
        return self.finish_step_all()

    def start_step_all(self) -> None:
        """The first half: the workers begin, the caller's own share does not yet."""
        self.number = number = self.number + 1
        now = time.monotonic()
        self.memory.check(now, self.workers, self.workers)
        for worker in self.workers:
            worker.asked_at = now
            worker.post_step(number, False)
        if self.local is not None:
            self.local.post_step(number, False)

    def finish_step_all(self) -> int:
        """The second half; once more after an interrupt, if that is what it takes."""
        flags = 0
        if self.local is not None and not self.local.answered():
            self.local.step_now()
        for worker in self.workers:
            if not worker.answered() and not self._waiting.look(worker.answered):
                while not worker.answered():  # twice, if one that has hung before is in a reset
                    self._sleep_for([worker], self.patience.limit_s(worker))  # guard: a-step-has-a-deadline
        for host in self.hosts:
            flags |= host.flags()
        return flags

    def settle(self, hosts: Sequence[Host]) -> None:
        """The answers of these hosts have been handed over, and with them which of the hosts were lost on the way."""
        for host in hosts:
            host.collected = host.asked
        if self.lost:
            self.take_lost(hosts)
        if self._late:
            self._count_late(hosts)

    def _count_late(self, hosts: Sequence[Host]) -> None:
        """Answers that came after their deadline, and have found the call that asked for them, or nobody."""
        came = [worker for worker in self._late if worker in hosts]
        self.failures.late_replies += len(came)  # guard: late-replies-are-counted
        self._late = [worker for worker in self._late if worker not in came]

    def complete_step(self, number_before: int) -> bool:
        """After an interrupt somewhere in a step of all: everybody is asked exactly once, and nothing is collected.

        False if it had not begun at all.
        """
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
            host.collected = number_before  # also of one that was replaced on the way, and asked for more since
        return True

    # -- first come, first served ----------------------------------------------------------------------------
    @property
    def pending(self) -> list[Host]:
        return [h for h in self.hosts if h.pending]

    def post_step(self, hosts: Mapping[Host, bool]) -> None:
        """Ask hosts to step: all their envs, or (True) only those marked in the block."""
        self.number = number = self.number + 1
        now = time.monotonic()
        self.memory.check(now, self.workers, (host for host in hosts if isinstance(host, WorkerHost)))
        with HeldInterrupts():
            for host, only_some in hosts.items():
                host.asked_at = now  # guard: time-runs-from-when-it-was-asked
                host.post_step(number, only_some)

    def wait(self, sizes: Mapping[Host, int], enough_envs: int, deadline: float | None) -> list[Host]:
        """Those of the hosts asked (with the envs each was asked for) that are done, as soon as they hold enough.

        Empty if the caller's deadline passed first. Nothing is settled yet.
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
        if unanswered:  # the others need not be waited for, but what has become of them must be said
            self._wait_set.check()
            while (worker := self._first_dead(unanswered)) is not None:
                self.recover(worker, worker.died())
            self._recover_overdue(unanswered)
        return [h for h in sizes if h.answered()]

    def sleep_with_patience(
        self, enough: Callable[[], bool], workers: Sequence[WorkerHost], deadline: float | None
    ) -> bool:
        """Sleep until enough; False if the caller's deadline passed first. Who takes too long, counted from when it was
        asked, is replaced or raised."""
        while not enough():
            limits = [(w, self.patience.limit_s(w)) for w in workers if not w.answered()]
            due = [w.heard_at + limit_s for w, limit_s in limits if limit_s is not None]
            first = min([*due, *([] if deadline is None else [deadline])], default=None)
            self._sleep_until(enough, workers, first)
            now = time.monotonic()
            if first is not None and now > first + WAS_STOPPED_S:
                for worker in workers:  # we ourselves were stopped (Ctrl-Z): they get their time after all
                    worker.asked_at = now
            self._recover_overdue(workers)
            if deadline is not None and now >= deadline and not enough():
                return False
        return True

    def _first_dead(self, workers: Sequence[WorkerHost]) -> WorkerHost | None:
        return next((w for w in workers if not w.answered() and (w.unreachable or w in self._dead)), None)

    def _recover_overdue(self, workers: Sequence[WorkerHost]) -> None:
        now = time.monotonic()
        for worker in workers:
            limit_s = self.patience.limit_s(worker)
            if limit_s is not None and now >= worker.heard_at + limit_s:
                self._recover_hung([worker], limit_s)

    def _sleep_until(self, enough: Callable[[], bool], workers: Sequence[WorkerHost], deadline: float | None) -> None:
        """Sleep over doorbells and signs of death, until enough or the deadline; the dead are replaced or raised."""
        quiet_until = max(time.monotonic() + SILENCE_S, self._said_at + SAY_EVERY_S)
        while True:
            until = quiet_until if deadline is None else min(deadline, quiet_until)
            in_time = self._wait_set.sleep_until(lambda: enough() or self._first_dead(workers) is not None, until)
            worker = None if enough() else self._first_dead(workers)
            if worker is not None:
                self.recover(worker, worker.died())
            elif in_time or until == deadline:
                return
            elif silent := [w for w in workers if not w.answered() and w.heard_at + SILENCE_S <= until]:
                self._say_who(silent)
                quiet_until = self._said_at + SAY_EVERY_S
            else:
                quiet_until = until + SILENCE_S

    def _say_who(self, workers: Sequence[WorkerHost]) -> None:
        """Name the envs that are waited for, and what they are doing."""
        who = ", ".join(
            f"worker {w.worker} (envs {describe_ids(w.env_ids)}) in {w.doing}{w.where() if n < MOST_NAMED else ''}"
            for n, w in enumerate(workers)
        )
        self._said_at = time.monotonic()
        limits = f"reply_s={_seconds(self.timeouts.step_s)}, reset_s={_seconds(self.timeouts.reset_s)}"
        log.warning("no reply for %g s; waiting for %s (%s)", SILENCE_S, who, limits)  # guard: silence-is-told

    def _sleep_for(self, workers: Sequence[WorkerHost], timeout_s: float | None) -> None:
        """Sleep until all of `workers` have answered; one that does not in time is replaced or raised."""

        def all_answered() -> bool:
            return all(w.answered() for w in workers)

        deadline = None if timeout_s is None else time.monotonic() + timeout_s  # guard: deadlines-are-monotonic
        self._sleep_until(all_answered, workers, deadline)
        if deadline is not None and time.monotonic() > deadline + WAS_STOPPED_S and not all_answered():
            # We ourselves were stopped (Ctrl-Z), perhaps with the workers: they get their time after all.
            self._sleep_until(all_answered, workers, time.monotonic() + (timeout_s or 0.0))
        self._recover_hung(workers, timeout_s)

    def _recover_hung(self, workers: Sequence[WorkerHost], timeout_s: float | None) -> None:
        for worker in workers:
            if not worker.answered():
                cause = worker.hung(timeout_s or 0.0)
                if self.patience.grants_a_reset(worker, cause):
                    continue
                self.failures.timeouts += 1
                worker.asked_at = time.monotonic()  # told; it is given as much time again
                if worker not in self._late:
                    self._late.append(worker)
                self.recover(worker, cause)

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
        """The same of one that died, or was stopped, between its word and what was to follow by pipe."""
        self.failures.timeouts += isinstance(cause, ReplyTimeout)
        self.recover(worker, cause)

    def _replaced(self, worker: WorkerHost, cause: MultiverseError, begin: bool) -> Extras:
        """Try until a new worker has taken over, or the supervisor has had enough of it."""
        assert self.supervisor is not None
        self._recovering.append(worker)
        try:
            while True:
                self._wait_set.remove(worker.mailbox.reply_bell.wait_fd)
                self._wait_set.remove(worker.life.sentinel)
                self.supervisor.allow(worker, cause)
                try:
                    self.supervisor.replace(worker, self.views, self.timeouts.reset_s)
                    self._dead[:] = [dead for dead in self._dead if dead is not worker]  # the list that sentinels hold
                    self._watch(worker)
                    return self._taken_over(worker, begin)
                except _LostAgain as again:
                    cause = again.cause
                # guard: a-replacement-may-fail-too
                except MultiverseError as again:  # it could not even be started, or built, or reset
                    cause = again
        finally:
            self._recovering.remove(worker)

    def _taken_over(self, worker: WorkerHost, begin: bool) -> Extras:
        self.start_run(EnvRange.take_over, {worker: (begin,)})
        self._sleep_for([worker], self.timeouts.reset_s)
        extras: Extras = worker.finish_run()
        return extras

    def take_lost(self, hosts: Iterable[Host]) -> dict[Host, Lost]:
        """Those of these hosts that were replaced since they were last taken: what they had been asked for is lost."""
        return {host: self.lost.pop(host) for host in list(hosts) if host in self.lost}

    # -- everything else -------------------------------------------------------------------------------------
    def run(
        self, function: RunFunction, arguments: Mapping[Host, tuple[Any, ...]], timeout_s: float | None = None
    ) -> dict[Host, Any]:
        """function(env_range, *arguments) on each host named, side by side; errors are raised when all are done."""
        return results_of(self.try_run(function, arguments, timeout_s))

    def try_run(
        self, function: RunFunction, arguments: Mapping[Host, tuple[Any, ...]], timeout_s: float | None
    ) -> Answers:
        """The same, with results and errors by host. A host that was lost on the way is in `lost` too."""
        self.start_run(function, arguments)
        return self.finish_run(function, arguments, timeout_s)

    def start_run(self, function: RunFunction, arguments: Mapping[Host, tuple[Any, ...]]) -> None:
        """Ask the workers named and come back at once; `wait` says when they are done, `finish_run` has the answers."""
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
        """The answers to `start_run`, with which the caller's own share is done here."""
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
            if worker in self.lost:  # with its answer
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
        """Wait for whatever is under way and forget its results; what it announced for later steps is returned."""
        discarded = []
        for host in self.pending:
            if isinstance(host, WorkerHost):
                host.mailbox.stop_rows()  # in case nobody came to it
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
        """A host's rows of what the block cannot hold, as they came by pipe."""
        put_object_rows(self.views, extras.objects, host.env_ids)

    def extras_of(self, hosts: Sequence[Host]) -> list[tuple[Host, Extras]]:
        """What finished hosts have to say beyond the block; the same again if asked again."""
        found: list[tuple[Host, Extras]] = []
        for host in hosts:
            if host.flags() & EXTRAS:
                try:
                    found.append((host, host.extras()))
                except (WorkerDied, ReplyTimeout) as error:
                    # guard: a-death-between-word-and-pipe
                    if self.supervisor is None or not isinstance(host, WorkerHost):
                        raise
                    self.recover_cut_off(host, error)
        return found

    def close(self, timeout_s: float | None = None) -> None:
        """End every worker within the deadline, whatever it is doing; twice without harm."""
        if os.getpid() != self._owner:
            return  # a forked copy of the caller: the workers are not its children
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
        self._released()
        if failures:
            raise EnvFailed("raised in close", None, failures)

    def _kill(self) -> None:
        """Whatever went wrong on the way (Ctrl-C, too): nobody is left."""
        while self.hosts:
            try:
                self.hosts[-1].kill()
            finally:
                self.hosts.pop()
        self._released()

    def _released(self) -> None:
        _live.discard(self)
        self.workers, self.local = [], None
        if self._team is not None:
            self._team.close()


def _seconds(limit: float | None) -> str:
    return "None" if limit is None else f"{limit:g} s"

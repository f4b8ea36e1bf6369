"""Waits for workers: time limits, warnings about workers that do not answer, and detection of lost workers."""

from __future__ import annotations

import functools
import logging
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from multiverse.core.errors import MultiverseError, ReplyTimeout
from multiverse.core.failures import Failures
from multiverse.core.plan import DEFAULT_TIMEOUTS
from multiverse.core.plan import Waiting as WaitingRule
from multiverse.core.wording import describe_ids
from multiverse.executors.launch.black_box import parse_stack
from multiverse.executors.worker_host import WorkerHost
from multiverse.ipc.waiting import Waiting, WaitSet

log = logging.getLogger("multiverse")

SILENCE_S = 5.0
"""Time without a reply after which one warning, at most once per minute, names the envs that are waited for."""
MOST_NAMED = 3
"""Maximum number of silent workers whose place in the code is read."""
SAY_EVERY_S = 60.0

WAS_STOPPED_S = 0.5
"""If the caller wakes this long after a deadline, it was not running in between."""

SHORTEST_S = 5.0
TIMES_THE_LONGEST = 10.0
"""A worker that has hung may take this many times its longest step so far, and no less than `SHORTEST_S`."""


class Patience:
    """Time limits for the steps of each worker: shorter for one that has hung, derived from its earlier steps."""

    def __init__(self, reply_s: float | None, adapts: bool = False) -> None:
        """`adapts`: a worker that has hung may get less than `reply_s` from then on."""
        self._reply_s, self._adapts = reply_s, adapts
        self._longest_s: dict[WorkerHost, float] = {}  # of lost workers; mailboxes of their replacements start at 0
        self._hung: set[WorkerHost] = set()
        self._in_reset: dict[WorkerHost, tuple[int, int]] = {}  # the request, and the row in it

    def limit_s(self, worker: WorkerHost) -> float | None:
        """Seconds that a step of this worker may take now."""
        if worker not in self._hung or self._reply_s is None or self._in_reset.get(worker) == _position(worker):
            return self._reply_s
        longest_s = max(self._longest_s[worker], worker.mailbox.longest_step_s)
        return min(self._reply_s, max(SHORTEST_S, TIMES_THE_LONGEST * longest_s))

    def note_loss(self, worker: WorkerHost, cause: MultiverseError) -> None:
        """Record that the worker is about to be replaced."""
        self._longest_s[worker] = max(self._longest_s.get(worker, 0.0), worker.mailbox.longest_step_s)
        if self._adapts and worker.was_stepping and isinstance(cause, ReplyTimeout) and worker not in self._hung:
            self._hung.add(worker)  # guard: the-second-hang-is-noticed-sooner
            log.warning(
                "from now on worker %d may take %g s for a step, because it has hung (%g times its longest step, at "
                "least %g s); set a fixed limit with Timeouts(reply_s=…) or --reply-timeout-s",
                *(worker.worker, self.limit_s(worker), TIMES_THE_LONGEST, SHORTEST_S),
            )

    def grants_a_reset(self, worker: WorkerHost, cause: ReplyTimeout) -> bool:
        """Whether the limit was the shortened one of a step while an env is in its reset, which has the full time."""
        shortened = self._reply_s is not None and cause.waited_s < self._reply_s
        if not (worker in self._hung and worker.was_stepping and shortened and parse_stack(cause.stack)[0] == "reset"):
            return False
        self._in_reset[worker] = _position(worker)  # guard: a-reset-is-no-slow-step
        return True


def _position(worker: WorkerHost) -> tuple[int, int]:
    return worker.asked, worker.mailbox.row


class WorkerWaits(ABC):
    """Waits for workers until they have answered; workers that die or exceed their time limit go to `recover`."""

    def __init__(self, waiting: WaitingRule) -> None:
        self.timeouts, self.patience = DEFAULT_TIMEOUTS, Patience(DEFAULT_TIMEOUTS.step_s)
        self.failures = Failures()
        self._waiting, self._wait_set = Waiting(waiting), WaitSet()
        self._warned_at = -math.inf  # about workers that do not answer
        self._dead: list[WorkerHost] = []
        self._late: list[WorkerHost] = []  # have exceeded their limit, and may still answer

    @abstractmethod
    def recover(self, worker: WorkerHost, cause: MultiverseError) -> None:
        """Replace a lost worker, or raise the cause."""

    def _watch(self, worker: WorkerHost) -> None:
        worker.mailbox.add_to(self._wait_set)
        # guard: a-death-is-seen
        self._wait_set.add_sentinel(worker.life.sentinel, functools.partial(self._dead.append, worker))

    def _unwatch(self, worker: WorkerHost) -> None:
        self._wait_set.remove(worker.mailbox.reply_bell.wait_fd)
        self._wait_set.remove(worker.life.sentinel)

    def sleep_with_patience(
        self, enough: Callable[[], bool], workers: Sequence[WorkerHost], deadline: float | None
    ) -> bool:
        """Sleep until `enough`; False if the caller's deadline passed first. Workers that exceed their time limit,
        counted from their request, are replaced or raise."""
        while not enough():
            limits = [(w, self.patience.limit_s(w)) for w in workers if not w.answered()]
            due = [w.heard_at + limit_s for w, limit_s in limits if limit_s is not None]
            first = min([*due, *([] if deadline is None else [deadline])], default=None)
            self._sleep_until(enough, workers, first)
            now = time.monotonic()
            if first is not None and now > first + WAS_STOPPED_S:
                for worker in workers:  # the caller itself was stopped (Ctrl-Z): the workers get their full time
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
        """Sleep until `enough` or the deadline; dead workers are replaced or raise."""
        quiet_until = max(time.monotonic() + SILENCE_S, self._warned_at + SAY_EVERY_S)
        while True:
            until = quiet_until if deadline is None else min(deadline, quiet_until)
            in_time = self._wait_set.sleep_until(lambda: enough() or self._first_dead(workers) is not None, until)
            worker = None if enough() else self._first_dead(workers)
            if worker is not None:
                self.recover(worker, worker.died())
            elif in_time or until == deadline:
                return
            elif silent := [w for w in workers if not w.answered() and w.heard_at + SILENCE_S <= until]:
                self._warn_of_silence(silent)
                quiet_until = self._warned_at + SAY_EVERY_S
            else:
                quiet_until = until + SILENCE_S

    def _warn_of_silence(self, workers: Sequence[WorkerHost]) -> None:
        """Log which workers do not answer, and what they are doing."""
        names = ", ".join(
            f"worker {w.worker} (envs {describe_ids(w.env_ids)}) in {w.doing}{w.where() if n < MOST_NAMED else ''}"
            for n, w in enumerate(workers)
        )
        self._warned_at = time.monotonic()
        given = {"reply_s": self.timeouts.step_s, "reset_s": self.timeouts.reset_s}
        limits = ", ".join(f"{name}=None" if limit is None else f"{name}={limit:g} s" for name, limit in given.items())
        log.warning("no reply for %g s; waiting for %s (%s)", SILENCE_S, names, limits)  # guard: silence-is-told

    def _sleep_for(self, workers: Sequence[WorkerHost], timeout_s: float | None) -> None:
        """Sleep until all of `workers` have answered; one that exceeds the time limit is replaced or raises."""

        def all_answered() -> bool:
            return all(w.answered() for w in workers)

        deadline = None if timeout_s is None else time.monotonic() + timeout_s  # guard: deadlines-are-monotonic
        self._sleep_until(all_answered, workers, deadline)
        if deadline is not None and time.monotonic() > deadline + WAS_STOPPED_S and not all_answered():
            # The caller itself was stopped (Ctrl-Z), perhaps with the workers: they get their full time.
            self._sleep_until(all_answered, workers, time.monotonic() + (timeout_s or 0.0))
        self._recover_hung(workers, timeout_s)

    def _recover_hung(self, workers: Sequence[WorkerHost], timeout_s: float | None) -> None:
        for worker in workers:
            if not worker.answered():
                cause = worker.hung(timeout_s or 0.0)
                if self.patience.grants_a_reset(worker, cause):
                    continue
                self.failures.timeouts += 1
                worker.asked_at = time.monotonic()  # if the cause is raised, the worker gets the same time again
                if worker not in self._late:
                    self._late.append(worker)
                self.recover(worker, cause)

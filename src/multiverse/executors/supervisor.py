"""The supervisor: a worker that dies or hangs is replaced, and its envs' episodes end there, cut short.

The block outlives its workers: episode counters and the other workers' rows are untouched. What the lost worker was
writing is not read; the rows are written anew by the worker that replaces it.
"""

from __future__ import annotations

import logging
import math
import time

from multiverse.core.env import EnvDescription
from multiverse.core.errors import ClusterGone, MultiverseError, ReplyTimeout, SpacesDiffer, WorkerDied
from multiverse.core.failures import HOW_TO_CONTINUE, STEPS_PER_FAILURE, RestartLimit, restart_limit
from multiverse.core.views import Views
from multiverse.executors.backends import Workers
from multiverse.executors.hosts import WorkerHost
from multiverse.executors.worker_loop import difference_between
from multiverse.ipc.interrupts import stop_waiting

log = logging.getLogger("multiverse")
HANGS_IN_A_ROW = 3
LOOK_EVERY_S = 0.1
FIRST_BACKOFF_S, LONGEST_BACKOFF_S = 0.05, 1.0


class HangsInARow:
    """Timeouts of one worker that came one after another: between any two of them it hung for longer than it worked,
    and its envs took few steps.

    A rate would never tell: at a minute each, a worker that does nothing but hang is restarted once a minute, for ever.
    """

    def __init__(self) -> None:
        self.causes: list[ReplyTimeout] = []
        self._restarted_at, self._steps = -math.inf, 0

    def note(self, cause: MultiverseError, steps: int) -> None:
        """The worker is lost, and about to be restarted. `steps`: all that its envs have taken."""
        now = time.monotonic()
        if isinstance(cause, ReplyTimeout):
            worked_s = now - cause.waited_s - self._restarted_at
            # guard: hangs-with-work-between-are-not-in-a-row
            in_a_row = worked_s < cause.waited_s and steps - self._steps < STEPS_PER_FAILURE
            self.causes, self._steps = [*(self.causes if in_a_row else []), cause], steps
        self._restarted_at = now


class Supervisor:
    """Has lost workers started again, but not for ever."""

    def __init__(self, workers: Workers, restarts_per_minute: int | None, description: EnvDescription) -> None:
        self._workers, self._description = workers, description
        self._limits: dict[int, RestartLimit[MultiverseError]] = {
            host.worker: restart_limit(restarts_per_minute) for host in workers.hosts
        }
        self._hangs = {host.worker: HangsInARow() for host in workers.hosts}

    def allow(self, host: WorkerHost, cause: MultiverseError) -> None:
        """Wait for the moment that comes before a restart; raises the first cause if it happens too often."""
        if isinstance(cause, ClusterGone):  # guard: no-restart-without-a-cluster
            raise cause
        limit, hangs, work = self._limits[host.worker], self._hangs[host.worker], host.work
        hangs.note(cause, work.steps)
        if len(hangs.causes) >= HANGS_IN_A_ROW:  # guard: hangs-in-a-row-are-a-crash-loop
            why = f"{HANGS_IN_A_ROW} timeouts in a row of worker {host.worker}, with less work than waiting between"
            move = f"Fix the cause, or allow longer waits (Timeouts(reply_s=…), --reply-timeout-s); {HOW_TO_CONTINUE}"
            raise hangs.causes[0].with_hint(f"given up: {why}; the last one: {cause.headline}. {move}")
        if not limit.allows(cause, work):
            first = limit.first_cause
            why = limit.why_given_up(f"worker {host.worker}", cause.headline)
            hint = f"{first.hint}; " if isinstance(first, WorkerDied) and first.hint else ""
            raise first.with_hint(hint + why)  # guard: a-given-up-worker-says-so
        log.warning("%s: restart %d %s", cause.headline, limit.recent, limit.limit_text)
        if isinstance(cause, ReplyTimeout) and cause.stack:
            log.info("what worker %d was doing:\n%s", host.worker, cause.stack)
        # A machine out of memory needs a moment.
        time.sleep(min(FIRST_BACKOFF_S * 2 ** (limit.recent - 1), LONGEST_BACKOFF_S))  # guard: restarts-wait-longer

    def replace(self, host: WorkerHost, views: Views, build_timeout_s: float | None) -> None:
        """Put a new worker behind `host`, bound to the same rows."""
        host.kill()
        host.be_replaced_by(self._workers.start_again(host, views, lambda new: self._check(new, build_timeout_s)))

    def _check(self, new: WorkerHost, build_timeout_s: float | None) -> None:
        """Its envs are what they were."""
        deadline = math.inf if build_timeout_s is None else time.monotonic() + build_timeout_s
        while not new.link.poll(LOOK_EVERY_S):
            stop_waiting()
            if time.monotonic() > deadline:
                raise new.hung(build_timeout_s or 0.0)
        word = new.described("could not be built anew")
        difference = difference_between(self._description, word.first) or next(iter(word.differences.values()), "")
        if difference:
            raise SpacesDiffer(f"worker {new.worker}, started anew, has envs with {difference}")

"""The supervisor: a worker that dies or hangs is replaced, and the current episodes of its envs are truncated.

The block outlives its workers: episode counters and the other workers' rows are unchanged. What the lost worker was
writing is never read; the worker that replaces it writes the rows again.
"""

from __future__ import annotations

import logging
import math
import time

from multiverse.core.env import EnvDescription
from multiverse.core.errors import ClusterGone, MultiverseError, ReplyTimeout, SpacesDiffer, WorkerDied
from multiverse.core.failures import HOW_TO_CONTINUE, STEPS_PER_FAILURE, RestartLimit, restart_limit
from multiverse.core.layout import Views
from multiverse.executors.backends import Workers
from multiverse.executors.worker_host import WorkerHost
from multiverse.executors.worker_loop import difference_between
from multiverse.ipc.interrupts import stop_waiting

log = logging.getLogger("multiverse")
HANGS_IN_A_ROW = 3
LOOK_EVERY_S = 0.1
FIRST_BACKOFF_S, LONGEST_BACKOFF_S = 0.05, 1.0


class HangsInARow:
    """Consecutive timeouts of one worker: between any two of them it hung for longer than it worked, and its envs took
    few steps.

    A limit per minute would not detect them: with a timeout of a minute, a worker that only hangs would be restarted
    once per minute without end.
    """

    def __init__(self) -> None:
        self.causes: list[ReplyTimeout] = []
        self._restarted_at, self._steps = -math.inf, 0

    def note(self, cause: MultiverseError, steps: int) -> None:
        """Record that the worker is lost and about to be restarted. `steps`: total steps of its envs."""
        now = time.monotonic()
        if isinstance(cause, ReplyTimeout):
            worked_s = now - cause.waited_s - self._restarted_at
            # guard: hangs-with-work-between-are-not-in-a-row
            in_a_row = worked_s < cause.waited_s and steps - self._steps < STEPS_PER_FAILURE
            self.causes, self._steps = [*(self.causes if in_a_row else []), cause], steps
        self._restarted_at = now


class Supervisor:
    """Restarts lost workers within limits."""

    def __init__(self, workers: Workers, restarts_per_minute: int | None, description: EnvDescription) -> None:
        self._workers, self._description = workers, description
        self._limits: dict[int, RestartLimit[MultiverseError]] = {
            host.worker: restart_limit(restarts_per_minute) for host in workers.hosts
        }
        self._hangs = {host.worker: HangsInARow() for host in workers.hosts}

    def allow(self, host: WorkerHost, cause: MultiverseError) -> None:
        """Wait before a restart, longer after each in a row; raises the first cause if the limit is exceeded."""
        if isinstance(cause, ClusterGone):  # guard: no-restart-without-a-cluster
            raise cause
        limit, hangs, work = self._limits[host.worker], self._hangs[host.worker], host.work
        hangs.note(cause, work.steps)
        if len(hangs.causes) >= HANGS_IN_A_ROW:  # guard: hangs-in-a-row-are-a-crash-loop
            why = f"{HANGS_IN_A_ROW} timeouts in a row of worker {host.worker}, with less work than waiting between"
            action = f"Fix the cause, or raise the limit (Timeouts(reply_s=…), --reply-timeout-s); {HOW_TO_CONTINUE}"
            raise hangs.causes[0].with_hint(f"given up: {why}; the last one: {cause.headline}. {action}")
        if not limit.allows(cause, work):
            first = limit.first_cause
            why = limit.why_given_up(f"worker {host.worker}", cause.headline)
            hint = f"{first.hint}; " if isinstance(first, WorkerDied) and first.hint else ""
            raise first.with_hint(hint + why)  # guard: a-given-up-worker-says-so
        log.warning("%s: restart %d %s", cause.headline, limit.recent, limit.limit_text)
        if isinstance(cause, ReplyTimeout) and cause.stack:
            log.info("stack of worker %d:\n%s", host.worker, cause.stack)
        # Longer after each failure, so that a machine that is out of memory can recover.
        time.sleep(min(FIRST_BACKOFF_S * 2 ** (limit.recent - 1), LONGEST_BACKOFF_S))  # guard: restarts-wait-longer

    def replace(self, host: WorkerHost, views: Views, build_timeout_s: float | None) -> None:
        """Start a new worker for `host`, bound to the same rows."""
        host.kill()
        host.replace_with(self._workers.start_again(host, views, lambda new: self._check(new, build_timeout_s)))

    def _check(self, new: WorkerHost, build_timeout_s: float | None) -> None:
        """Check that the new worker's envs have the same spaces as before."""
        deadline = math.inf if build_timeout_s is None else time.monotonic() + build_timeout_s
        while not new.link.poll(LOOK_EVERY_S):
            stop_waiting()
            if time.monotonic() > deadline:
                raise new.hung(build_timeout_s or 0.0)
        described = new.described("could not be rebuilt")
        differences = (difference_between(self._description, described.first), *described.differences.values())
        if difference := next(filter(None, differences), ""):
            raise SpacesDiffer(f"worker {new.worker} has, after its restart, envs with {difference}")

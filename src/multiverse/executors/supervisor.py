"""The supervisor: a worker that dies or hangs is replaced, and its envs' episodes end there, cut short.

The block outlives its workers: episode counters and the other workers' rows are untouched. What the lost worker was
writing is not read; the rows are written anew by the worker that replaces it.
"""

from __future__ import annotations

import logging
import time

from multiverse.contracts.env import EnvDescription
from multiverse.contracts.errors import MultiverseError, SpacesDiffer, WorkerDied
from multiverse.contracts.failures import RestartIntensity
from multiverse.contracts.views import Views
from multiverse.executors.backends import Workers
from multiverse.executors.hosts import WorkerHost
from multiverse.executors.worker_loop import difference_between

log = logging.getLogger("multiverse")
FIRST_BACKOFF_S, LONGEST_BACKOFF_S = 0.05, 1.0


class Supervisor:
    """Has lost workers started again, but not for ever."""

    def __init__(self, workers: Workers, restarts_per_minute: int, description: EnvDescription) -> None:
        self._workers, self._description = workers, description
        self._intensity: dict[int, RestartIntensity[MultiverseError]] = {
            host.worker: RestartIntensity(restarts_per_minute) for host in workers.hosts
        }

    def allow(self, host: WorkerHost, cause: MultiverseError) -> None:
        """Wait for the moment that comes before a restart; raises the first cause if it happens too often."""
        intensity = self._intensity[host.worker]
        if not intensity.allows(cause):
            first = intensity.first_cause
            why = intensity.why_given_up(f"worker {host.worker}", cause.headline)
            hint = f"{first.hint}; " if isinstance(first, WorkerDied) and first.hint else ""
            raise first.with_hint(hint + why)  # guard: a-given-up-worker-says-so
        log.warning("%s: restart %d of at most %d a minute", cause.headline, intensity.recent, intensity.limit)
        # A machine out of memory needs a moment.
        time.sleep(min(FIRST_BACKOFF_S * 2 ** (intensity.recent - 1), LONGEST_BACKOFF_S))  # guard: restarts-wait-longer

    def replace(self, host: WorkerHost, views: Views, build_timeout_s: float | None) -> None:
        """Put a new worker behind `host`, bound to the same rows."""
        host.kill()
        host.be_replaced_by(self._workers.start_again(host, views, lambda new: self._check(new, build_timeout_s)))

    def _check(self, new: WorkerHost, build_timeout_s: float | None) -> None:
        """Its envs are what they were."""
        if build_timeout_s is not None and not new.link.poll(build_timeout_s):
            raise new.hung(build_timeout_s)
        word = new.described("could not be built anew")
        difference = difference_between(self._description, word.first) or next(iter(word.differences.values()), "")
        if difference:
            raise SpacesDiffer(f"worker {new.worker}, started anew, has envs with {difference}")

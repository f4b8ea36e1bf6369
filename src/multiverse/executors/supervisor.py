"""The supervisor: a worker process that dies or hangs is replaced, and its envs' episodes end there, cut short.

The block outlives its workers: episode counters and the other workers' rows are untouched. What the lost worker was
writing is not read; the rows are written anew by the worker that replaces it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from multiverse.contracts.env import EnvDescription
from multiverse.contracts.errors import (
    EnvFailed,
    MultiverseError,
    RemoteError,
    SpacesDiffer,
    WorkerDied,
)
from multiverse.contracts.failures import RestartIntensity
from multiverse.contracts.plan import StartMethod
from multiverse.contracts.views import Views
from multiverse.executors.process import ProcessHost, Shared, pickled, start_process
from multiverse.executors.worker_loop import Assignment, Described, Surroundings, difference_between

log = logging.getLogger("multiverse")
FIRST_BACKOFF_S, LONGEST_BACKOFF_S = 0.05, 1.0


class GivenUp(Exception):
    """It happens too often. `cause`: what began it."""

    def __init__(self, cause: MultiverseError) -> None:
        self.cause = cause


class Supervisor:
    """Knows how each worker process was started, and starts it again, but not for ever."""

    def __init__(
        self, assignments: Sequence[Assignment], method: StartMethod, shared: Shared, description: EnvDescription
    ) -> None:
        self._assignments = {a.worker: a for a in assignments}
        data = pickled(assignments) if method != "fork" else [b""] * len(assignments)
        self._data = dict(zip(self._assignments, data))
        self._method, self._shared, self._description = method, shared, description
        self._intensity: dict[int, RestartIntensity[MultiverseError]] = {
            a.worker: RestartIntensity(a.config.policy.restarts_per_minute) for a in assignments
        }

    def replace(self, host: ProcessHost, cause: MultiverseError, views: Views, build_timeout_s: float | None) -> None:
        """Put a new process behind `host`, bound to the same rows; raises the first cause if it happens too often."""
        intensity = self._intensity[host.worker]
        if not intensity.allows(cause):
            first = intensity.first_cause
            first.add_note(
                f"multiverse: given up: failure {intensity.recent} of worker {host.worker} within a minute, and "
                f"restarts_per_minute={intensity.limit}; the last one was: {_one_line(cause)}"
            )
            raise GivenUp(first)
        log.warning("%s: restart %d of at most %d a minute", _one_line(cause), intensity.recent, intensity.limit)
        # A machine out of memory needs a moment.
        time.sleep(min(FIRST_BACKOFF_S * 2 ** (intensity.recent - 1), LONGEST_BACKOFF_S))  # guard: restarts-wait-longer
        host.kill()
        assignment = self._assignments[host.worker]
        new = start_process(assignment, self._data[host.worker], self._method, self._shared, Surroundings.here())
        try:
            self._check(new, build_timeout_s)
            new.connect(views, len(self._assignments), replacing=True)
        except BaseException:
            new.kill()
            raise
        host.be_replaced_by(new)

    def _check(self, new: ProcessHost, build_timeout_s: float | None) -> None:
        """Its envs are what they were."""
        if build_timeout_s is not None and not new.link.poll(build_timeout_s):
            raise new.hung(build_timeout_s)
        word = new.first_word()
        if isinstance(word, RemoteError):
            raise EnvFailed("could not be built anew", new.worker, [word])
        if not isinstance(word, Described):
            raise WorkerDied(new.worker, new.env_ids, f"sent {type(word).__name__} instead of a description")
        difference = difference_between(self._description, word.first) or next(iter(word.differences.values()), "")
        if difference:
            raise SpacesDiffer(f"worker {new.worker}, started anew, has envs with {difference}")


def _one_line(cause: MultiverseError) -> str:
    return str(cause).split("\n", 1)[0]

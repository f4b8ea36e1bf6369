"""Time limits of steps: shorter for a worker that has hung before, derived from the steps it has taken."""

from __future__ import annotations

import logging

from multiverse.core.errors import MultiverseError, ReplyTimeout
from multiverse.executors.hosts import WorkerHost
from multiverse.executors.launch.black_box import told_by

log = logging.getLogger("multiverse")

SHORTEST_S = 5.0
TIMES_THE_LONGEST = 10.0
"""A worker that has hung may take this many times its longest step so far, and no less than `SHORTEST_S`."""


class Patience:
    """The time that each worker has for a step."""

    def __init__(self, reply_s: float | None, adapts: bool = False) -> None:
        """`adapts`: a worker that has hung may take less than `reply_s` from then on."""
        self._reply_s, self._adapts = reply_s, adapts
        self._longest_s: dict[WorkerHost, float] = {}  # steps of workers that were lost; their mailboxes start anew
        self._hung: set[WorkerHost] = set()
        self._in_reset: dict[WorkerHost, tuple[int, int]] = {}  # the request, and the row in it

    def limit_s(self, worker: WorkerHost) -> float | None:
        """Seconds that a step of this worker may take now."""
        if worker not in self._hung or self._reply_s is None or self._in_reset.get(worker) == _position(worker):
            return self._reply_s
        longest_s = max(self._longest_s[worker], worker.mailbox.longest_step_s)
        return min(self._reply_s, max(SHORTEST_S, TIMES_THE_LONGEST * longest_s))

    def note_loss(self, worker: WorkerHost, cause: MultiverseError) -> None:
        """The worker is about to be replaced."""
        self._longest_s[worker] = max(self._longest_s.get(worker, 0.0), worker.mailbox.longest_step_s)
        if self._adapts and worker.was_stepping and isinstance(cause, ReplyTimeout) and worker not in self._hung:
            self._hung.add(worker)  # guard: the-second-hang-is-noticed-sooner
            log.warning(
                "worker %d may take %g s for a step from now on, because it has hung (%g times its longest step, at "
                "least %g s); Timeouts(reply_s=…) or --reply-timeout-s sets a limit that does not change",
                *(worker.worker, self.limit_s(worker), TIMES_THE_LONGEST, SHORTEST_S),
            )

    def grants_a_reset(self, worker: WorkerHost, cause: ReplyTimeout) -> bool:
        """Whether the limit was that of a step while an env is in its reset, which has the whole time."""
        shortened = self._reply_s is not None and cause.waited_s < self._reply_s
        if not (worker in self._hung and worker.was_stepping and shortened and told_by(cause.stack)[0] == "reset"):
            return False
        self._in_reset[worker] = _position(worker)  # guard: a-reset-is-no-slow-step
        return True


def _position(worker: WorkerHost) -> tuple[int, int]:
    return worker.asked, worker.mailbox.row

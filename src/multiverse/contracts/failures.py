"""Failures: what went wrong so far, counted; and how often a thing may be restarted before that is given up."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import astuple, dataclass, field
from typing import Generic, Literal, TypeVar

OnFailure = Literal["raise", "restart"]
RESTARTS_PER_MINUTE = 3
OnBadValue = Literal["raise", "truncate", "clip", "off"]
RESTARTED = "restarted"
"""The info key of a row whose env (or its whole worker) was lost in this step and replaced."""
BAD_VALUE = "bad_value"
"""The info key of a row whose episode was cut because its env returned something that nobody can learn from."""

HOW_TO_GO_ON = "a run that trains goes on with `multiverse resume RUN`"

Cause = TypeVar("Cause")


@dataclass(frozen=True, slots=True)
class FailurePolicy:
    """What to do when an env or its worker fails, and when an env returns what nobody can learn from."""

    on_failure: OnFailure = "raise"
    on_bad_value: OnBadValue = "raise"
    restarts_per_minute: int = RESTARTS_PER_MINUTE  # of one worker, and of the envs of one worker
    float32: bool = False  # a learner casts observations and rewards to float32: what overflows there is a bad value

    @property
    def restarts(self) -> bool:
        return self.on_failure == "restart"

    @property
    def shows_last_rows(self) -> bool:
        """Whether a row may have to be shown as it was last delivered."""
        return self.restarts or self.on_bad_value == "truncate"


DEFAULT_POLICY = FailurePolicy()


@dataclass(slots=True)
class Failures:
    """Counted over the life of a vector env. Steps are env steps: sent = used + discarded + still under way."""

    env_restarts: int = 0  # an env raised and was built anew
    worker_restarts: int = 0  # a worker died or hung, and its whole range was built anew
    timeouts: int = 0  # a worker did not answer in time
    late_replies: int = 0  # it answered after all; only the call that asked was given the answer, or nobody
    bad_values: int = 0  # NaN, infinite, or of a wrong shape or kind
    out_of_bounds: int = 0  # steps with an observation outside its space
    steps_sent: int = 0
    steps_used: int = 0  # returned to the caller as real steps
    steps_discarded: int = 0  # lost with an env or worker, or forgotten by a reset

    def __add__(self, other: Failures) -> Failures:
        return Failures(*(one + another for one, another in zip(astuple(self), astuple(other))))


@dataclass(slots=True)
class RestartIntensity(Generic[Cause]):
    """At most so many restarts a minute; beyond that the *first* cause is what the user must see."""

    limit: int = RESTARTS_PER_MINUTE
    window_s: float = 60.0
    _recent: deque[tuple[float, Cause]] = field(default_factory=deque)

    def allows(self, cause: Cause) -> bool:
        """Note one more failure; False if that is one too many."""
        now = time.monotonic()
        while self._recent and now - self._recent[0][0] > self.window_s:
            self._recent.popleft()
        self._recent.append((now, cause))
        return len(self._recent) <= self.limit  # guard: not-for-ever

    @property
    def first_cause(self) -> Cause:
        return self._recent[0][1]  # guard: the-first-cause

    @property
    def recent(self) -> int:
        return len(self._recent)

    def why_given_up(self, whose: str, last: str) -> str:
        """For the error that ends it: how often, the limit, what it was in the end, and the next move."""
        often = f"failure {self.recent} of {whose} within a minute, and restarts_per_minute={self.limit}"
        (first_line, *_) = last.splitlines() or [""]
        return f"given up: {often}; the last one: {first_line}. Mend that, or allow more restarts; {HOW_TO_GO_ON}"

"""Failures: options for handling them, their counters, and the limits of restarts."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass, fields
from typing import Generic, Literal, TypeVar

from multiverse.core.errors import InvalidRequest
from multiverse.core.plan import at_least_one, check_choices, number_of_bytes

OnFailure = Literal["raise", "restart"]
RESTARTS_IN_A_ROW = 5
"""Number of restarts of one env or worker that are allowed while it completes no episode and takes few steps."""
FAILURES_COMPARED = 20
"""Number of failures of one env or worker that end a run if it completed no more episodes than these meanwhile."""
STEPS_PER_FAILURE = 500
"""An env or worker that takes this many env steps between failures, on average, is restarted without limit."""
OnBadValue = Literal["raise", "truncate", "clip", "off"]
RESTARTED = "restarted"
"""Info key of a row whose env, or whole worker, was lost in this step and replaced."""
BAD_VALUE = "bad_value"
"""Info key of a row whose episode was truncated because its env returned a value that no learner can use."""

HOW_TO_CONTINUE = "to continue a training run: `multiverse resume RUN`"

Cause = TypeVar("Cause")


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureOptions:
    """What happens when an env or its worker fails, and when an env returns a value that no learner can use.

    Args:
        on_failure: `"raise"`, or `"restart"`: an env that raises, and a worker process that dies or hangs, is
            replaced; the row is truncated, with reward 0 and `infos["restarted"]`.
        on_bad_value: NaN and infinite observations and rewards: `"raise"` makes them a failure of the env;
            `"truncate"` ends the episode without that step (reward 0, `infos["bad_value"]`); `"clip"` moves them, and
            observations outside their `Box`, to the nearest bound (rewards: 0); `"off"` checks nothing.
            An observation of the wrong shape or kind is an error also with `"clip"` and `"off"`. Finite observations
            outside their space are counted (`envs.failures.out_of_bounds`), with one warning per env.
        restarts_per_minute: limit for each worker, and for the envs of each worker; above it the first cause is raised.
            None: restarts are limited relative to the work done. The first cause is raised after 5 restarts of an env
            or worker in a row (no episode completed, fewer than 500 steps), and after 20 failures in half of its
            episodes or more (fewer than 10,000 steps). Three timeouts of a worker in a row always raise the first.
        worker_memory_limit: with `"restart"`, a worker process that holds more memory is replaced, and the current
            episodes of its envs are lost. A number of bytes, or text such as `"2GiB"`. Memory is read every 5 s.
            Serial and thread have no worker processes.
        float32: observations and rewards that overflow float32 are bad values too, because the learner casts them.
    """

    on_failure: OnFailure = "raise"
    on_bad_value: OnBadValue = "raise"
    restarts_per_minute: int | None = None
    worker_memory_limit: int | str | None = None
    float32: bool = False

    def __post_init__(self) -> None:
        check_choices(on_failure=(self.on_failure, OnFailure), on_bad_value=(self.on_bad_value, OnBadValue))
        if self.restarts_per_minute is not None:
            rate = at_least_one("restarts_per_minute", self.restarts_per_minute, "on_failure='raise' restarts nothing")
            object.__setattr__(self, "restarts_per_minute", rate)
        if self.worker_memory_bytes is not None and not self.restarts:
            raise InvalidRequest(
                f"worker_memory_limit={self.worker_memory_limit} replaces workers, which needs on_failure='restart'"
            )

    @property
    def worker_memory_bytes(self) -> int | None:
        """`worker_memory_limit` as a number of bytes; None without a limit."""
        limit = self.worker_memory_limit
        return None if limit is None else number_of_bytes("worker_memory_limit", limit)

    @property
    def restarts(self) -> bool:
        return self.on_failure == "restart"

    @property
    def shows_last_rows(self) -> bool:
        """Whether rows may have to be reset to what was last delivered."""
        return self.restarts or self.on_bad_value == "truncate"


DEFAULT_POLICY = FailureOptions()


@dataclass(slots=True)
class Failures:
    """Counters over the lifetime of a vector env. Steps are env steps: sent = used + discarded + still pending."""

    env_restarts: int = 0  # an env raised and was rebuilt
    worker_restarts: int = 0  # a worker died or hung, and all its envs were rebuilt
    timeouts: int = 0  # a worker did not answer in time
    late_replies: int = 0  # answers after a timeout; each was returned to the call that requested it, or dropped
    bad_values: int = 0  # NaN, infinite, or of a wrong shape or kind
    out_of_bounds: int = 0  # steps with an observation outside its space
    steps_sent: int = 0
    steps_used: int = 0  # returned to the caller as real steps
    steps_discarded: int = 0  # lost with an env or worker, or discarded by a reset

    def __add__(self, other: Failures) -> Failures:
        return Failures(
            **{field.name: getattr(self, field.name) + getattr(other, field.name) for field in fields(self)}
        )


@dataclass(frozen=True, slots=True)
class Work:
    """Episodes and steps of an env or a worker since the vector env was created."""

    episodes: int = 0  # completed
    steps: int = 0  # env steps


@dataclass(frozen=True, slots=True)
class _Failure(Generic[Cause]):
    cause: Cause
    at_s: float
    work: Work


class RestartLimit(ABC, Generic[Cause]):
    """Decides whether an env or worker that failed is restarted. If not, the user must see the *first* cause."""

    def __init__(self, kept: int | None = None) -> None:
        self._failures: deque[_Failure[Cause]] = deque(maxlen=kept)

    def allows(self, cause: Cause, work: Work) -> bool:
        """Record a failure; False if it exceeds the limit. `work`: the total work done until then."""
        self._failures.append(_Failure(cause, time.monotonic(), work))
        return self._allowed()

    @abstractmethod
    def _allowed(self) -> bool:
        """Drop failures that no longer count, and return whether a restart is allowed."""

    @property
    @abstractmethod
    def recent(self) -> int:
        """Failures that count against the next restart."""

    @property
    @abstractmethod
    def limit_text(self) -> str:
        """The limit in words, to follow "restart 2"."""

    @property
    def first_cause(self) -> Cause:
        return self._failures[0].cause  # guard: the-first-cause

    @abstractmethod
    def why_given_up(self, whose: str, last: str) -> str:
        """Text for the final error: number of failures, the limit, the last failure, and what to do."""

    def _hint(self, last: str, alternative: str) -> str:
        (first_line, *_) = last.splitlines() or [""]
        rate = self._sufficient_rate()
        flag = f"restarts_per_minute={rate} (--restarts-per-minute {rate})"
        return f"the last one: {first_line}. Fix the cause, or {alternative.format(flag)}; {HOW_TO_CONTINUE}"

    def _sufficient_rate(self) -> int:
        """A limit per minute that would have allowed these failures at their pace, rounded up to two digits."""
        count = len(self._failures)
        spread_s = max(1.0, self._failures[-1].at_s - self._failures[0].at_s)
        pace = max(count, math.ceil(count * 60.0 / spread_s))
        digit = int(10 ** max(0, len(str(pace)) - 2))
        return math.ceil(pace / digit) * digit


class RestartsPerMinute(RestartLimit[Cause]):
    """At most `limit` restarts per minute, whatever work is done between them."""

    def __init__(self, limit: int, window_s: float = 60.0) -> None:
        super().__init__()
        self._limit, self._window_s = limit, window_s

    def _allowed(self) -> bool:
        while self._failures[-1].at_s - self._failures[0].at_s > self._window_s:
            self._failures.popleft()
        return len(self._failures) <= self._limit  # guard: not-for-ever

    @property
    def recent(self) -> int:
        return len(self._failures)

    @property
    def limit_text(self) -> str:
        return f"of at most {self._limit} a minute"

    def why_given_up(self, whose: str, last: str) -> str:
        often = f"failure {self.recent} of {whose} within a minute exceeds restarts_per_minute={self._limit}"
        return f"given up: {often}; {self._hint(last, 'raise the limit: {} would have sufficed')}"


class RestartsPerWork(RestartLimit[Cause]):
    """Restarts are limited relative to the episodes and steps that are done between them, at any pace."""

    def __init__(self) -> None:
        super().__init__(FAILURES_COMPARED)
        self._in_a_row = 0

    def _allowed(self) -> bool:
        self._in_a_row = self._since(0, STEPS_PER_FAILURE)
        too_many = self._in_a_row > RESTARTS_IN_A_ROW  # guard: failing-without-work-is-a-crash-loop
        if too_many:
            while len(self._failures) > self._in_a_row:
                self._failures.popleft()
            return False
        often = self._since(FAILURES_COMPARED, STEPS_PER_FAILURE * FAILURES_COMPARED)
        return often < FAILURES_COMPARED  # guard: failing-in-most-episodes-is-a-crash-loop

    def _since(self, episodes: int, steps: int) -> int:
        """Number of failures, including the last, since which at most `episodes` and fewer than `steps` were done."""
        now = self._failures[-1].work
        return sum(
            now.episodes - failure.work.episodes <= episodes and now.steps - failure.work.steps < steps
            for failure in self._failures
        )

    @property
    def recent(self) -> int:
        return self._in_a_row

    @property
    def limit_text(self) -> str:
        return f"of at most {RESTARTS_IN_A_ROW} in a row"

    def why_given_up(self, whose: str, last: str) -> str:
        first, now = self._failures[0].work, self._failures[-1].work
        done = f"{now.episodes - first.episodes} completed episodes and {now.steps - first.steps} env steps"
        often = f"{len(self._failures)} failures of {whose} within {done}"
        return f"given up: {often}; {self._hint(last, 'limit restarts by time instead: {} would have sufficed')}"


def restart_limit(restarts_per_minute: int | None) -> RestartLimit[Cause]:
    """The limit that applies: the given rate, or else one relative to the work done."""
    return RestartsPerWork() if restarts_per_minute is None else RestartsPerMinute(restarts_per_minute)

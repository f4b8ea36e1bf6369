"""Events of a run and the sinks that receive them.

The trainer reports what happens as events, in the order in which it happens. Sinks turn them into something: the run's
files (`runs/metric_sinks.py`, registered in `RunDirectory.sinks`), lines and bars (`progress.py`), the live display and
JSON lines (`cli/display.py`). A sink reads nothing but the event: it does not know the trainer. Metrics have the names
that `metrics.jsonl` has. For control of a run, such as stopping it, there are hooks (`hooks.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from multiverse.core.errors import InvalidRequest
from multiverse.training.config.budget import PARTS, Clock

if TYPE_CHECKING:
    from multiverse.core.plan import Plan
    from multiverse.rollouts.episodes import Episode, RecentEpisodes
    from multiverse.training.config.train_config import TrainConfig
    from multiverse.training.scaling import Decision
    from multiverse.training.session import Session

log = logging.getLogger("multiverse")

Metrics = Mapping[str, float | int | str]

LONG_ROLLOUT, ENV_STEPS_OF_SHORT_ROLLOUTS = 8, 1_000
"""By default a rollout of this many steps has metrics of its own; shorter ones share them over this many env steps."""


@dataclass(frozen=True, slots=True)
class RunStatus:
    """State of a run, read from it when asked for: a sink that keeps something after `handle` returns copies it."""

    config: TrainConfig
    clock: Clock
    _session: Session

    @property
    def recent(self) -> RecentEpisodes:
        """Returns and lengths of the last hundred episodes."""
        return self._session.recent

    @property
    def restarts(self) -> int:
        """Number of envs and workers that were restarted."""
        failures = self._session.failures
        return failures.env_restarts + failures.worker_restarts

    @property
    def plan(self) -> Plan:
        """Where the envs run now."""
        return self._session.envs.plan

    @property
    def worker_pids(self) -> tuple[int, ...]:
        """Process ids of the workers now."""
        return self._session.envs.worker_pids

    @property
    def learns_on_cpu_with_torch(self) -> bool:
        """Whether any algorithm of the run uses torch on the CPU."""
        return any(getattr(learner, "torch_device", None) == "cpu" for learner in self._session.learners)


# -- events ------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted:
    """A run begins, or is resumed: then `status.clock` is where it was saved."""

    run_id: str  # the same for all parts of a resumed run
    path: Path
    status: RunStatus
    best_return: float  # of the evaluations so far; -inf before the first
    notes: Sequence[str]  # lines about observations and action masks


@dataclass(frozen=True, slots=True, kw_only=True)
class NumEnvsDecided:
    """`num_envs="auto"` has decided how many envs to continue with."""

    decision: Decision


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodesEnded:
    """Episodes ended in the rollout that was just learned from."""

    env_steps: int
    episodes: Sequence[Episode]


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsLogged:
    """Metrics of the updates since the last such event."""

    env_steps: int
    metrics: Metrics


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateDone:
    """The algorithm has learned from a rollout."""

    status: RunStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationDone:
    """The policy was evaluated on unseen episodes."""

    env_steps: int
    summary: Mapping[str, Any]  # as `Evaluation.summary` gives it
    opponent: str | None
    is_best: bool  # its mean return is above those of all evaluations before

    @property
    def metrics(self) -> Metrics:
        """Its figures by the names that `metrics.jsonl` has."""
        return {f"evaluation_{name}": value for name, value in self.summary.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSaved:
    """A checkpoint is on the disk."""

    env_steps: int
    path: Path
    best: bool
    final: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInterrupted:
    """Ctrl-C, SIGTERM or SIGUSR1 ended the run; its envs are closed."""

    path: Path | None  # None: before training began
    env_steps: int
    saved_env_steps: int | None  # of the newest checkpoint; None if there is none
    resume_command: str  # "" before training began


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFailed:
    """An error, which is raised afterwards, ended the run; its envs are closed."""

    path: Path | None  # None: before training began
    env_steps: int
    error: Exception


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnded:
    """The run came to its end; its envs are closed."""

    path: Path
    summary: dict[str, Any]


Event = (
    RunStarted | NumEnvsDecided | EpisodesEnded | MetricsLogged | UpdateDone | EvaluationDone | CheckpointSaved
    | RunInterrupted | RunFailed | RunEnded
)  # fmt: skip


RUNS_OWN = frozenset({"env_steps", "episodes", "updates", "seconds", "env_steps_per_s", "mean_return", "mean_length",
                      "num_envs", *(f"{part}_share" for part in PARTS)})  # fmt: skip
"""Metrics that the run itself logs."""


def _check_metric(name: Any, value: Any) -> None:
    if not isinstance(name, str) or not name:
        raise InvalidRequest(f"update() returned a metric named {name!r}: expected a name as text")
    if name in RUNS_OWN or name.startswith(("evaluation_", "mean_return/")):
        raise InvalidRequest(f"update() returned a metric {name!r}, which the run itself logs: choose another name")
    if not isinstance(value, int | float | np.number | np.bool_) and not hasattr(value, "item"):
        raise InvalidRequest(f"update() returned {value!r:.60} as the metric {name!r}: expected a number")


class NextMetrics:
    """The metrics that are logged next: of the updates since the last time."""

    def __init__(self) -> None:
        self.since = Clock()  # as it was the last time
        self._sums: dict[str, list[Any]] = {}  # by metric: the sum over these updates, and their number

    def leave_out_time_before(self, clock: Clock) -> None:
        """Measure speed from here on, over the env steps since the last time."""
        self.since = replace(clock, env_steps=self.since.env_steps)

    def are_due(self, clock: Clock, every: int | None, rollout_steps: int) -> bool:
        """Whether `every` so many env steps have passed; None: one line for each rollout, or for several short ones."""
        if every is None:
            every = 1 if rollout_steps >= LONG_ROLLOUT else ENV_STEPS_OF_SHORT_ROLLOUTS
        return clock.env_steps // every > self.since.env_steps // every

    def add(self, metrics: Mapping[str, Any]) -> None:
        """Those of one more update; refused where a line could not hold them beside the run's own."""
        for name, value in metrics.items():
            if name not in self._sums:
                _check_metric(name, value)
            before, count = self._sums.get(name, (0.0, 0))
            summed = count and isinstance(value, int | float | np.number) and not isinstance(before, str)
            self._sums[name] = [before + value, count + 1] if summed else [value, 1]

    def take(self, clock: Clock, recent: RecentEpisodes, more: Mapping[str, Any]) -> dict[str, Any]:
        """Counts, speed and shares of the time, then `more`, then the mean of each metric; and start anew."""
        before, self.since = self.since, replace(clock)
        took_s = clock.seconds - before.seconds
        metrics: dict[str, Any] = {
            "episodes": clock.episodes,
            "updates": clock.updates,
            "seconds": round(clock.seconds, 3),
            "env_steps_per_s": (clock.env_steps - before.env_steps) / took_s if took_s else 0.0,
            "mean_return": recent.mean_return,
            "mean_length": recent.mean_length,
            **{f"mean_return/{agent}": value for agent, value in recent.by_agent.items()},
            **{f"{part}_share": share for part, share in clock.shares_since(before).items()},
            **more,
        }
        means = {name: value if count == 1 else value / count for name, (value, count) in self._sums.items()}
        self._sums.clear()
        return metrics | {name: value for name, value in means.items() if name not in metrics}

    def state(self) -> dict[str, Any]:
        return {"since": self.since.env_steps, **self._sums}

    def load(self, state: Mapping[str, Any], clock: Clock) -> None:
        sums = {"since": clock.env_steps, **state}
        self.since = replace(clock, env_steps=int(sums.pop("since")))
        self._sums = {name: [value, int(count)] for name, (value, count) in sums.items()}


# -- sinks -------------------------------------------------------------------------------------------------------
class Sink(Protocol):
    """Receives events. Either method may raise: the sink is then disabled, and the run continues."""

    def handle(self, event: Event) -> None: ...

    def close(self) -> None:
        """Release what is open; by default nothing is."""
        return


class Guarded:
    """Calls something that may fail. The first failure is reported in one warning and is the last call."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.failure: Exception | None = None

    def __call__(self, action: Callable[..., None], *arguments: Any) -> None:
        if self.failure is not None:
            return
        try:
            action(*arguments)
        except Exception as error:
            self.failure = error  # guard: a-sink-may-fail
            log.warning("%s failed and is disabled from now on: %s: %s", self.name, type(error).__name__, error)


class Sinks(Sink):
    """Several sinks as one, which does not fail where one of them does."""

    def __init__(self, sinks: Iterable[Sink] = ()) -> None:
        self._sinks: list[tuple[Sink, Guarded]] = []
        self._started: RunStarted | None = None
        for sink in sinks:
            self.add(sink)

    def add(self, sink: Sink) -> None:
        """One more, from now on; a failure of it is reported by its `name`, if it has one, or its class."""
        self._sinks.append((sink, Guarded(f"the sink {getattr(sink, 'name', type(sink).__name__)}")))

    def handle(self, event: Event) -> None:
        """Pass the event to every sink that has not failed."""
        if isinstance(event, RunStarted):
            self._started = event
        for sink, guarded in self._sinks:
            guarded(sink.handle, event)

    @property
    def position(self) -> tuple[Path | None, int]:
        """(path, env steps) of the run whose events these were; None and 0 before it has started."""
        return (None, 0) if self._started is None else (self._started.path, self._started.status.clock.env_steps)

    def close(self) -> None:
        """Close every sink, also those that had failed; of these nothing more is reported."""
        for sink, guarded in self._sinks:
            if guarded.failure is None:
                guarded(sink.close)
            else:
                with suppress(Exception):  # it was reported when it failed
                    sink.close()
        self._sinks.clear()

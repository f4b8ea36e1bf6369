"""Events of a run, the sinks that receive them, and `run_with_sinks`, which runs a training with sinks.

The trainer reports what happens as events, in order. Sinks write or show them: the run's files (`runs/metric_sinks.py`,
registered in `RunDirectory.sinks`), lines and bars (`progress.py`), the live display (`cli/display.py`) and JSON lines
(`cli/run_output.py`). A sink reads nothing but the event: it does not know the trainer. Metrics have the names that
`metrics.jsonl` has. To control a run, for example to stop it, use hooks (`hooks.py`).
"""

from __future__ import annotations

import logging
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from multiverse.core.errors import EnvFailed, ReplyTimeout, WorkerDied
from multiverse.core.failures import HOW_TO_CONTINUE
from multiverse.executors.launch.output import hold_standard_descriptors
from multiverse.training.config.budget import Clock
from multiverse.training.runs.checkpoint import saved_steps
from multiverse.training.runs.find_runs import CHECKPOINTS

if TYPE_CHECKING:
    from multiverse.core.plan import Plan
    from multiverse.rollouts.episodes import Episode, RecentEpisodes
    from multiverse.training.config.train_config import TrainConfig
    from multiverse.training.run import Run
    from multiverse.training.scaling import Decision
    from multiverse.training.session import Session

log = logging.getLogger("multiverse")

Metrics = Mapping[str, float | int | str]


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
        """Present plan of the envs."""
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


# -- a run with sinks --------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class ResumeCommand:
    """Command that resumes a run: `mv.resume` or a shell command, and `arguments` that must be given again."""

    in_python: bool = False
    arguments: str = ""

    def of(self, path: Path) -> str:
        if self.in_python:
            return f"mv.resume({str(path)!r}{self.arguments})"
        return f"multiverse resume {shlex.quote(str(path))}{self.arguments}"


def run_with_sinks(begin: Callable[..., Run], sinks: Sequence[Sink], resume: ResumeCommand | None = None) -> Run:
    """Run a training, `begin(sinks=…)`, whose events these sinks receive; then close them.

    An interrupt or an error is reported to them after the run's envs are closed, and raised again.
    """
    hold_standard_descriptors()
    together, resume = Sinks(sinks), resume or ResumeCommand()
    try:
        run = begin(sinks=together)
    except (KeyboardInterrupt, SystemExit):
        path, env_steps = together.position
        saved, command = (None, "") if path is None else (saved_steps(path / CHECKPOINTS), resume.of(path))
        together.handle(RunInterrupted(path=path, env_steps=env_steps, saved_env_steps=saved, resume_command=command))
        raise
    except Exception as error:
        path, env_steps = together.position
        named = _with_resume_command(error, path, resume)
        together.handle(RunFailed(path=path, env_steps=env_steps, error=named))
        if named is error:
            raise
        raise named.with_traceback(error.__traceback__) from error.__cause__
    else:
        together.handle(RunEnded(path=run.path, summary=run.summary))
        return run
    finally:
        together.close()


def _with_resume_command(error: Exception, path: Path | None, resume: ResumeCommand) -> Exception:
    """The error with the command that resumes this run in its hint, if the hint mentions resuming."""
    if not isinstance(error, EnvFailed | WorkerDied | ReplyTimeout):
        return error
    if path is None or HOW_TO_CONTINUE not in error.hint:
        return error
    return error.with_hint(error.hint.replace(HOW_TO_CONTINUE, f"the run can be resumed with `{resume.of(path)}`"))

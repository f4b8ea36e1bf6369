"""Events of a run: their kinds and order, and that no sink can end the run."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import multiverse as mv
from multiverse.training import events
from multiverse.training.config.resolve import config_for
from multiverse.training.events import run_with_sinks
from multiverse.training.run import resume_run, start_run
from multiverse.training.validation import StartOptions
from tests.training.small_runs import digest

FEW: dict[str, Any] = {"env_steps": 256, "num_envs": 2, "steps_per_env": 64, "evaluation_episodes": 2, "seed": 1}
FEW |= {"executor": "serial", "hidden_sizes": (8,), "evaluate_every": 128}


class Recorder(events.Sink):
    """A sink that keeps the events, or raises at every event of the kind `fails`."""

    def __init__(self, fails: type | tuple[type, ...] = ()) -> None:
        self.received: list[events.Event] = []
        self.fails, self.closed = fails, 0

    def handle(self, event: events.Event) -> None:
        self.received.append(event)
        if isinstance(event, self.fails):
            raise RuntimeError("broken sink")

    def close(self) -> None:
        self.closed += 1

    def kinds(self) -> list[str]:
        """The kinds of the events, without those that depend on the results of the run."""
        left_out = events.EpisodesEnded, events.CheckpointSaved
        return [type(event).__name__ for event in self.received if not isinstance(event, left_out)]


def started(home: Path, *sinks: events.Sink, hooks: Sequence[mv.Hook] = ()) -> mv.Run:
    config = config_for("CartPole-v1", "ppo", FEW)
    return run_with_sinks(functools.partial(start_run, config, StartOptions(run_dir=home), hooks=hooks), list(sinks))


def lines_of(run: mv.Run, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run.path / name).read_text().splitlines()]


def test_events_of_a_run_are_in_order_with_the_contents_of_its_files(tmp_path: Path) -> None:
    recorder = Recorder()
    run = started(tmp_path / "run", recorder)
    assert recorder.kinds() == [
        "RunStarted",
        *("MetricsLogged", "UpdateDone", "EvaluationDone"),
        *("MetricsLogged", "UpdateDone", "EvaluationDone"),
        "RunEnded",
    ]
    of = (events.MetricsLogged, events.EvaluationDone)
    logged = [{"env_steps": one.env_steps, **one.metrics} for one in recorder.received if isinstance(one, of)]
    assert json.loads(json.dumps(logged)) == lines_of(run, "metrics.jsonl")
    episodes = [one for one in recorder.received if isinstance(one, events.EpisodesEnded)]
    ended = [(one.env_steps, episode.returned) for one in episodes for episode in one.episodes]
    assert ended == [(line["env_steps"], line["return"]) for line in lines_of(run, "episodes.jsonl")]
    saved = [one for one in recorder.received if isinstance(one, events.CheckpointSaved)]
    assert saved[-1].final and saved[-1].path.is_dir() and saved[-1].env_steps == 256
    end = recorder.received[-1]
    assert isinstance(end, events.RunEnded) and (end.path, end.summary) == (run.path, run.summary)
    assert recorder.closed == 1


def test_files_receive_events_before_other_sinks_and_those_before_hooks(tmp_path: Path) -> None:
    seen: list[Any] = []

    class LooksAtFiles(events.Sink):
        def handle(self, event: events.Event) -> None:
            if isinstance(event, events.MetricsLogged | events.EvaluationDone):
                seen.append(("sink", len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines())))

    class LooksAtSinks(mv.Hook):
        def on_update(self, trainer: Any, report: Any) -> None:
            seen.append(("on_update", trainer.metrics["updates"]))

        def on_evaluation(self, trainer: Any, evaluation: Any) -> None:
            seen.append(("on_evaluation", trainer.clock.updates))

    started(tmp_path / "run", LooksAtFiles(), hooks=[LooksAtSinks()])
    first = [("sink", 1), ("on_update", 1), ("sink", 2), ("on_evaluation", 1)]
    assert seen == [*first, ("sink", 3), ("on_update", 2), ("sink", 4), ("on_evaluation", 2)]


def test_resumed_run_has_the_same_id(tmp_path: Path) -> None:
    first, other, again = Recorder(), Recorder(), Recorder()
    run = started(tmp_path / "run", first)
    started(tmp_path / "other", other)
    run_with_sinks(functools.partial(resume_run, run.path, {"env_steps": 384}), [again])
    starts = [recorder.received[0] for recorder in (first, again, other)]
    ids = [one.run_id for one in starts if isinstance(one, events.RunStarted)]
    assert ids[0] == ids[1] != ids[2] and all(ids)


@pytest.mark.fault("F4")
@pytest.mark.parametrize("kind", [events.RunStarted, events.UpdateDone, events.EvaluationDone, events.RunEnded])
def test_sink_that_fails_at_any_event_costs_only_itself(
    kind: type, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    expected = digest(started(tmp_path / "expected"))
    broken, other = Recorder(kind), Recorder()
    assert digest(started(tmp_path / "run", broken, other)) == expected
    assert isinstance(broken.received[-1], kind) and broken.closed == 1
    assert isinstance(other.received[-1], events.RunEnded)
    assert [line for line in caplog.messages if "broken sink" in line] == [
        "the sink Recorder failed and is disabled from now on: RuntimeError: broken sink"
    ]


def test_interrupt_before_training_and_error_are_events() -> None:
    def interrupted(sinks: events.Sinks) -> Any:
        raise KeyboardInterrupt

    def fails(sinks: events.Sinks) -> Any:
        raise ValueError("no run")

    recorder = Recorder()
    with pytest.raises(KeyboardInterrupt):
        run_with_sinks(interrupted, [recorder])
    with pytest.raises(ValueError, match="no run") as caught:
        run_with_sinks(fails, [recorder])
    interruption, failure = recorder.received
    assert isinstance(interruption, events.RunInterrupted) and interruption.path is None
    assert isinstance(failure, events.RunFailed) and failure.error is caught.value and failure.path is None

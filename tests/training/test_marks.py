"""Envs that save their state: whenever a run ends, the saved state is that after its last update, or none."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import multiverse as mv
from multiverse.algorithms.algorithm import UpdateReport
from multiverse.rollouts.episodes import Collected
from multiverse.rollouts.rows import Rows
from multiverse.training import env_states
from multiverse.training.trainer import Trainer
from tests.training.envs import Wanderer
from tests.training.small_runs import SMALL, digest, lines_of

ALWAYS, NEVER = float("inf"), 0.0
RUN = {**SMALL, "num_envs": 2, "env_steps": 300}  # six rollouts of 50 env steps


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The uninterrupted run."""
    return mv.train(Wanderer, run_dir=tmp_path_factory.mktemp("whole") / "run", **RUN).path


def worth(share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the share of a rollout's time that a save may take for states to be taken at every mark."""
    monkeypatch.setattr(env_states, "MAX_SHARE_OF_ROLLOUT", share)


class Stumbles(mv.Hook):
    """Hook that saves after the first update, and fails in the fourth rollout."""

    def on_update(self, trainer: Trainer, report: UpdateReport) -> None:
        if trainer.clock.updates == 1:
            trainer.save()

    def on_rollout(self, trainer: Trainer, collected: Collected) -> None:
        if trainer.clock.updates == 3:
            raise LookupError("a hook of mine")


@pytest.mark.fault("G8")
@pytest.mark.parametrize("executor", ["serial", "process"])
def test_hook_that_fails_inside_a_rollout_costs_only_that_rollout(
    executor: str, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    worth(ALWAYS, monkeypatch)
    with pytest.raises(LookupError):
        mv.train(Wanderer, run_dir=tmp_path / "run", hooks=[Stumbles()], **{**RUN, "executor": executor})
    run = mv.resume(tmp_path / "run", env=Wanderer)
    assert digest(run.path) == digest(whole)
    assert lines_of(run.path, "episodes.jsonl") == lines_of(whole, "episodes.jsonl")


@pytest.mark.fault("G8")
@pytest.mark.parametrize("executor", ["serial", "process"])
def test_env_that_fails_inside_a_rollout_costs_only_that_rollout(
    executor: str, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worth(ALWAYS, monkeypatch)
    kwargs = {"note": str(tmp_path / "note"), "fault": "step raise"}
    settings = {**RUN, "executor": executor, "env_kwargs": kwargs, "on_failure": "raise"}
    with pytest.raises(mv.errors.EnvFailed, match="once"):
        mv.train(Wanderer, run_dir=tmp_path / "run", **settings)
    assert digest(mv.resume(tmp_path / "run", env=Wanderer).path) == digest(whole)


@pytest.mark.fault("G8")
def test_slow_env_states_prevent_saving_inside_a_rollout_with_a_warning(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    worth(NEVER, monkeypatch)
    with pytest.raises(LookupError):
        mv.train(Wanderer, run_dir=tmp_path / "run", hooks=[Stumbles()], **RUN)
    assert "no checkpoint was saved at 150 env steps" in caplog.text
    assert "continues from 50 env steps, and 100 are lost" in caplog.text
    assert not json.loads((tmp_path / "run" / "summary.json").read_text())["finished"]
    assert digest(mv.resume(tmp_path / "run", env=Wanderer).path) == digest(whole)


@pytest.mark.fault("G8")
def test_save_by_a_hook_inside_a_rollout_is_skipped_with_a_warning(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class TooSoon(mv.Hook):
        def on_rollout(self, trainer: Trainer, collected: Collected) -> None:
            trainer.save()

    worth(NEVER, monkeypatch)
    run = mv.train(Wanderer, run_dir=tmp_path / "run", hooks=[TooSoon()], **RUN)
    assert "no checkpoint was saved at 100 env steps" in caplog.text and digest(run.path) == digest(whole)


@contextmanager
def interrupted_in_step(number: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Ctrl-C in the step of that number, counted over the run; yields the number of taken steps."""
    before, steps = Rows.act, [0]

    def step(*arguments: Any) -> Any:
        steps[0] += 1
        if steps[0] == number:
            signal.raise_signal(signal.SIGINT)
        return before(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Rows, "act", step)
        with pytest.raises(KeyboardInterrupt):
            yield steps


@pytest.mark.fault("G8", "A14")
def test_stop_ends_at_once_if_env_states_are_available(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worth(ALWAYS, monkeypatch)
    with interrupted_in_step(80, monkeypatch) as steps:
        mv.train(Wanderer, run_dir=tmp_path / "run", **RUN)
    assert steps == [80]
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["env_steps"] == 150
    assert digest(mv.resume(tmp_path / "run", env=Wanderer).path) == digest(whole)


@pytest.mark.fault("G8", "A14")
def test_stop_waits_for_the_rollout_without_env_states(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worth(NEVER, monkeypatch)
    with interrupted_in_step(80, monkeypatch) as steps:
        mv.train(Wanderer, run_dir=tmp_path / "run", **RUN)
    assert steps == [100]
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["env_steps"] == 200
    assert digest(mv.resume(tmp_path / "run", env=Wanderer).path) == digest(whole)


@pytest.mark.fault("G8")
@pytest.mark.parametrize(("share", "saves"), [(ALWAYS, 2 + 6), (NEVER, 2 + 1 + 1)])
def test_taking_env_states_at_every_update_is_decided_once(
    share: float, saves: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each env twice at the start, then after every update, or after the first and for the last checkpoint only; and
    the evaluation env once."""
    worth(share, monkeypatch)
    monkeypatch.setattr(Wanderer, "saves", 0)
    mv.train(Wanderer, run_dir=tmp_path / "run", **RUN)
    assert Wanderer.saves == 2 * saves + 1


@pytest.mark.fault("G8")
@pytest.mark.parametrize("fault", ["save die", "save hang"])
def test_worker_lost_while_saving_env_states_costs_only_its_episodes(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    worth(ALWAYS, monkeypatch)
    kwargs = {"note": str(tmp_path / "note"), "fault": fault}
    settings = {**RUN, "executor": "process", "workers": 2, "env_kwargs": kwargs, "reply_timeout_s": 1.0}
    run = mv.train(Wanderer, run_dir=tmp_path / "run", **settings)
    assert run.summary["finished"] and run.summary["failures"]["worker_restarts"] == 1
    assert "begin another episode" in caplog.text
    twins = [shutil.copytree(run.path, tmp_path / name) for name in ("one", "other")]
    assert len({digest(mv.resume(twin, env=Wanderer, env_steps=400)) for twin in twins}) == 1


@pytest.mark.fault("G2", "D5")
@pytest.mark.parametrize("fault", ["restore die", "restore hang"])
def test_worker_lost_while_restoring_env_states_is_named_and_the_run_continues(
    fault: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kwargs = {"note": str(tmp_path / "note"), "fault": fault}
    settings = {**RUN, "env_steps": 100, "executor": "process", "workers": 1, "env_kwargs": kwargs}
    run = mv.train(Wanderer, run_dir=tmp_path / "run", **settings, reply_timeout_s=1.0)
    longer = mv.resume(run, env=Wanderer, env_steps=200)
    assert longer.summary["env_steps"] == 200 and longer.summary["failures"]["worker_restarts"] == 1
    assert "envs [0, 1] could not be restored" in caplog.text


@pytest.mark.fault("G8")
def test_failed_update_saves_nothing_and_reports_the_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: Any) -> None:
        raise LookupError("an algorithm of mine")

    class Sabotage(mv.Hook):
        def on_update(self, trainer: Trainer, report: UpdateReport) -> None:
            if trainer.clock.updates == 2:
                monkeypatch.setattr(trainer.algorithm, "update", fails)

    with pytest.raises(LookupError):
        mv.train(Wanderer, run_dir=tmp_path / "run", hooks=[Stumbles(), Sabotage()], **RUN)
    assert "an update is running; if resumed, the run continues from 50 env steps" in caplog.text


def test_run_with_unsaveable_env_states_can_be_resumed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Strange(Wanderer):
        def save_state(self) -> Any:
            return {"self": self}

    run = mv.train(Strange, run_dir=tmp_path / "run", **{**RUN, "env_steps": 100})
    assert mv.resume(run, env=Strange, env_steps=200).summary["env_steps"] == 200

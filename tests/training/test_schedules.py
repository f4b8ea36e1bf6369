"""Values that follow the budget, in runs that are resumed with another budget."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import multiverse as mv
from multiverse.algorithms.dqn import DQNConfig
from multiverse.algorithms.taac import TAACConfig
from multiverse.cli.main import main
from multiverse.training.config.files import read_config
from tests.training.small_runs import SMALL, digest

LINEAR = {"learning_rate": 1e-3, "learning_rate_schedule": "linear", "clip_range": 0.2, "clip_range_schedule": "linear"}
RUN: dict[str, Any] = {**SMALL, "env_steps": 400, "progress": False, **LINEAR}


class Rates(mv.Hook):
    def __init__(self, stop_after: int | None = None) -> None:
        self.seen: list[float] = []
        self._stop_after = stop_after

    def on_update(self, trainer: Any, report: Any) -> None:
        self.seen.append(report.metrics["learning_rate"])
        if trainer.clock.updates == self._stop_after:
            trainer.stop("enough")


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if "schedules follow the budget" in one.getMessage()]


@pytest.mark.fault("D6")
def test_larger_budget_makes_linear_schedules_jump_and_one_warning_has_both_values(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rates = Rates()
    run = mv.train("CartPole-v1", run_dir=tmp_path / "run", hooks=[rates], **RUN)
    mv.resume(run, env_steps=800, hooks=[rates], progress=False)
    assert rates.seen == pytest.approx([1e-3, 0.75e-3, 0.5e-3, 0.25e-3, 0.5e-3, 0.375e-3, 0.25e-3, 0.125e-3])
    (warning,) = warnings_of(caplog)
    assert "learning_rate goes from 0.00025 to 0.0005 and clip_range goes from 0.05 to 0.1" in warning
    assert "--hold-schedules" in warning and "hold_schedules=True" in warning
    assert read_config(run.path / "config.yaml")["schedule_progress"] is None


@pytest.mark.fault("D6")
def test_held_schedules_keep_the_last_values_and_later_resumes_are_exact(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    whole, part = (mv.train("CartPole-v1", run_dir=tmp_path / name, **RUN) for name in ("whole", "part"))
    rates = Rates()
    mv.resume(whole, env_steps=800, hold_schedules=True, hooks=[rates], progress=False)
    assert rates.seen == pytest.approx([0.25e-3] * 4) and not warnings_of(caplog)
    mv.resume(part, env_steps=800, hold_schedules=True, hooks=[Rates(stop_after=6)], progress=False)
    mv.resume(part, progress=False)
    assert digest(part) == digest(whole) and not warnings_of(caplog)
    assert read_config(part.path / "config.yaml")["schedule_progress"] == pytest.approx(0.75)
    mv.resume(part, env_steps=900, hold_schedules=True, hooks=[rates], progress=False)
    assert rates.seen[-1] == rates.seen[0] and not warnings_of(caplog)


def test_unchanged_values_are_not_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = mv.train("CartPole-v1", run_dir=tmp_path / "run", hooks=[Rates(stop_after=2)], **RUN)
    mv.resume(run, hooks=[Rates(stop_after=3)], progress=False)
    mv.resume(run, env_steps=400, progress=False)
    constant = {"learning_rate_schedule": "constant", "clip_range_schedule": "constant"}
    mv.resume(run, env_steps=500, **constant, progress=False)
    assert not warnings_of(caplog)


def test_schedule_function_that_jumps_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def rate(left: float) -> float:
        return 1e-3 * left

    settings = {**RUN, "learning_rate_schedule": "constant", "clip_range_schedule": "constant", "learning_rate": rate}
    run = mv.train("CartPole-v1", run_dir=tmp_path / "run", **settings)
    held = Rates()
    mv.resume(run, env_steps=600, learning_rate=rate, hold_schedules=True, hooks=[held], progress=False)
    assert held.seen == pytest.approx([0.25e-3] * 2) and not warnings_of(caplog)
    other = mv.train("CartPole-v1", run_dir=tmp_path / "other", **settings)
    mv.resume(other, env_steps=800, learning_rate=rate, progress=False)
    (warning,) = warnings_of(caplog)
    assert warning.startswith("learning_rate goes from 0.00025 to 0.0005:")


def test_exploration_that_would_start_again_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings = {
        "num_envs": 1,
        "env_steps": 200,
        "learning_starts": 0,
        "exploration_fraction": 0.8,
        "executor": "serial",
    }
    small = {"batch_size": 4, "evaluate_every": 0, "evaluation_episodes": 1, "preset": False, "progress": False}
    run = mv.train("CartPole-v1", "dqn", run_dir=tmp_path / "run", **settings, **small)
    mv.resume(run, env_steps=400, progress=False)
    (warning,) = warnings_of(caplog)
    assert warning.startswith("exploration_eps goes from 0.05 to 0.406:")


def test_scheduled_values_of_each_algorithm() -> None:
    assert TAACConfig(learning_rate=1e-3, min_learning_rate=1e-4).scheduled(0.5) == pytest.approx(
        {"learning_rate": 5.5e-4}
    )
    assert DQNConfig(exploration_fraction=0.0).scheduled(0.0) == pytest.approx({"exploration_eps": 0.05})


@pytest.mark.parametrize("value", [-0.1, 1.1, float("nan")])
def test_progress_outside_of_0_to_1_is_refused(value: float) -> None:
    with pytest.raises(mv.errors.InvalidRequest, match="schedule_progress="):
        mv.train("CartPole-v1", schedule_progress=value)


def test_hold_schedules_flag_applies_to_single_runs_and_seed_sets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    mv.train("CartPole-v1", run_dir="one", **RUN)
    mv.train("CartPole-v1", run_dir="set", seeds=2, **RUN)
    for home in ("one", "set"):
        assert main(["resume", home, "--env-steps", "800", "--hold-schedules", "--quiet"]) == 0
    held = [read_config(Path(run, "config.yaml"))["schedule_progress"] for run in ("one", "set/seed-5", "set/seed-6")]
    assert held == pytest.approx([0.75] * 3) and not warnings_of(caplog)


def test_schedule_function_replaces_a_linear_preset(tmp_path: Path) -> None:
    run = mv.train(
        "CartPole-v1", run_dir=tmp_path / "run", lr=lambda left: 1e-3 * left, env_steps=1_024, executor="serial",
        evaluation_episodes=1, evaluate_every=0, progress=False,
    )  # fmt: skip
    rates = [row["learning_rate"] for row in run.rows() if "learning_rate" in row]
    assert rates == pytest.approx([1e-3, 7.5e-4, 5e-4, 2.5e-4])


def test_edited_budget_that_makes_schedules_jump_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = mv.train(
        "CartPole-v1", run_dir=tmp_path / "run", env_steps=512, executor="serial", evaluation_episodes=1,
        evaluate_every=0, progress=False,
    )  # fmt: skip
    config = run.path / "config.yaml"
    config.write_text(config.read_text().replace("env_steps: 512", "env_steps: 2048"))
    mv.resume(run, progress=False)
    assert "learning_rate goes from" in caplog.text
    config.write_text(config.read_text().replace("num_envs: 8", "num_envs: 4"))
    with pytest.raises(mv.errors.InvalidRequest, match="num_envs cannot change in a run"):
        mv.resume(run, env_steps=4_096, progress=False)

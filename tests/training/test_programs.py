"""`mv.train` and `mv.resume` in a program: the options of the command line as arguments and callables."""

from __future__ import annotations

import io
import logging
import signal
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest

import multiverse as mv
from multiverse.algorithms.ppo import PPO
from multiverse.cli.main import main
from multiverse.training import progress
from multiverse.training.config.files import read_config
from multiverse.training.config.train_config import TrainConfig
from multiverse.training.loading import evaluate
from multiverse.training.runs import origin
from tests.training.small_runs import SMALL, digest, lines_of


def trained(home: Path, **settings: Any) -> mv.Run:
    return mv.train("CartPole-v1", run_dir=home, **{**SMALL, "env_steps": 400, "progress": False, **settings})


class Rates(mv.Hook):
    """Hook that keeps the learning rate of every update."""

    def __init__(self) -> None:
        self.seen: list[float] = []

    def on_update(self, trainer: Any, report: Any) -> None:
        self.seen.append(trainer.algorithm.config.learning_rate)


# -- names and schedules -----------------------------------------------------------------------------------------
def test_settings_have_the_names_of_flags(tmp_path: Path) -> None:
    few = {name: value for name, value in SMALL.items() if name not in ("num_envs", "env_steps", "epochs")}
    mv.train("CartPole-v1", run_dir=tmp_path / "run", progress=False, **few, n_envs=2, total_timesteps=100, lr=0.01,
             n_epochs=1, net_arch=[8])  # fmt: skip
    config = read_config(tmp_path / "run" / "config.yaml")
    assert (config["num_envs"], config["env_steps"]) == (2, 100)
    own = config["ppo"]
    assert (own["learning_rate"], own["epochs"], own["hidden_sizes"]) == (0.01, 1, [8])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lrr": 1e-3}, r"^lrr: there is no such setting. Did you mean lr\?$"),
        ({"foo": 1}, r"^foo: there is no such setting. The nearest are: \w+, \w+, \w+$"),
        ({"verbose": 1}, r"^verbose: there is no such setting. What to use instead: progress=False"),
        ({"policy_kwargs": {}}, r"What to use instead: separate settings: hidden_sizes"),
        ({"callback": None}, r"What to use instead: hooks"),
        ({"algorithm": "sac"}, r"^epochs: .* It is a setting of ppo, taac; this is sac$"),
        ({"algorithm": "pppo"}, r"there is no algorithm 'pppo'.*; did you mean ppo\?$"),
        ({"num_envs": 0}, "^num_envs=0: expected at least 1$"),
        (
            {"lr": lambda: 1},
            "^learning_rate: expected a function of the share of the budget that is left.*raised TypeError",
        ),
    ],
)
def test_misspelled_setting_is_reported_in_one_line(settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(mv.errors.InvalidRequest, match=message):
        trained(tmp_path / "run", **settings)


@pytest.mark.parametrize("episodes", ["x", 1.5, [0, "x"], 0, []])
def test_number_of_evaluation_episodes_must_be_a_positive_integer(episodes: Any, tmp_path: Path) -> None:
    run = trained(tmp_path / "run", env_steps=100)
    with pytest.raises(mv.errors.InvalidRequest, match=r"episodes=.*(expected a whole number|at least 1)"):
        mv.evaluate(run, episodes=episodes)


def test_setting_given_under_two_names_is_refused(tmp_path: Path) -> None:
    with pytest.raises(mv.errors.InvalidRequest, match="lr and learning_rate are the same setting"):
        trained(tmp_path / "run", learning_rate=1e-3, lr=1e-4)
    with pytest.raises(mv.errors.InvalidRequest, match="env_steps and total_timesteps are the same setting"):
        mv.train("CartPole-v1", total_timesteps=10, env_steps=10)


def test_setting_can_be_a_function_of_the_remaining_budget(tmp_path: Path) -> None:
    rates = Rates()
    trained(tmp_path / "run", lr=lambda left: 1e-3 * left, hooks=[rates])
    assert rates.seen == pytest.approx([1e-3, 0.75e-3, 0.5e-3, 0.25e-3])
    assert read_config(tmp_path / "run" / "config.yaml")["ppo"]["learning_rate"] == 1e-3


def test_run_with_a_schedule_function_resumes_exactly_or_asks_for_it(tmp_path: Path) -> None:
    def half(left: float) -> float:
        return 1e-3 * left

    class Stops(mv.Hook):
        def on_update(self, trainer: Any, report: Any) -> None:
            if trainer.clock.updates == 2:
                trainer.stop("enough")

    whole = trained(tmp_path / "whole", lr=half)
    part = trained(tmp_path / "part", lr=half, hooks=[Stops()])
    with pytest.raises(
        mv.errors.InvalidRequest, match="learning_rate of this run was a function of a program: pass it again"
    ):
        mv.resume(part, progress=False)
    mv.resume(part, lr=half, progress=False)
    assert digest(part) == digest(whole)


# -- resume with other settings ----------------------------------------------------------------------------------
def test_settings_changed_by_resume_are_kept_for_the_next_resume(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", lr=1e-3)
    rates = Rates()
    mv.resume(run, env_steps=500, lr=1e-4, hooks=[rates], progress=False)
    mv.resume(run, env_steps=600, hooks=[rates], progress=False)
    assert rates.seen == [1e-4, 1e-4]


def test_resume_with_another_executor_gives_equal_weights(tmp_path: Path) -> None:
    one, other = trained(tmp_path / "one"), trained(tmp_path / "other")
    one, other = (
        mv.resume(one, env_steps=800, progress=False),
        mv.resume(other, env_steps=800, executor="process", num_workers=1, progress=False),
    )
    assert (one.summary["plan"]["executor"], other.summary["plan"]["executor"]) == ("serial", "process")
    assert digest(one) == digest(other)


@pytest.mark.parametrize(
    "setting", [{"num_envs": 2}, {"seed": 1}, {"net_arch": [8]}, {"algorithm": "a2c"}, {"tasks": 3}]
)
def test_settings_that_define_a_run_cannot_change(setting: dict[str, Any], tmp_path: Path) -> None:
    run = trained(tmp_path / "run")
    before = (run.path / "config.yaml").read_bytes()
    with pytest.raises(mv.errors.InvalidRequest, match=r"cannot change in a run|the run says which it is"):
        mv.resume(run, env_steps=800, progress=False, **setting)
    assert (run.path / "config.yaml").read_bytes() == before


def test_invalid_setting_leaves_the_run_unchanged(tmp_path: Path) -> None:
    run = trained(tmp_path / "run")
    before = (run.path / "config.yaml").read_bytes()
    for wrong in ({"lr": -1.0}, {"learning_rte": 1.0}, {"device": "mps"}):
        with pytest.raises((mv.errors.InvalidRequest, mv.errors.PreflightError)):
            mv.resume(run, env_steps=800, progress=False, **wrong)
    assert (run.path / "config.yaml").read_bytes() == before


def test_run_ended_before_its_first_checkpoint_starts_with_its_initial_weights_again(tmp_path: Path) -> None:
    class Ends(mv.Hook):
        def on_start(self, trainer: Any) -> None:
            raise KeyboardInterrupt

    weights = trained(tmp_path / "weights")
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "run", init_from=weights.path, hooks=[Ends()])
    whole = trained(tmp_path / "whole", init_from=weights.path)
    assert digest(mv.resume(tmp_path / "run", progress=False)) == digest(whole)
    assert digest(whole) != digest(trained(tmp_path / "without"))


# -- wrappers ----------------------------------------------------------------------------------------------------
class Doubled(gymnasium.RewardWrapper[Any, Any]):
    """Rewards of 2 instead of 1."""

    def reward(self, reward: Any) -> Any:
        return 2.0 * float(reward)


def test_wrappers_are_part_of_the_run(tmp_path: Path) -> None:
    names = [f"{__name__}:Doubled", "gymnasium.wrappers:FlattenObservation"]
    run = trained(tmp_path / "run", wrappers=[Doubled, names[1]])
    assert read_config(run.path / "config.yaml")["wrappers"] == names
    episodes = lines_of(run.path, "episodes.jsonl")
    assert episodes and all(one["return"] == 2 * one["length"] for one in episodes)
    found = mv.resume(run, env_steps=600, progress=False).summary["evaluation"]
    assert found["mean_return"] == 2 * found["mean_length"]
    again = [Doubled, gymnasium.wrappers.FlattenObservation]
    assert mv.resume(run, env_steps=700, wrappers=again, progress=False).summary["env_steps"] == 700
    tried = evaluate(run, episodes=2)
    assert tried.returns == tuple(2.0 * length for length in tried.lengths)


def test_wrapper_of_a_program_must_be_passed_again(tmp_path: Path) -> None:
    def inside(env: Any) -> Any:
        return Doubled(env)

    run = trained(tmp_path / "run", wrappers=[inside])
    with pytest.raises(
        mv.errors.InvalidRequest, match=r"inside of this run is one of a program: pass it again, wrappers="
    ):
        mv.resume(run.path, env_steps=600, progress=False)
    with pytest.raises(mv.errors.InvalidRequest, match=r"the envs of this run are wrapped in \['.*inside'\]"):
        mv.resume(run, env_steps=600, wrappers=[Doubled], progress=False)
    assert mv.resume(run.path, env_steps=600, wrappers=[inside], progress=False).summary["env_steps"] == 600
    tried = evaluate(run, episodes=2)  # the object keeps it
    assert tried.returns == tuple(2.0 * length for length in tried.lengths)
    assert evaluate(run.path, episodes=2, wrappers=[inside]) == tried


def test_wrapper_of_a_foreign_run_is_not_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = trained(tmp_path / "run", wrappers=[Doubled])
    file = run.path / "config.yaml"
    file.write_text(file.read_text().replace(f"{__name__}:Doubled", "os:system"))
    with pytest.raises(mv.MultiverseError, match="os:system"):
        mv.resume(run, env_steps=600, progress=False)
    monkeypatch.setattr(origin, "_read_key", lambda: b"another")  # a foreign run
    with pytest.raises(mv.MultiverseError, match="trust"):
        mv.resume(run, env_steps=600, progress=False)


# -- progress ----------------------------------------------------------------------------------------------------
class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_of_a_program_is_printed_on_standard_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = trained(tmp_path / "run", progress=True)
    out, captured = capsys.readouterr()
    lines = captured.splitlines()
    assert out == "" and lines[0] == f"Run: {run.path}"
    assert " 100 env steps (25 %) | " in captured  # the first update, at once
    assert lines[-1] == "Failures: none." and "\r" not in captured


def test_disabled_progress_prints_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trained(tmp_path / "run")
    assert capsys.readouterr() == ("", "")


def test_terminal_shows_a_bar_below_the_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(progress, "BAR_EVERY_S", 0.0)
    trained(tmp_path / "run", progress=True, evaluate_every=200)
    rows = [row.split("\r")[-1].rstrip() for row in screen.getvalue().split("\n")]
    assert rows[0].startswith("Run:") and any(" | evaluation: return " in row for row in rows)
    assert not any("%" in row and "█" in row for row in rows)  # every bar was written over
    bars = [part.strip() for part in screen.getvalue().split("\r") if "█" in part or "░" in part]
    assert bars[0].startswith("███░░░░░░░░░ 25 % | ") and " left | return " in bars[0] and bars[0].endswith("/s)")
    assert all(len(bar) < 80 for bar in bars)


def test_notebook_shows_a_bar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shell = SimpleNamespace(kernel=None)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    cell = io.StringIO()
    monkeypatch.setattr(sys, "stdout", cell)
    trained(tmp_path / "run", progress=True)
    assert "\r█" in cell.getvalue()


@pytest.mark.parametrize("reports", [True, False])
def test_interrupted_program_prints_the_resume_call(
    reports: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    class Interrupts(mv.Hook):
        def on_update(self, trainer: Any, report: Any) -> None:
            if trainer.clock.updates == 2:
                signal.raise_signal(signal.SIGINT)

    with caplog.at_level(logging.WARNING), pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "run", hooks=[Interrupts()], progress=reports)
    line = f"Interrupted at 200 env steps. To resume: mv.resume({str(tmp_path / 'run')!r})"
    assert line in (capsys.readouterr().err if reports else caplog.text)
    assert mv.resume(tmp_path / "run", progress=False).summary["env_steps"] == 400


def test_resume_call_names_objects_that_must_be_passed_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Interrupts(mv.Hook):
        def on_update(self, trainer: Any, report: Any) -> None:
            signal.raise_signal(signal.SIGINT)

    def mine() -> Any:
        return gymnasium.make("CartPole-v1")

    def learner(*given: Any) -> Any:
        return PPO(PPO.Config(steps_per_env=25), *given)

    with pytest.raises(KeyboardInterrupt):
        mv.train(
            mine, learner, run_dir=tmp_path / "run", hooks=[Interrupts()], progress=False, env_steps=400, num_envs=4,
            executor="serial",
        )  # fmt: skip
    assert f"To resume: mv.resume({str(tmp_path / 'run')!r}, env=mine, algorithm=learner)" in caplog.text
    with pytest.raises(
        mv.errors.InvalidRequest, match=r"in Gymnasium; the algorithm .*: pass them again, env=…, algorithm="
    ):
        mv.resume(tmp_path / "run")
    with pytest.raises(mv.errors.InvalidRequest, match=r"pass it again, env=… \(in a shell: --env FILE\.py:NAME\)$"):
        mv.resume(tmp_path / "run", algorithm=learner)


def test_failed_run_states_how_to_resume(tmp_path: Path) -> None:
    class Failing(gymnasium.Wrapper):  # type: ignore[type-arg]
        def __init__(self) -> None:
            super().__init__(gymnasium.make("CartPole-v1"))

        def step(self, action: Any) -> Any:
            raise OSError("no licence")

    with pytest.raises(mv.errors.EnvFailed, match="no licence") as caught:
        mv.train(Failing, run_dir=tmp_path / "run", **{**SMALL, "progress": False})
    assert f"; the run can be resumed with `mv.resume({str(tmp_path / 'run')!r}, env=Failing)`" in caught.value.hint


@pytest.mark.parametrize("saved", [True, False])
def test_second_ctrl_c_reports_what_was_lost(saved: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class InterruptsTwice(mv.Hook):
        def on_update(self, trainer: Any, report: Any) -> None:
            if trainer.clock.updates == 1 and saved:
                trainer.save()
            if trainer.clock.updates == 2:
                signal.raise_signal(signal.SIGINT)
                signal.raise_signal(signal.SIGINT)

    with caplog.at_level(logging.WARNING), pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "run", hooks=[InterruptsTwice()], progress=False)
    how = f"mv.resume({str(tmp_path / 'run')!r})"
    lost = f"without saving; the last checkpoint is at 100. To resume from there: {how}"
    line = lost if saved else f"and nothing was saved. To start again: {how}"
    assert line in caplog.text and "Ended at 200 env steps" in caplog.text and "Interrupted at" not in caplog.text
    assert mv.resume(tmp_path / "run", progress=False).summary["env_steps"] == 400


# -- what a run is -----------------------------------------------------------------------------------------------
def test_program_can_write_tensorboard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tensorboard")
    trained(tmp_path / "run", tensorboard=True)
    assert len(list((tmp_path / "run" / "tensorboard").iterdir())) == 1
    monkeypatch.setitem(sys.modules, "tensorboard.compat.proto", None)
    with pytest.raises(mv.errors.PreflightError, match="TensorBoard is not installed"):
        trained(tmp_path / "other", tensorboard=True)
    assert not (tmp_path / "other").exists()


def test_repr_of_a_run_has_its_path_and_result(tmp_path: Path) -> None:
    run = trained(tmp_path / "run")
    returned = run.summary["evaluation"]["mean_return"]
    assert repr(run).startswith(f"<Run {run.path}: 400 env steps, return {returned:.1f} ± ") and len(repr(run)) < 250
    assert np.isfinite(returned)


# -- names in any case, and other libraries' names -------------------------------------------------------------------
def test_algorithm_name_is_case_insensitive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = trained(tmp_path / "python", algorithm="PPO")
    Path("file.yaml").write_text("env: CartPole-v1\nalgorithm: A2C\n")
    small = ["--env-steps", "64", "--num-envs", "1", "--evaluation-episodes", "1", "--executor", "serial", "--quiet"]
    assert main(["train", "CartPole-v1", "--algorithm", "Discrete-SAC", "--run-dir", "shell", *small]) == 0
    assert main(["train", "--config", "file.yaml", "--run-dir", "file", *small]) == 0
    names = [read_config(Path(where, "config.yaml"))["algorithm"] for where in ("python", "shell", "file")]
    assert names == ["ppo", "discrete_sac", "a2c"] and TrainConfig(algorithm="DQN").algorithm == "dqn"
    assert mv.resume(run, algorithm="PPO", env_steps=500, progress=False).summary["env_steps"] == 500


def test_stable_baselines3_setting_names_are_accepted(tmp_path: Path) -> None:
    names = {
        "n_steps": 25,
        "n_epochs": 1,
        "ent_coef": 0.1,
        "vf_coef": 0.2,
        "learning_rate": 1e-4,
        "total_timesteps": 100,
    }
    run = mv.train("CartPole-v1", run_dir=tmp_path / "run", num_envs=4, executor="serial", progress=False, **names)
    config = read_config(run.path / "config.yaml")
    ours = {name: config["ppo"][name] for name in ("steps_per_env", "epochs", "entropy_coef", "value_coef")}
    assert ours == {"steps_per_env": 25, "epochs": 1, "entropy_coef": 0.1, "value_coef": 0.2}

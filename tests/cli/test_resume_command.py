"""`multiverse resume`: interrupted runs are continued, and finished runs extended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from multiverse.cli.main import main
from multiverse.training import progress
from multiverse.training.config.files import read_config
from tests.cli.training_commands import SMALL, train
from tests.training.small_runs import digest


def interrupt_after(updates: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self: Any, status: Any) -> None:
        if status.clock.updates == updates:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(progress.ProgressLines, "_update", interrupted)


def test_interrupted_run_resumes_exactly(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(Path("whole"), env_steps=512) == 0
    with monkeypatch.context() as patch:
        interrupt_after(3, patch)
        assert train(Path("parts"), env_steps=512) == 130
    capsys.readouterr()
    assert main(["resume", "parts"]) == 0
    assert "Resuming at 192 env steps." in capsys.readouterr().out
    assert digest("parts") == digest("whole")


def test_longer_budget_is_kept_for_the_next_resume(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert train(Path("one"), env_steps=128) == 0
    with monkeypatch.context() as patch:
        interrupt_after(3, patch)
        assert main(["resume", "one", "--timesteps", "320"]) == 130
    assert main(["resume", "one"]) == 0
    assert json.loads(Path("one/summary.json").read_text())["env_steps"] == 320
    assert read_config("one/config.yaml")["env_steps"] == 320


def test_exhausted_budget_is_reported(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train(Path("one"), env_steps=64) == 0
    capsys.readouterr()
    assert main(["resume", "one"]) == 0
    assert "The run has used its budget. Pass a larger --env-steps" in capsys.readouterr().out


def test_settings_passed_to_resume_are_kept_in_the_run(elsewhere: Path) -> None:
    assert train(Path("one"), env_steps=64) == 0
    assert main(["resume", "one", "--timesteps", "128", "--lr", "1e-4", "--executor", "thread", "--workers", "1"]) == 0
    config, summary = read_config("one/config.yaml"), json.loads(Path("one/summary.json").read_text())
    assert (config["env_steps"], config["ppo"]["learning_rate"], config["executor"]) == (128, 1e-4, "thread")
    assert (summary["env_steps"], summary["plan"]["executor"]) == (128, "thread")


def test_help_of_resume_shows_settings_of_the_runs_algorithm(
    elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(Path("one"), env_steps=64) == 0
    capsys.readouterr()
    for words in (["one", "--help"], ["-h", "one"]):
        assert main(["resume", *words]) == 0
        out = " ".join(capsys.readouterr().out.split())
        assert (
            "Number of rows of a minibatch, which gives one gradient step." in out
            and "from replay" not in out
            and "--tau" not in out
        )
    assert main(["resume", "--help"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "ppo: Number of rows of a minibatch, which gives one gradient step. taac: " in out
    assert "sac, td3, discrete_sac, dqn: Number of steps drawn from replay for one gradient step." in out
    assert "--executor {auto,serial,thread,process,hybrid,ray} Where the environments run." in out  # of every run


@pytest.mark.parametrize("word", [["train", "--help"], ["train", "CartPole-v1", "--lrr", "3"], ["train", "--tau", "1"]])
def test_help_and_mistyped_flags_import_no_heavy_package(word: list[str]) -> None:
    code = "import sys\nfrom multiverse.cli.main import main\nmain(sys.argv[1:])\nprint(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code, *word], capture_output=True, text=True)
    loaded = set(done.stderr.split())
    assert "gymnasium" in loaded  # imported for the list of env ids
    assert not {"torch", "rich", "psutil", "multiverse.vector", "multiverse.executors"} & loaded


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("nowhere", "nowhere: there is no such directory"),
        ("nowhere --env-steps 0", "--env-steps 0: must be greater than 0"),
        ("", "RUN is missing; for example: `multiverse resume runs/CartPole-v1`"),
        ("one two", "expected one RUN, got 2: one, two"),
        ("one --env-steps", "--env-steps: expected one argument"),
        ("one --env-steps many", "--env-steps: expected a whole number"),
        (
            "one --buffer-size 9",
            "--buffer-size is a setting of sac, td3, discrete_sac, dqn; the algorithm of this run is",
        ),
        ("one --env-step 9", "there is no --env-step; did you mean --env-steps?"),
        ("one --lr -1", "--learning-rate=-1"),
        ("one --num-envs 9", "--num-envs cannot change in a run; to change it, start a new run from its weights: "),
        ("one --net_arch=64,64", "--net-arch cannot change in a run"),
        ("one --seed 3", "--seed cannot change in a run"),
        ("one --no-separate", "--no-separate cannot change in a run"),
        ("one --tasks 9", "--tasks cannot change in a run"),  # tasks of the training would be held out
        ("one --held_out_tasks=9", "--held-out-tasks cannot change in a run"),
        ("one --episodes-per-task 2", "--episodes-per-task cannot change in a run"),
        ("one --oracle", "--oracle cannot change in a run"),
    ],
)
def test_invalid_input_is_reported_in_one_line(
    typed: str, message: str, elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if typed.startswith("one -"):
        train(Path("one"), env_steps=64)
        capsys.readouterr()
    assert main(["resume", *typed.split()]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and message in error


@pytest.mark.fault("A14")
def test_ctrl_c_in_a_terminal_saves_and_ends_all_processes(tmp_path: Path) -> None:
    """With worker processes, and a fork server that is their parent."""
    small = [word if word != "serial" else "process" for word in SMALL]
    command = [sys.executable, "-m", "multiverse.cli", "train", "CartPole-v1", "--run-dir", str(tmp_path / "one")]
    process = subprocess.Popen(
        [*command, *small, "--env-steps", "100000000"], stdout=subprocess.PIPE, text=True, process_group=0
    )
    assert process.stdout is not None
    for line in process.stdout:
        if " env steps (" in line:  # it trains now
            break
    helpers = psutil.Process(process.pid).children(recursive=True)
    os.killpg(process.pid, signal.SIGINT)
    rest, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert rest.splitlines()[-1].endswith(f"To resume: multiverse resume {tmp_path / 'one'}")
    assert helpers and not psutil.wait_procs(helpers, timeout=30)[1]
    assert not json.loads((tmp_path / "one" / "summary.json").read_text())["finished"]

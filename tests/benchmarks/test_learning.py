"""The learning table can be measured in pieces: a stopped run continues and gives the same figures."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks.learning import TASKS, report_task
from benchmarks.provenance import COMMIT, TREE
from multiverse.training.config.resolve import presets


def learn(out: Path, *more: str) -> subprocess.Popen[str]:
    words = ["--tasks", "CartPole-v1", "--seeds", "2", "--jobs", "1", "--env-steps", "6000", "--out", str(out), *more]
    command = [sys.executable, "benchmarks/learning.py", *words, "--json", str(out.with_suffix(".json"))]
    return subprocess.Popen(command, cwd=TREE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    said, _ = process.communicate(timeout=120)
    return process.returncode, said


def returns(out: Path) -> list[tuple[int, float]]:
    (task,) = json.loads(out.with_suffix(".json").read_text())["tasks"]
    return [(run["seed"], run["mean_return"]) for run in task["runs"]]


def test_stopped_benchmark_continues_to_equal_returns(tmp_path: Path) -> None:
    cut, whole = tmp_path / "cut", tmp_path / "whole"
    going = learn(cut)
    give_up = time.monotonic() + 60
    while not (cut / "CartPole-v1-1" / "metrics.jsonl").exists():
        assert time.monotonic() < give_up
        time.sleep(0.01)
    going.send_signal(signal.SIGTERM)
    code, said = ended(going)
    assert code == 1 and "CartPole-v1 seed 2; the same command resumes them" in said
    assert "CartPole-v1 seed 2" in json.loads((tmp_path / "cut.json").read_text())["unfinished"]
    for out in (cut, whole):
        code, said = ended(learn(out))
        assert code == 0, said
    assert returns(cut) == returns(whole)
    code, said = ended(learn(cut))
    assert code == 0 and said.startswith("\nCartPole-v1: IQM")  # nothing was run again


def test_time_limit_ends_the_benchmark_and_names_unfinished_seeds(tmp_path: Path) -> None:
    code, said = ended(learn(tmp_path / "out", "--limit-s", "0"))
    assert code == 1 and "unfinished: CartPole-v1 seed 1, CartPole-v1 seed 2" in said


def test_runs_of_another_commit_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "provenance.json").write_text('{"commit": "older"}')
    monkeypatch.setenv(COMMIT, "newer")
    code, said = ended(learn(tmp_path / "out"))
    assert code == 1 and "holds runs of commit older, but this is newer" in said


def test_every_task_has_a_preset() -> None:
    assert [task.name for task in TASKS if (task.env, task.algorithm) not in presets()] == []


@pytest.mark.parametrize(
    ("returned", "verdict"), [([510.0, 505.0], "reached"), ([490.0, 505.0], "inside"), ([490.0, 495.0], "MISSED")]
)
def test_verdict_depends_on_the_confidence_interval(
    returned: list[float], verdict: str, capsys: pytest.CaptureFixture[str]
) -> None:
    runs: list[dict[str, Any]] = [
        {"seed": seed, "mean_return": value, "training_return": value} for seed, value in enumerate(returned)
    ]
    found = report_task(TASKS[0], runs, 3, {"iqm": 1.0, "interval": [0.0, 2.0]})
    assert found["verdict"] == verdict
    assert "before: 1.0 (0.0 to 2.0)" in capsys.readouterr().out

"""The example of an own network and an auxiliary loss: in Python and on the command line, with public names."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pytest

import multiverse as mv
from examples import own_network
from multiverse.cli.main import main as command
from tests.training.small_runs import lines_of

PUBLIC = {"multiverse", "multiverse.algorithms", "multiverse.networks", "multiverse.policies", "multiverse.rollouts"}
NAMES = ("--network", "examples.own_network:Residual", "--algorithm", "examples.own_network:PredictingPPO")
FEW = ("--env-steps", "64", "--steps-per-env", "32", "--num-envs", "2", "--executor", "serial", "--batch-size", "32")


def test_example_trains_its_network_with_the_auxiliary_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = {
        "preset": False,
        "num_envs": 2,
        "steps_per_env": 32,
        "epochs": 2,
        "batch_size": 32,
        "executor": "serial",
    }
    run = own_network.main(256, "CartPole-v1", evaluation_episodes=1, **settings)
    assert "mean return" in capsys.readouterr().out
    errors = [row["prediction"] for row in lines_of(run.path, "metrics.jsonl") if "prediction" in row]
    assert len(errors) == 4 and errors[-1] < errors[0]  # every reward is 1
    assert mv.load(run.path).act(np.zeros(4, np.float32)) in (0, 1)


def test_example_is_trained_from_the_command_line(tmp_path: Path) -> None:
    arguments = [*NAMES, *FEW, "--no-preset", "--evaluation-episodes", "1", "--network-kwargs", '{"blocks": 2}']
    assert command(["train", "CartPole-v1", "--run-dir", str(tmp_path / "run"), *arguments]) == 0
    assert command(["resume", str(tmp_path / "run"), "--env-steps", "128"]) == 0
    assert command(["evaluate", str(tmp_path / "run"), "--episodes", "1"]) == 0


def test_example_is_short_and_uses_only_public_names() -> None:
    source = Path(own_network.__file__).read_text()
    tree = ast.parse(source)
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {module for module in imported if module and module.startswith("multiverse")} <= PUBLIC
    named = [node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    named += [node.id for node in ast.walk(tree) if isinstance(node, ast.Name)]
    assert [name for name in named if name.startswith("_") and name.strip("_") not in ("name", "init", "")] == []
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    assert sum((node.end_lineno or 0) - node.lineno + 1 for node in classes) <= 30

"""A network of the user from the command line: a file's class, its arguments, config files, sets, searches."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

import multiverse as mv
from multiverse.cli.main import main as command
from multiverse.training import side_by_side
from multiverse.training.config.resolve import config_for
from tests.cli.training_commands import SMALL, train

FILE = """
import torch

class Mine(torch.nn.Module):
    def __init__(self, observation_space, width=8):
        super().__init__()
        self.features_dim, self.layer = width, torch.nn.Linear(observation_space.shape[0], width)

    def forward(self, observations):
        return self.layer(observations).relu()
"""
NAME = "net_of_mine.py:Mine"


@pytest.fixture
def home(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with the network's file, which no other test has imported."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    sys.modules.pop("net_of_mine", None)
    Path("net_of_mine.py").write_text(FILE)
    return elsewhere


def width(run: Path | str) -> int:
    return int(mv.load(run).acting._actor.extract.inner.features_dim)


def test_network_of_a_file_is_trained_resumed_evaluated_and_replayed(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert train(home / "run", "--network", NAME, "--network-kwargs", '{"width": 5}') == 0
    assert "(4,), float32) to Mine" in capsys.readouterr().out
    config = (home / "run/config.yaml").read_text()
    assert f"network: {home}/{NAME}" in config and "width: 5" in config
    (home / "other").mkdir()
    monkeypatch.chdir("other")
    assert width("../run") == 5
    assert command(["resume", "../run", "--env-steps", "320"]) == 0
    assert command(["evaluate", "../run", "--episodes", "1"]) == 0
    assert command(["replay", "../run", "--episode", "0"]) == 0
    assert command(["record", "../run", "--episodes", "1"]) == 0
    capsys.readouterr()
    assert command(["resume", "../run", "--network-kwargs", "{}"]) == 2
    assert "--network-kwargs cannot change in a run" in capsys.readouterr().err


def test_network_whose_file_has_moved_is_passed_again(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert train(home / "run", "--network", NAME) == 0
    (home / "there").mkdir()
    (home / "net_of_mine.py").rename(home / "there/net_of_mine.py")
    for words in (["resume", "run", "--env-steps", "320"], ["evaluate", "run"], ["replay", "run"], ["record", "run"]):
        sys.modules.pop("net_of_mine", None)
        capsys.readouterr()
        assert command(words) == 2
        said = f"the network of this run was in {home}/net_of_mine.py, and is not there: --network /path/to/{NAME}"
        assert said in capsys.readouterr().err
    there = ["--network", f"there/{NAME}"]
    for words in (["evaluate", "run", "--episodes", "1"], ["replay", "run"], ["record", "run", "--episodes", "1"]):
        assert command([*words, *there]) == 0
    assert command(["resume", "run", "--network", "mlp"]) == 2
    assert "the network of this run is net_of_mine.py:Mine; expected your module:Class" in capsys.readouterr().err
    assert command(["resume", "run", "--env-steps", "320", *there]) == 0
    assert command(["resume", "run", "--env-steps", "384"]) == 0, "the run keeps where it is"
    monkeypatch.chdir("there")
    sys.modules.pop("net_of_mine", None)
    assert mv.resume("../run", env_steps=448, progress=False).summary["env_steps"] == 448


@pytest.mark.parametrize("cores", [1, 2])
def test_set_of_seeds_resumes_with_a_moved_network(cores: int, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_by_side, "usable_cores", lambda: cores)  # with several cores: one process for each seed
    assert train(home / "set", "--network", NAME, "--seeds", "2") == 0
    (home / "there").mkdir()
    (home / "net_of_mine.py").rename(home / "there/net_of_mine.py")
    sys.modules.pop("net_of_mine", None)
    assert command(["resume", "set", "--env-steps", "320"]) == 2
    monkeypatch.setattr(side_by_side, "usable_cores", lambda: 1)
    assert command(["resume", "set", "--env-steps", "320", "--network", f"there/{NAME}"]) == 0
    assert [mv.Run.at(run).summary["env_steps"] for run in Path("set").glob("seed-*")] == [320, 320]
    assert command(["evaluate", "set", "--episodes", "1"]) == 0


def test_config_file_names_the_network(home: Path) -> None:
    Path("config.yaml").write_text(
        f"env: CartPole-v1\nnetwork: {NAME}\nnetwork_kwargs:\n  width: 3\nexecutor: serial\nnum_envs: 2\n"
    )
    words = ["--run-dir", "run", "--env-steps", "64", "--steps-per-env", "32", "--evaluate-every", "0"]
    assert command(["train", "--config", "config.yaml", "--trust", *words, "--evaluation-episodes", "1"]) == 0
    assert width("run") == 3


def test_stable_baselines3_names_are_accepted(home: Path) -> None:
    words = ["--features-extractor-class", NAME, "--features-extractor-kwargs", '{"width": 4}']
    assert train(home / "run", *words) == 0
    assert width("run") == 4


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--network", "small_cn"], "expected mlp, nature_cnn, small_cnn, or your module:Class or file.py:Class"),
        (["--network", "nowhere.py:Mine"], "there is no file"),
        (["--network", "net_of_mine.py:Other"], "has no attribute 'Other'"),
        (["--network", NAME, "--network-kwargs", "5"], "--network-kwargs"),
        (["--network", NAME, "--network-kwargs", '{"height": 5}'], "unexpected keyword argument 'height'"),
        (["--network-kwargs", '{"width": 5}'], "these are arguments of a network; pass network too"),
        (["--network", NAME, "--algorithm", "taac"], "network=Mine: taac does not take a network"),
    ],
)
def test_invalid_network_options_are_refused_before_a_run_exists(
    words: list[str], said: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = SMALL if "taac" not in words else ["--env-steps", "64"]
    assert command(["train", "CartPole-v1", "--run-dir", "run", *given, *words]) == 2
    assert said in capsys.readouterr().err
    assert not Path("run").exists()


def test_search_trains_with_the_network(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("optuna")
    monkeypatch.setattr(side_by_side, "usable_cores", lambda: 1)
    words = ["--search", "lr=1e-9|0.003", "--network", NAME, *SMALL, "--env-steps", "64", "--run-dir", "search"]
    assert command(["tune", "CartPole-v1", *words, "--trials", "1"]) == 0
    (spaces,) = Path("search").rglob("spaces.json")
    assert width(spaces.parent) == 8


def test_built_in_networks_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["list"]) == 0
    shown = capsys.readouterr().out
    assert "networks:" in shown and all(f"  {name}  " in shown for name in ("mlp", "nature_cnn", "small_cnn"))
    assert command(["list", "networks"]) == 0
    assert capsys.readouterr().out.startswith("networks:\n  mlp  ")


def test_config_holds_the_name_of_the_network() -> None:
    settings: dict[str, Any] = {"network": "mlp", "network_kwargs": {"hidden_sizes": [3]}}
    config = config_for("CartPole-v1", "ppo", settings)
    assert json.loads(json.dumps([config.network, config.network_kwargs])) == ["mlp", {"hidden_sizes": [3]}]

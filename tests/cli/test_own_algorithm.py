"""An algorithm of one's own: trained, resumed and loaded like the others."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import multiverse as mv
from examples.own_algorithm import Reinforce, ReinforceConfig, main
from multiverse.cli.commands.train import config_from, train_options
from multiverse.cli.main import main as command
from tests.training.runs import digest

SMALL: dict[str, Any] = {"num_envs": 2, "executor": "serial", "evaluate_every": 0, "evaluation_episodes": 1}


@dataclass(frozen=True)
class ShortConfig(ReinforceConfig):
    steps_per_env: int = 32
    """Steps of every env in a rollout."""


class Short(Reinforce):
    Config = ShortConfig


def test_the_example_learns(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = main(env_steps=20_000)
    assert run.path.name.startswith("Reinforce-1-") and run.summary["algorithm"] == "examples.own_algorithm:Reinforce"
    assert run.summary["evaluation"]["mean_return"] > 60  # a coin has 22
    assert "it would do" in capsys.readouterr().out


def test_a_resumed_run_ends_as_one_that_was_not_interrupted(tmp_path: Path) -> None:
    whole = mv.train("CartPole-v1", Short, run_dir=tmp_path / "whole", env_steps=512, **SMALL)
    first = mv.train("CartPole-v1", Short, run_dir=tmp_path / "parts", env_steps=512, hooks=[StopAt(4)], **SMALL)
    assert first.summary["env_steps"] == 256
    again = mv.resume(first, algorithm=Short)
    assert again.summary["env_steps"] == 512
    # The share of the budget that was spent is all it knows of its end, so stopping changes nothing.
    assert digest(again) == digest(whole)


class StopAt(mv.Hook):
    def __init__(self, updates: int) -> None:
        self._updates = updates

    def on_update(self, trainer: Any, report: Any) -> None:
        if trainer.clock.updates == self._updates:
            trainer.stop("enough")


def test_one_that_can_be_imported_need_not_be_given_again(tmp_path: Path) -> None:
    run = mv.train("CartPole-v1", Short, run_dir=tmp_path / "one", env_steps=64, **SMALL)
    observation, _ = gym.make("CartPole-v1").reset(seed=0)
    assert mv.load(run).act(observation) in (0, 1)
    assert mv.resume(run, env_steps=128).summary["env_steps"] == 128


def test_one_that_cannot_must_be_and_that_is_said(tmp_path: Path) -> None:
    def maker(*spaces_and_more: Any) -> Reinforce:
        return Short(ShortConfig(), *spaces_and_more, "cpu")

    run = mv.train("CartPole-v1", maker, run_dir=tmp_path / "one", env_steps=64, **SMALL)
    with pytest.raises(mv.InvalidRequest, match=r"the algorithm of this run is .*maker, one of your own"):
        mv.resume(run.path)
    assert mv.resume(run, env_steps=128).summary["env_steps"] == 128  # a run in hand knows what it was given
    observation, _ = gym.make("CartPole-v1").reset(seed=0)
    assert mv.load(run, algorithm=maker).act(observation) == mv.load(run).act(observation)  # the run holds the policy


def test_one_of_a_script_is_needed_to_learn_and_not_to_act(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = type("Scripted", (Short,), {"__module__": "__main__"})
    run = mv.train("CartPole-v1", script, run_dir="one", env_steps=64, **SMALL)
    again = mv.evaluate(run.path, episodes=1)
    assert again.mean_return == run.summary["evaluation"]["mean_return"]
    assert command(["evaluate", "one", "--episodes", "1"]) == 0
    assert command(["replay", "one", "--episode", "0"]) == 0
    assert "The same return and length" in capsys.readouterr().out
    assert command(["resume", "one"]) == 2
    told = "pass it again, algorithm=Scripted (in a shell: --algorithm FILE.py:CLASS)"
    assert told in capsys.readouterr().err


def test_one_of_a_file_goes_on_from_any_directory_and_where_it_has_moved(
    elsewhere: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("here").mkdir()
    Path("here/file_of_mine.py").write_text(
        "from examples.own_algorithm import Reinforce\n\nclass Mine(Reinforce): ...\n"
    )
    monkeypatch.chdir("here")
    mv.train("CartPole-v1", "file_of_mine.py:Mine", run_dir="../one", env_steps=64, steps_per_env=16, **SMALL)
    monkeypatch.chdir(elsewhere)
    assert command(["resume", "one", "--env-steps", "128"]) == 0
    Path("here/file_of_mine.py").rename("file_of_mine.py")
    sys.modules.pop("file_of_mine")
    capsys.readouterr()
    assert command(["resume", "one", "--env-steps", "192"]) == 2
    assert "is not there: --algorithm /path/to/file_of_mine.py:Mine" in capsys.readouterr().err
    for wrong in ("sac", "Mine"):
        assert command(["resume", "one", "--algorithm", wrong]) == 2
        assert "of this run is file_of_mine.py:Mine; expected your module:Class" in capsys.readouterr().err
    assert command(["resume", "one", "--env-steps", "192", "--algorithm", "file_of_mine.py:Mine"]) == 0
    assert command(["resume", "one", "--env-steps", "256"]) == 0, "the run keeps where it is"
    assert mv.resume("one", algorithm="file_of_mine.py:Mine", env_steps=320, progress=False).summary["env_steps"] == 320


def test_another_algorithm_is_no_way_to_go_on(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mv.train("CartPole-v1", run_dir="one", env_steps=64, steps_per_env=16, batch_size=32, **SMALL)
    told = "the algorithm of this run is ppo; that cannot change in a run"
    assert command(["resume", "one", "--algorithm", "examples.own_algorithm:Reinforce"]) == 2
    assert told in capsys.readouterr().err
    with pytest.raises(mv.InvalidRequest, match=told):
        mv.resume("one", algorithm="sac")


def test_one_whose_module_is_gone_is_not_needed_to_act(tmp_path: Path) -> None:
    gone = type("Gone", (Short,), {"__module__": "no_such_module"})
    run = mv.train("CartPole-v1", gone, run_dir=tmp_path / "one", env_steps=64, **SMALL)
    assert mv.evaluate(run.path, episodes=1).mean_return == run.summary["evaluation"]["mean_return"]


def test_its_settings_are_flags_keys_and_arguments(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = "examples.own_algorithm:Reinforce"
    small = [
        "--num-envs",
        "2",
        "--executor",
        "serial",
        "--evaluate-every",
        "0",
        "--evaluation-episodes",
        "1",
        "--env-steps",
        "64",
    ]
    words = ["train", "CartPole-v1", "--algorithm", name, "--steps-per-env", "32", "--learning-rate", "2.5", *small]
    assert command([*words, "--run-dir", "one"]) == 0
    config = Path("one/config.yaml").read_text()
    assert f"algorithm: {name}" in config and "settings:\n  steps_per_env: 32\n  learning_rate: 2.5" in config
    assert command(["train", "--config", "one/config.yaml", "--run-dir", "two", "--gamma", "0.5"]) == 0
    assert "gamma: 0.5" in Path("two/config.yaml").read_text()
    assert command(["resume", "one", "--env-steps", "128"]) == 0
    assert command(["evaluate", "one", "--episodes", "2"]) == 0
    capsys.readouterr()
    assert command([*words, "--clip-range", "0.1"]) == 2
    assert f"--clip-range is a setting of ppo, taac; this is {name}" in capsys.readouterr().err
    assert command(["train", "--algorithm", name, "--help"]) == 0
    assert "Step size, down to 0 at the end of the budget." in capsys.readouterr().out


def test_settings_of_another_algorithm_are_refused(tmp_path: Path) -> None:
    with pytest.raises(mv.InvalidRequest, match="clip_range: there is no such setting"):
        mv.train("CartPole-v1", Short, run_dir=tmp_path / "one", clip_range=1.0)


class Unfinished(Short):
    weights = property()  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("algorithm", "said"),
    [
        (
            "sac2",
            "there is no algorithm 'sac2': one of ppo, a2c, taac, sac, td3, discrete_sac, dqn, or your module:Class",
        ),
        ("no_such_module:Mine", "algorithm 'no_such_module:Mine' cannot be imported: ModuleNotFoundError"),
        ("examples.own_algorithm:Mine", "cannot be imported: AttributeError"),
        (Unfinished, "Unfinished is no algorithm yet: it has no weights"),
    ],
)
def test_mistakes_are_answered_in_plain_sentences(algorithm: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(mv.InvalidRequest, match=said):
        mv.train("CartPole-v1", algorithm, run_dir=tmp_path / "one", env_steps=64, **SMALL)


@dataclass(frozen=True)
class WithoutDefault:
    x: int


@dataclass(frozen=True)
class WithASeed:
    seed: int = 3


class Bare:
    Config = WithoutDefault


class Taken:
    Config = WithASeed


class NoDataclass:
    Config = "hello"


class FewArguments:
    Config = ReinforceConfig


FIVE = 5


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (":Mine", "there is no algorithm ':Mine'"),
        (f"{__name__}:", "there is no algorithm"),
        (f"{__name__}:FIVE", "is int: expected a class"),
        (f"{__name__}:Bare", "Bare.Config: x must have a default"),
        (f"{__name__}:Taken", "Taken.Config: seed is a setting of every run; call it otherwise"),
        (f"{__name__}:NoDataclass", "NoDataclass.Config is 'hello': expected a dataclass"),
        (f"{__name__}:FewArguments", "FewArguments cannot be made by (config, observation_space"),
        ("os:system", "system cannot be made by (observation_space"),
    ],
)
def test_mistakes_on_the_command_line_are_one_line(
    name: str, said: str, elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(["train", "CartPole-v1", "--algorithm", name, "--num-envs", "2", "--executor", "serial"]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1


class TellsADict(Short):
    def update(self, rollouts: Any, progress: float) -> Any:
        super().update(rollouts, progress)
        return {"entropy": 0.5}


class TellsNonsense(Short):
    def update(self, rollouts: Any, progress: float) -> Any:
        return 5


def test_an_update_may_return_a_dict_and_nothing_else_that_is_no_report(tmp_path: Path) -> None:
    run = mv.train("CartPole-v1", TellsADict, run_dir=tmp_path / "one", env_steps=64, **SMALL)
    assert '"entropy": 0.5' in (run.path / "metrics.jsonl").read_text()
    with pytest.raises(mv.InvalidRequest, match=r"update\(\) returned 5: expected an UpdateReport"):
        mv.train("CartPole-v1", TellsNonsense, run_dir=tmp_path / "two", env_steps=64, **SMALL)


def test_two_algorithms_with_one_setting_name_do_not_collide() -> None:
    one, other = (config_from(train_options(["CartPole-v1", "--algorithm", name])) for name in ("ppo", "a2c"))
    assert (one.settings.learning_rate, other.settings.learning_rate) == (1e-3, 7e-4)  # ppo's is the preset's
    assert {type(one.settings).__name__, type(other.settings).__name__} == {"PPOConfig", "A2CConfig"}


class Policy:
    """A policy to make mistakes with: it answers 0."""

    version = 0

    def noise(self, rng: Any, steps: int, rows: int) -> Any:
        return np.zeros((steps, rows))

    def first_memory(self, rows: int) -> Any:
        return {"seen": np.zeros(rows)}

    def act(self, seen: Any, noise: Any, memory: Any) -> Any:
        return np.zeros(len(seen.starts), np.int64), memory

    def for_env(self, actions: Any) -> Any:
        return actions

    def portable(self) -> Any:
        return self


def mistaken(**wrong: Any) -> type:
    """An algorithm whose policy, or which itself, is wrong in this."""
    names = [name for name in wrong if hasattr(Policy, name)]
    policy = type("Wrong", (Policy,), {name: wrong.pop(name) for name in names})()
    return type("Mistaken", (Short,), {"policy": lambda self: policy, **wrong})


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"act": lambda *_: None}, r"act\(\) returned NoneType: expected \(actions, memory\)"),
        ({"act": lambda *_: np.zeros(2)}, r"act\(\) returned ndarray: expected \(actions, memory\)"),
        ({"act": lambda *_: ([0, 0, 0], {})}, r"act\(\) remembers {}: expected {'seen': \(2,\)}"),
        ({"act": lambda *_: ([0.5, 0.5], {"seen": np.zeros(2)})}, r"act\(\) returned float64 of shape \(2,\)"),
        ({"first_memory": lambda *_: None}, r"first_memory\(rows\) is None: expected a dict of arrays"),
        ({"noise": lambda *_: None}, r"noise\(rng, steps, rows\) has shape \(\): expected \(steps, rows, …\)"),
        ({"policy": lambda self: None}, r"policy\(\) is NoneType: it has no noise, first_memory, act"),
        ({"update": lambda self, rollouts: {}}, r"update cannot be called with \(rollouts, progress\): too many"),
        ({"update": None}, "update is None: expected a method"),
        (
            {"state": lambda self: {"x": object()}},
            "must be something that a checkpoint holds: state.x is a object",
        ),
    ],
    ids=lambda one: next(iter(one)) if isinstance(one, dict) else "",
)
def test_mistakes_in_ones_own_are_told_before_anything_is_learned(
    wrong: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(mv.MultiverseError, match=said):
        mv.train("CartPole-v1", mistaken(**wrong), run_dir=tmp_path / "run", env_steps=128, **SMALL)


def test_a_policy_is_shown_its_previous_actions_everywhere(tmp_path: Path) -> None:
    """In a rollout, in an evaluation, and when it is loaded: an array, zeros where an episode starts."""

    def act(self: Any, seen: Any, noise: Any, memory: Any) -> Any:
        assert not seen.previous_actions[seen.starts].any() and len(seen.previous_rewards) == len(seen.starts)
        return (1 - seen.previous_actions).astype(np.int64), memory

    run = mv.train("CartPole-v1", mistaken(act=act), run_dir=tmp_path / "run", env_steps=128, **SMALL)
    assert run.summary["evaluation"] is not None and run.summary["evaluation_failures"]["failed"] == 0


def test_its_metrics_stand_beside_the_runs_own(tmp_path: Path) -> None:
    tells = {"update": lambda self, rollouts, progress: {"updates": 77, "mine": 5.0}}
    run = mv.train("CartPole-v1", mistaken(**tells), run_dir=tmp_path / "run", env_steps=128, **SMALL)
    rows = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    assert [row["updates"] for row in rows if "mine" in row] == [1, 2]

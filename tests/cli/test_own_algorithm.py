"""An algorithm of one's own: trained, resumed and loaded like the others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

import multiverse as mv
from examples.own_algorithm import Reinforce, main
from tests.training.runs import digest

SMALL: dict[str, Any] = {"num_envs": 2, "executor": "serial", "evaluate_every": 0, "evaluation_episodes": 1}


class Short(Reinforce):
    steps_per_env = 32


def test_the_example_learns(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = main(env_steps=20_000)
    assert run.path.name.startswith("Reinforce-1-") and run.summary["algorithm"] == "Reinforce"
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


def test_it_must_be_given_again_and_says_so(tmp_path: Path) -> None:
    run = mv.train("CartPole-v1", Short, run_dir=tmp_path / "one", env_steps=64, **SMALL)
    for forgetful in (mv.resume, mv.load):
        with pytest.raises(mv.InvalidRequest, match=r"the algorithm of this run is Short.* algorithm=Short"):
            forgetful(run)
    observation, _ = gym.make("CartPole-v1").reset(seed=0)
    assert mv.load(run, algorithm=Short).act(observation) in (0, 1)


def test_settings_of_another_agent_are_refused(tmp_path: Path) -> None:
    with pytest.raises(mv.InvalidRequest, match="learning_rate: there is no such setting"):
        mv.train("CartPole-v1", Short, run_dir=tmp_path / "one", learning_rate=1.0)

"""Mistakes in the arguments of `train`, `resume`, `load` and `evaluate` are refused before anything starts."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import multiverse as mv
from multiverse.algorithms.ppo import PPO, PPOConfig
from multiverse.cli.main import main
from multiverse.errors import InvalidRequest
from tests.training.small_runs import SMALL


class Counts(mv.Hook):
    """Counts updates."""

    updates = 0

    def on_update(self, trainer: Any, report: Any) -> None:
        self.updates += 1


class NotAHook:
    def on_update(self, trainer: Any, report: Any) -> None: ...


class Misspelt(mv.Hook):
    def on_updates(self, trainer: Any, report: Any) -> None: ...

    def on_evaluate(self, trainer: Any, evaluation: Any) -> None: ...

    def update_count(self) -> int:
        return 0


def train(home: Path, **settings: Any) -> mv.Run:
    return mv.train("CartPole-v1", run_dir=home, progress=False, **{**SMALL, "env_steps": 100, **settings})


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> mv.Run:
    return train(tmp_path_factory.mktemp("refusals") / "run")


# -- hooks -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("hooks", "message"),
    [
        ([Counts], r"hooks: Counts is a class: pass an instance of it, hooks=\[Counts\(\)\]"),
        (Counts, r"hooks=<class .*Counts'>: expected a list of hooks, such as hooks=\[Counts\(\)\]"),
        (Counts(), r"hooks=<.*Counts object.*: expected a list of hooks, such as hooks=\[Counts\(\)\]"),
        ("hook", "hooks='hook': expected a list of hooks"),
        (3, "hooks=3: expected a list of hooks"),
        ([print], "hooks: <built-in function print> is not a hook: derive its class from multiverse.Hook"),
        ([NotAHook()], "NotAHook.* is not a hook: derive its class from multiverse.Hook"),
    ],
)
def test_hooks_that_are_no_list_of_hooks_are_refused_before_start(
    hooks: Any, message: str, run: mv.Run, tmp_path: Path
) -> None:
    with pytest.raises(InvalidRequest, match=message):
        train(tmp_path / "run", hooks=hooks)
    assert not (tmp_path / "run").exists()
    with pytest.raises(InvalidRequest, match=message):
        mv.resume(run, hooks=hooks, env_steps=200)
    with pytest.raises(InvalidRequest, match=message):
        train(tmp_path / "runs", hooks=hooks, seeds=2)


def test_misspelt_method_of_hook_is_warned_about_with_nearest_name(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    train(tmp_path / "run", hooks=(Misspelt(), Counts()))
    warnings = [record.message for record in caplog.records if "is never called" in record.message]
    assert warnings == [
        "Misspelt.on_evaluate is never called: did you mean on_evaluation?",
        "Misspelt.on_updates is never called: did you mean on_update?",
    ]


# -- runs --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("use", [mv.load, mv.evaluate, mv.resume, mv.record, lambda run: mv.replay(run, 0), mv.Run.at])
@pytest.mark.parametrize("given", [3, None, ["runs"], np.zeros(1)])
def test_what_is_no_run_is_refused(use: Callable[[Any], Any], given: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"run=.*: expected a run, as mv.train returns it, or its path"):
        use(given)


def test_init_from_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"run=3: expected a run"):
        train(tmp_path / "run", init_from=3)
    assert not (tmp_path / "run").exists()


# -- algorithms --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("algorithm", "message"),
    [
        (PPOConfig, r"algorithm=PPOConfig is a config, not an algorithm.*algorithm='ppo', learning_rate="),
        (PPOConfig(), r"algorithm=PPOConfig\(.*is a config, not an algorithm"),
        (3, "algorithm=3: expected the name of an algorithm, or a class or function that makes one"),
    ],
)
def test_what_is_no_algorithm_is_refused_before_start(
    algorithm: Any, message: str, run: mv.Run, tmp_path: Path
) -> None:
    with pytest.raises(InvalidRequest, match=message):
        train(tmp_path / "run", algorithm=algorithm)
    assert not (tmp_path / "run").exists()
    for use in (mv.resume, mv.load, mv.evaluate, mv.record):
        with pytest.raises(InvalidRequest, match=message):
            use(run, algorithm=algorithm)  # type: ignore[operator]


class Changes(mv.Hook):
    """Changes a setting that does not exist."""

    def on_update(self, trainer: Any, report: Any) -> None:
        trainer.algorithm.change(learning_rat=1e-3)


def test_change_of_unknown_setting_names_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"learning_rat: PPO has no such setting\. Did you mean learning_rate\?"):
        train(tmp_path / "run", hooks=[Changes()])


# -- failures before the first checkpoint ----------------------------------------------------------------------------
class FailsInFirstUpdate(PPO):
    def update(self, rollouts: Any, progress: float) -> Any:
        raise RuntimeError("boom")


class FailsInSecondUpdate(FailsInFirstUpdate):
    updates = 0

    def update(self, rollouts: Any, progress: float) -> Any:
        self.updates += 1
        return PPO.update(self, rollouts, progress) if self.updates == 1 else super().update(rollouts, progress)


@pytest.mark.parametrize(("algorithm", "lost"), [(FailsInFirstUpdate, False), (FailsInSecondUpdate, True)])
def test_lost_env_steps_are_reported_only_if_there_are_any(
    algorithm: Any, lost: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING), pytest.raises(RuntimeError, match="boom"):
        train(tmp_path / "run", algorithm=algorithm, env_steps=200)
    assert ("no checkpoint was saved" in caplog.text) == lost


# -- num_envs="auto" ---------------------------------------------------------------------------------------------
class FixedEnvs:
    """An algorithm without `set_slots`."""

    def __init__(self, observation_space: Any, action_space: Any, slots: int, seed: int) -> None: ...


class Declared(FixedEnvs):
    auto_num_envs = True


@pytest.mark.parametrize("kind", [FixedEnvs, Declared])
def test_auto_num_envs_without_set_slots_is_refused_before_start(kind: Any, tmp_path: Path) -> None:
    message = rf"num_envs='auto': {kind.__name__} has no method set_slots\(slots\).*give a number"
    with pytest.raises(InvalidRequest, match=message):
        mv.train("CartPole-v1", algorithm=kind, num_envs="auto", run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_auto_num_envs_flag_names_the_missing_method(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--algorithm", f"{__name__}:FixedEnvs", "--num-envs", "auto", "--run-dir", str(tmp_path / "run")]
    assert main(["train", "CartPole-v1", *flags]) != 0
    captured = capsys.readouterr()
    assert "FixedEnvs has no method set_slots(slots)" in " ".join((captured.out + captured.err).split())

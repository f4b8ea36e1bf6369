"""Runs that earlier versions saved go on, and are loaded, under the names of today."""

from __future__ import annotations

import json
import logging
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import multiverse as mv
from multiverse.training.config.build import build, in_todays_names
from multiverse.training.config.files import parse_config
from multiverse.training.config.train_config import TrainConfig
from tests.training.old_runs.make import actions_of, outcome_of

OLD_RUNS = Path(__file__).parent / "old_runs"
NAMES = sorted(str(path.parent.relative_to(OLD_RUNS)) for path in OLD_RUNS.rglob("expected.json"))


@pytest.fixture(params=NAMES)
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of an old run, beside what its own version made of it."""
    return Path(shutil.copytree(OLD_RUNS / request.param, tmp_path / "old"))


def test_run_of_earlier_version_resumes_as_that_version_would_have(old: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Up to the last bits, as those of a matrix product differ between processors."""
    expected = json.loads((old / "expected.json").read_text())
    with caplog.at_level(logging.WARNING):
        outcome = outcome_of(old / "run", expected["env_steps"])
    assert outcome["episodes"] == expected["episodes"]
    if expected["evaluation"] is not None:
        assert outcome["evaluation"] == pytest.approx(expected["evaluation"] | {}, rel=1e-3, nan_ok=True)
    assert outcome["weights"].keys() == expected["weights"].keys()
    for name, values in expected["weights"].items():
        np.testing.assert_allclose(outcome["weights"][name], values, rtol=1e-3, atol=1e-5, err_msg=name)
    assert_equal_actions(outcome["actions"], expected["actions"])
    assert ": agent " not in caplog.text  # settings that were renamed are not reported as changed
    assert re.search("^algorithm: ", (old / "run" / "config.yaml").read_text(), re.MULTILINE)


def test_policy_of_earlier_version_acts_without_resuming(old: Path) -> None:
    expected = json.loads((old / "expected.json").read_text())
    assert_equal_actions(actions_of(old / "run"), expected["actions_before"])


def assert_equal_actions(actions: Any, expected: Any) -> None:
    if isinstance(expected, dict):
        assert actions.keys() == expected.keys()
        for agent, values in expected.items():
            assert_equal_actions(actions[agent], values)
    else:
        np.testing.assert_allclose(actions, expected, rtol=1e-3, atol=1e-5)


def test_old_keys_of_a_file_and_old_arguments_work_with_a_note(tmp_path: Path) -> None:
    saved = in_todays_names(parse_config("env: CartPole-v1\nagent: pposs\n", "my.yaml"))
    with pytest.raises(mv.InvalidRequest, match="there is no algorithm 'pposs': one of ppo"):
        build(TrainConfig, saved)
    with pytest.warns(DeprecationWarning, match=r"train\(agent=…\) is algorithm=… now"):
        run = mv.train("CartPole-v1", agent="ppo", run_dir=tmp_path, num_envs=2, env_steps=64, steps_per_env=32)  # type: ignore[call-arg]
    assert run.summary["algorithm"] == "ppo"


def test_a_hook_with_the_old_name_is_called() -> None:
    with pytest.warns(DeprecationWarning, match="on_rollout"):

        class Old(mv.Hook):
            def on_window(self, trainer: object, collected: object) -> str:
                return "called"

    assert Old().on_rollout(None, None) == "called"  # type: ignore[arg-type, func-returns-value]

"""Runs of earlier versions can be resumed and loaded with the current names."""

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
from multiverse.training.config.build import build, with_current_names
from multiverse.training.config.files import parse_config
from multiverse.training.config.train_config import TrainConfig
from multiverse.training.saved_runs import checkpoint_of
from tests.training.envs import Pictures
from tests.training.old_runs.make import actions_of, outcome_of

OLD_RUNS = Path(__file__).parent / "old_runs"
NAMES = sorted(str(path.parent.relative_to(OLD_RUNS)) for path in OLD_RUNS.glob("v*/**/expected.json"))
UNSCALED = OLD_RUNS / "unscaled_bytes"
"""A run on `Pictures`, of a version whose dense layers were given bytes as they are."""


@pytest.fixture(params=NAMES)
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of an old run, and the results of its own version."""
    return Path(shutil.copytree(OLD_RUNS / request.param, tmp_path / "old"))


def test_run_of_earlier_version_resumes_as_that_version_would_have(old: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Equal up to rounding, because matrix products differ between processors."""
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


def test_old_config_keys_and_arguments_work_with_a_warning(tmp_path: Path) -> None:
    saved = with_current_names(parse_config("env: CartPole-v1\nagent: pposs\n", "my.yaml"))
    with pytest.raises(mv.errors.InvalidRequest, match="there is no algorithm 'pposs': one of ppo"):
        build(TrainConfig, saved)
    with pytest.warns(DeprecationWarning, match=r"train\(agent=…\) is deprecated, use algorithm=…"):
        run = mv.train("CartPole-v1", agent="ppo", run_dir=tmp_path, num_envs=2, env_steps=64, steps_per_env=32)  # type: ignore[call-arg]
    assert run.summary["algorithm"] == "ppo"


def test_hook_with_the_old_name_is_called() -> None:
    with pytest.warns(DeprecationWarning, match="on_rollout"):

        class Old(mv.Hook):
            def on_window(self, trainer: object, collected: object) -> str:
                return "called"

    assert Old().on_rollout(None, None) == "called"  # type: ignore[arg-type, func-returns-value]


@pytest.mark.fault("D6")
def test_run_with_unscaled_bytes_resumes_and_acts_without_scaling(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    old, expected = tmp_path / "old", json.loads((UNSCALED / "expected.json").read_text())
    shutil.copytree(UNSCALED, old)
    seen = np.random.default_rng(0).integers(0, 256, (8, 4, 4, 3)).astype(np.uint8)
    before = mv.load(old / "run")
    with caplog.at_level(logging.INFO):
        run = mv.resume(old / "run", env=Pictures, env_steps=512)
    assert (run.summary["episodes"], run.summary["evaluation"]) == (expected["episodes"], expected["evaluation"])
    learned = checkpoint_of(run).state["session"]["algorithm"]["weights"]["parameters"]
    np.testing.assert_allclose(learned, expected["parameters"], rtol=1e-3, atol=1e-5)
    assert any("not scaled (0 to 255, as in runs of earlier versions)" in line for line in caplog.messages)
    policy = mv.load(run)
    assert not before.acting._features.scales_bytes and not policy.acting._features.scales_bytes
    assert policy.act(seen).tolist() == expected["actions"]
    policy.reset(seed=1)
    assert [int(policy.act(one, deterministic=False)) for one in seen] == expected["drawn"]


def test_run_that_starts_with_weights_of_unscaled_bytes_does_not_scale(tmp_path: Path) -> None:
    small = {"num_envs": 2, "executor": "serial", "steps_per_env": 32, "hidden_sizes": (8, 8), "evaluate_every": 0}
    small |= {"evaluation_episodes": 1, "env_steps": 64, "preset": False, "progress": False}
    for name, begun_from, scaled in (("from_old", UNSCALED / "run", False), ("new", None, True)):
        run = mv.train(Pictures, run_dir=tmp_path / name, init_from=begun_from, **small)
        assert mv.load(run).acting._features.scales_bytes is scaled
        again = mv.resume(run, env_steps=128, progress=False)
        assert mv.load(again).acting._features.scales_bytes is scaled

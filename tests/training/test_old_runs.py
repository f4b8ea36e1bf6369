"""Runs that earlier versions saved go on, and are loaded, under the names of today."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path

import numpy as np
import pytest

import multiverse as mv
from multiverse.training.config.build import build, in_todays_names
from multiverse.training.config.files import parse_config
from multiverse.training.config.train_config import TrainConfig
from multiverse.training.loading import checkpoint_of
from tests.training.envs import Pictures

OLD_RUNS = Path(__file__).parent / "old_runs"
UNSCALED = OLD_RUNS / "unscaled_bytes"
"""A run on `Pictures`, of a version whose dense layers were given bytes as they are."""


@pytest.fixture(params=["v0_1"])
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of an old run, with what its own version made of it by 512 env steps."""
    return Path(shutil.copytree(OLD_RUNS / request.param, tmp_path / request.param))


def test_an_old_run_goes_on_as_its_own_version_would_have(old: Path, caplog: pytest.LogCaptureFixture) -> None:
    """To the last bits: those of a matrix product differ from one processor to the next."""
    expected = json.loads((old / "expected.json").read_text())
    with caplog.at_level(logging.WARNING):
        run = mv.resume(old / "run", env_steps=512)
    assert run.summary["episodes"] == expected["episodes"]
    assert run.summary["evaluation"] == expected["evaluation"]
    learned = checkpoint_of(run).state["session"]["algorithm"]["weights"]["parameters"]
    np.testing.assert_allclose(learned, expected["parameters"], rtol=1e-3, atol=1e-5)
    assert "agent" not in caplog.text  # an old name is no difference
    assert "algorithm: ppo" in (old / "run" / "config.yaml").read_text()


def test_an_old_run_is_loaded_and_acts(old: Path) -> None:
    expected = json.loads((old / "expected.json").read_text())
    mv.resume(old / "run", env_steps=512)
    observations = np.linspace(-1, 1, 20, dtype=np.float32).reshape(5, 4)
    assert mv.load(old / "run").act(observations).tolist() == expected["actions"]


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


@pytest.mark.fault("D6")
def test_run_that_learned_from_unscaled_bytes_goes_on_and_acts_with_unscaled_bytes(
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


def test_run_that_begins_with_weights_of_unscaled_bytes_does_not_scale_them(tmp_path: Path) -> None:
    small = {"num_envs": 2, "executor": "serial", "steps_per_env": 32, "hidden_sizes": (8, 8), "evaluate_every": 0}
    small |= {"evaluation_episodes": 1, "env_steps": 64, "preset": False, "progress": False}
    for name, begun_from, scaled in (("from_old", UNSCALED / "run", False), ("new", None, True)):
        run = mv.train(Pictures, run_dir=tmp_path / name, init_from=begun_from, **small)
        assert mv.load(run).acting._features.scales_bytes is scaled
        again = mv.resume(run, env_steps=128, progress=False)
        assert mv.load(again).acting._features.scales_bytes is scaled

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

OLD_RUNS = Path(__file__).parent / "old_runs"


@pytest.fixture(params=[path.name for path in OLD_RUNS.iterdir()])
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

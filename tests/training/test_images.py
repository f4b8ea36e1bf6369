"""Runs on small images, with dense layers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import multiverse as mv
from multiverse.algorithms import algorithm_class
from tests.training.envs import Pictures
from tests.training.small_runs import digest

FEW: dict[str, Any] = {"num_envs": 2, "evaluate_every": 0, "evaluation_episodes": 1, "preset": False, "progress": False}


def test_policy_of_small_images_is_learned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without scaling every unit would saturate, and the return would stay at 10, that of random actions."""
    settings = {"num_envs": 8, "env_steps": 12_000, "executor": "serial", "seed": 1, "evaluate_every": 0}
    run = mv.train(Pictures, env_kwargs={"shape": (20, 20, 3)}, run_dir=tmp_path / "run", **settings)
    assert run.summary["evaluation"]["mean_return"] > 17
    message = "Observations: image 20×20×3 flattened, bytes scaled to [0, 1]; 1,200 inputs to the dense layers"
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("algorithm", ["ppo", "dqn"])
def test_loaded_policy_scales_bytes_as_the_algorithm_does(algorithm: str, tmp_path: Path) -> None:
    more = {"steps_per_env": 16} if algorithm == "ppo" else {"learning_starts": 16}
    run = mv.train(Pictures, algorithm, run_dir=tmp_path / "run", executor="serial", env_steps=64, **FEW, **more)
    loaded, made = mv.load(run), mv.load(run, algorithm=algorithm_class(algorithm))
    seen = np.random.default_rng(0).integers(0, 256, (16, 4, 4, 3)).astype(np.uint8)
    outputs = [one.acting.output(one.acting._features.vector({(): seen}), {})[0] for one in (loaded, made)]
    np.testing.assert_array_equal(*outputs)
    assert np.abs(loaded.acting._features.vector({(): seen})).max() <= 1.0


def test_bytes_are_scaled_alike_in_workers_and_in_the_caller(tmp_path: Path) -> None:
    runs = [
        mv.train(Pictures, run_dir=tmp_path / executor, executor=executor, env_steps=128, steps_per_env=16, **FEW)
        for executor in ("serial", "process")
    ]
    assert digest(runs[0]) == digest(runs[1])

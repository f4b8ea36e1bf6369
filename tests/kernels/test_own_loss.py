"""The example of an own loss: it learns, is logged, resumes exactly, and is loaded without its class being named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import multiverse as mv
from examples.own_loss import ConfidentPPO, DualClipPPO
from tests.training.small_runs import SMALL, digest, lines_of

SETTINGS: dict[str, Any] = {**SMALL, "env_steps": 800, "hidden_sizes": (8, 8)}


@pytest.mark.parametrize("algorithm", [DualClipPPO, ConfidentPPO])
def test_run_with_own_loss_resumes_exactly_and_loads(algorithm: Any, tmp_path: Path) -> None:
    whole = mv.train("CartPole-v1", algorithm=algorithm, run_dir=tmp_path / "whole", **SETTINGS)
    half = {**SETTINGS, "env_steps": 400}
    first = mv.train("CartPole-v1", algorithm=algorithm, run_dir=tmp_path / "parts", **half)
    again = mv.resume(first, env_steps=800)
    assert digest(again) == digest(whole)
    observations = np.linspace(-1, 1, 20, dtype=np.float32).reshape(5, 4)
    assert (mv.load(again).act(observations) == mv.load(whole).act(observations)).all()


def test_workers_change_no_bit_of_a_run_with_own_loss(tmp_path: Path) -> None:
    runs = [
        mv.train(
            "CartPole-v1", algorithm=DualClipPPO, run_dir=tmp_path / executor, **{**SETTINGS, "executor": executor}
        )
        for executor in ("serial", "process")
    ]
    assert digest(runs[0]) == digest(runs[1])


def test_terms_of_own_loss_are_in_the_metrics_files(tmp_path: Path) -> None:
    run = mv.train("CartPole-v1", algorithm=ConfidentPPO, run_dir=tmp_path / "run", **SETTINGS)
    rows = [row for row in lines_of(run.path, "metrics.jsonl") if "confidence" in row]
    assert rows and all(row["confidence"] > 0 for row in rows)


def test_dual_clip_differs_from_ppo_only_where_ratio_is_large_and_advantage_negative() -> None:
    import torch

    from tests.kernels.losses import algorithm_with

    algorithm = algorithm_with(DualClipPPO, DualClipPPO.Config(clip_range=0.2, dual_clip=3.0))
    ratio, advantages = torch.tensor([1.0, 5.0, 5.0, 0.5]), torch.tensor([1.0, 1.0, -1.0, -1.0])
    expected = -torch.tensor([1.0, 1.2, -3.0, -0.8]).mean()
    assert float(algorithm.policy_loss(ratio, advantages)) == pytest.approx(float(expected))

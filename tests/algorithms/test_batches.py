"""A user-defined loss receives every field of its batch and of the outputs, with matching rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import multiverse as mv
from multiverse.algorithms import A2C, PPO, TAAC, Loss, Outputs, RolloutBatch
from tests.training.small_runs import SMALL, digest

FEW: dict[str, Any] = {**SMALL, "env_steps": 400, "num_envs": 2, "hidden_sizes": (8,), "progress": False}
OF_A2C = {name: value for name, value in FEW.items() if name not in ("epochs", "batch_size")}
OF_TAAC = {name: value for name, value in FEW.items() if name != "hidden_sizes"} | {
    "embedding_size": 8,
    "learning_rate_schedule": "constant",
}
GRU: dict[str, Any] = {"memory": "gru", "memory_size": 4, "chunk_length": 5}
COLUMNS = ("log_probs", "values", "advantages", "returns", "rewards", "starts")


def checked(kind: Any, check: Callable[[Outputs, RolloutBatch], None]) -> Any:
    """A subclass whose loss checks its inputs and has a random term."""

    class Checked(kind):  # type: ignore[misc]
        noise_draws = 2

        def loss(self, out: Outputs, batch: RolloutBatch) -> Loss:
            check(out, batch)
            return super().loss(out, batch).plus(noisy=1e-3 * ((out.values - batch.noise[1].float()) ** 2).mean())

    return Checked


CASES = [
    pytest.param(PPO, "CartPole-v1", FEW, id="ppo"),
    pytest.param(PPO, "CartPole-v1", {**FEW, **GRU}, id="ppo-gru"),
    pytest.param(A2C, "CartPole-v1", OF_A2C, id="a2c"),
    pytest.param(TAAC, "tests.multi_agent.envs:Pair", OF_TAAC, id="taac"),
]


@pytest.mark.parametrize(("kind", "env", "settings"), CASES)
def test_loss_receives_every_field_with_matching_rows(
    kind: Any, env: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    starts: list[bool] = []

    def check(out: Outputs, batch: RolloutBatch) -> None:
        columns = {name: getattr(batch, name) for name in COLUMNS}
        columns |= {"log_prob": out.log_prob, "entropy": out.entropy, "out.values": out.values}
        assert {name: tuple(one.shape) for name, one in columns.items()} == dict.fromkeys(columns, (len(batch),))
        assert len(batch.vector) == len(batch.observations) == len(out.features) == len(batch)
        assert len(batch.noise) == 2 and all(one.shape == batch.actions.shape for one in batch.noise)
        assert not torch.equal(*batch.noise)
        again = out.logits.log_softmax(-1).gather(-1, batch.actions.long().reshape(-1, 1))[:, 0]
        torch.testing.assert_close(again, out.log_prob)
        assert (batch.packing is not None) == ("memory" in settings)
        if batch.packing is not None:
            assert sum(batch.packing.counts) == len(batch) and len(batch.packing.memory) == batch.packing.counts[0]
        if not starts:  # nothing has been learned from this rollout yet
            torch.testing.assert_close(batch.log_probs, out.log_prob.detach())
        starts.extend(batch.starts.tolist())

    mv.train(env, algorithm=checked(kind, check), run_dir=tmp_path / "run", **settings)
    assert {*starts} == {False, True}


@pytest.mark.parametrize(("kind", "env", "settings"), CASES)
def test_run_whose_loss_uses_noise_resumes_exactly(
    kind: Any, env: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    algorithm = checked(kind, lambda out, batch: None)
    whole = mv.train(env, algorithm=algorithm, run_dir=tmp_path / "whole", **settings)
    half = mv.train(env, algorithm=algorithm, run_dir=tmp_path / "parts", **{**settings, "env_steps": 200})
    assert digest(mv.resume(half, env_steps=400, algorithm=algorithm)) == digest(whole)


def test_loss_of_a_team_receives_the_masks_of_its_rows(tmp_path: Path) -> None:
    closed: list[bool] = []

    def check(out: Outputs, batch: RolloutBatch) -> None:
        assert batch.masks.gather(-1, batch.actions.long()[:, None]).all()
        closed.append(bool((~batch.masks).any()))

    env = "tests.training.mask_envs:TeamDoors"
    mv.train(env, algorithm=checked(TAAC, check), run_dir=tmp_path / "run", **OF_TAAC)
    assert any(closed)

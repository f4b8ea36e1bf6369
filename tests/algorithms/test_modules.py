"""`modules()`: auxiliary heads are trained with the losses, saved, and resumed exactly."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn

import multiverse as mv
from multiverse.algorithms import A2C, DQN, PPO, SAC, DiscreteSAC, Loss, Outputs, ReplayBatch, RolloutBatch
from multiverse.algorithms.algorithm import Learner
from multiverse.core.errors import InvalidRequest
from tests.training.small_runs import SMALL, digest, lines_of

FEW: dict[str, Any] = {**SMALL, "env_steps": 400, "hidden_sizes": (8, 8)}
REPLAY: dict[str, Any] = {"seed": 5, "num_envs": 4, "env_steps": 400, "learning_starts": 50, "batch_size": 16}
REPLAY |= {"evaluate_every": 0, "evaluation_episodes": 1, "executor": "serial", "preset": False, "hidden_sizes": (8,)}


class WithHead(Learner):
    """A head that predicts the reward from the observation."""

    def modules(self) -> dict[str, nn.Module]:
        return {"reward": nn.Linear(self.features.size, 1)}

    def prediction(self, vector: Any, rewards: Any) -> Any:
        return ((self.auxiliary["reward"](vector)[:, 0] - rewards) ** 2).mean()


class PredictingPPO(WithHead, PPO):
    def loss(self, out: Outputs, batch: RolloutBatch) -> Loss:
        return super().loss(out, batch).plus(prediction=self.prediction(batch.vector, batch.returns))


class PredictingA2C(WithHead, A2C):
    def loss(self, out: Outputs, batch: RolloutBatch) -> Loss:
        return super().loss(out, batch).plus(prediction=self.prediction(batch.vector, batch.returns))


class PredictingDQN(WithHead, DQN):
    def loss(self, batch: ReplayBatch) -> Loss:
        return super().loss(batch).plus(prediction=self.prediction(batch.observations.vector, batch.rewards))


class PredictingDiscreteSAC(WithHead, DiscreteSAC):
    def critic_loss(self, batch: ReplayBatch) -> Loss:
        return super().critic_loss(batch).plus(prediction=self.prediction(batch.observations.vector, batch.rewards))


CASES = [
    (PredictingPPO, FEW),
    (PredictingA2C, {name: value for name, value in FEW.items() if name not in ("epochs", "batch_size")}),
    (PredictingDQN, REPLAY),
    (PredictingDiscreteSAC, REPLAY),
]


@pytest.mark.parametrize(("algorithm", "settings"), CASES, ids=lambda case: getattr(case, "__name__", ""))
def test_run_with_auxiliary_head_resumes_exactly(algorithm: Any, settings: dict[str, Any], tmp_path: Path) -> None:
    whole = mv.train("CartPole-v1", algorithm=algorithm, run_dir=tmp_path / "whole", **settings)
    half = {**settings, "env_steps": settings["env_steps"] // 2}
    first = mv.train("CartPole-v1", algorithm=algorithm, run_dir=tmp_path / "parts", **half)
    assert digest(mv.resume(first, env_steps=settings["env_steps"])) == digest(whole)
    assert [row["prediction"] for row in lines_of(whole.path, "metrics.jsonl") if "prediction" in row]


@pytest.mark.parametrize(("algorithm", "settings"), CASES, ids=lambda case: getattr(case, "__name__", ""))
def test_auxiliary_head_is_trained_with_the_loss(algorithm: Any, settings: dict[str, Any], tmp_path: Path) -> None:
    weights: list[Any] = []

    class Recorded(algorithm):
        def prediction(self, vector: Any, rewards: Any) -> Any:
            weights.append(self.auxiliary["reward"].weight.detach().clone())
            return super().prediction(vector, rewards)

    mv.train("CartPole-v1", algorithm=Recorded, run_dir=tmp_path / "run", **settings)
    assert all(not torch.equal(one, other) for one, other in itertools.pairwise(weights))


def made(kind: Any, **settings: Any) -> Any:
    env = gym.make("CartPole-v1")
    return kind(kind.Config(**settings), env.observation_space, env.action_space, 4, 3)


@pytest.mark.parametrize("kind", [PredictingPPO, PredictingDQN])
def test_first_weights_of_auxiliary_heads_depend_only_on_the_seed(kind: Any) -> None:
    torch.manual_seed(1)
    first = made(kind).auxiliary["reward"].weight.clone()
    torch.manual_seed(2)
    state = torch.get_rng_state()
    assert torch.equal(made(kind).auxiliary["reward"].weight, first)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(("kind", "stock"), [(PredictingPPO, PPO), (PredictingDQN, DQN)])
def test_auxiliary_heads_change_no_first_weight_of_the_networks(kind: Any, stock: Any) -> None:
    own, plain = made(kind), made(stock, learner="torch")
    for one, other in zip(own.policy()._layers, plain.policy()._layers):
        assert np.array_equal(one[0], other[0])


def test_modules_needs_the_torch_learner_and_the_log_says_so(caplog: pytest.LogCaptureFixture) -> None:
    class Unused(WithHead, DQN): ...

    with caplog.at_level("INFO", logger="multiverse"):
        made(Unused)
    assert "Unused learns in torch, because no numpy kernel exists for its modules()" in caplog.text
    with pytest.raises(InvalidRequest, match=r"learner='numpy' cannot be used with modules\(\) of Unused"):
        made(Unused, learner="numpy")


def test_modules_can_create_another_algorithm() -> None:
    class Nested(DQN):
        def modules(self) -> dict[str, nn.Module]:
            torch.manual_seed(0)
            return {"other": made(DQN, learner="torch").values.module}

    assert any(one.requires_grad for one in made(Nested).auxiliary["other"].parameters())


@pytest.mark.parametrize(
    ("modules", "message"),
    [
        (lambda: None, "returned NoneType: expected a dict of names and torch modules"),
        (lambda: {"head": torch.zeros(1)}, "'head': Tensor: expected a torch.nn.Module"),
        (lambda: {1: nn.Linear(1, 1)}, "1: Linear: expected a torch.nn.Module"),
        (lambda: {"head": nn.LazyLinear(1)}, "'head' has lazy layers"),
        (lambda: {"a.b": nn.Linear(1, 1)}, "a name that torch does not allow"),
    ],
)
@pytest.mark.parametrize("stock", [PPO, SAC])
def test_invalid_modules_are_refused(stock: Any, modules: Callable[[], Any], message: str) -> None:
    kind: Any = type("Mine", (stock,), {"modules": lambda self: modules()})
    env = gym.make("Pendulum-v1")
    with pytest.raises(InvalidRequest, match=message):
        kind(kind.Config(), env.observation_space, env.action_space, 1, 0)


class Clearing(WithHead):
    def prediction(self, vector: Any, rewards: Any) -> Any:
        self.auxiliary["reward"].zero_grad()
        return super().prediction(vector, rewards)


@pytest.mark.fault("B5")
@pytest.mark.parametrize(("stock", "settings"), CASES, ids=lambda case: getattr(case, "__name__", ""))
def test_zero_grad_in_a_loss_is_an_error(stock: Any, settings: dict[str, Any], tmp_path: Path) -> None:
    kind = type("Mine", (Clearing, stock), {})
    with pytest.raises(InvalidRequest, match=r"loss\(\): the optimizer has lost the gradient .* do not call zero_grad"):
        mv.train("CartPole-v1", algorithm=kind, run_dir=tmp_path / "run", **settings)

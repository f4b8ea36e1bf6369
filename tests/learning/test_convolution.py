"""A convolution as a dense layer equals torch's convolution: outputs, gradient and steps; it stays a convolution."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from multiverse.algorithms.a2c import A2CConfig
from multiverse.algorithms.on_policy import OnPolicy
from multiverse.algorithms.ppo import PPO, PPOConfig
from multiverse.core.errors import InvalidRequest
from multiverse.core.policy import Seen
from multiverse.learning.batches import RolloutBatch
from multiverse.learning.convolution import Convolution
from multiverse.learning.loss import Outputs
from multiverse.learning.network_spec import NetworkSpec
from multiverse.learning.numpy_learner import NumpyLearner
from multiverse.learning.optimizers import Adam, RMSprop
from multiverse.networks.actor_critic import ActorCritic
from tests.kernels.losses import kernel, torch_loss

ROWS, BOARD, FILTERS, SIZE = 40, (6, 7, 2), 5, 4
ACTIONS = spaces.Discrete(7)
CONFIG = PPOConfig(entropy_coef=0.02, clip_range=0.1)
LOSSES = {NumpyLearner: kernel(PPO, CONFIG), ActorCritic: torch_loss(PPO, CONFIG)}


def rows(learner: Any) -> RolloutBatch:
    rng = np.random.default_rng(0)
    columns = {name: rng.normal(size=ROWS).astype(np.float32) for name in ("advantages", "returns", "values")}
    columns["log_probs"] = np.full(ROWS, -1.9, np.float32)
    put = learner.put
    return RolloutBatch(
        put(rng.integers(0, 2, (ROWS, 84)).astype(np.float32)),
        [],
        put(rng.integers(0, 7, ROWS)),
        **{name: put(column) for name, column in columns.items()},
    )


def learners(optimizer: Any = Adam) -> tuple[NumpyLearner, ActorCritic]:
    shape = NetworkSpec(84, [], ACTIONS, (16,), "relu", convolution=Convolution(BOARD, FILTERS, SIZE))
    ours, theirs = NumpyLearner(shape, optimizer, 1), ActorCritic(shape, optimizer, 2, "cpu")
    return ours, theirs


def filters_of(layer: Any) -> torch.nn.Conv2d:
    """Torch's convolution with the filters of the first place."""
    weights, bias = layer
    looked_at = np.arange(84).reshape(BOARD)[:SIZE, :SIZE]
    found = torch.nn.Conv2d(2, FILTERS, SIZE)
    kernel = weights.T[:FILTERS][:, looked_at.transpose(2, 0, 1).reshape(-1)]
    found.weight.data = torch.from_numpy(kernel.reshape(FILTERS, 2, SIZE, SIZE).copy())
    found.bias.data = torch.from_numpy(bias[:FILTERS].copy())
    return found


def said_by(convolution: torch.nn.Conv2d, vector: Any) -> Any:
    """[rows, outputs], in the order of ours."""
    board = torch.as_tensor(vector).reshape(-1, *BOARD).permute(0, 3, 1, 2)
    return convolution(board).permute(0, 2, 3, 1).reshape(len(board), -1)


def updated(learner: Any, times: int = 5) -> None:
    for _ in range(times):
        learner.gradient(rows(learner), LOSSES[type(learner)])
        learner.optimizer.step(0.01, 0.5)


@pytest.mark.parametrize("which", [0, 1], ids=["numpy", "torch"])
@pytest.mark.parametrize("optimizer", [Adam, RMSprop])
def test_layer_stays_a_convolution_during_training(which: int, optimizer: Any) -> None:
    learner = learners(optimizer)[which]
    for times in (0, 5):
        updated(learner, times)
        weights, bias = learner.layers()[0]
        vector = np.random.default_rng(1).normal(size=(9, 84)).astype(np.float32)
        expected = said_by(filters_of((weights, bias)), vector).detach().numpy()
        np.testing.assert_allclose(vector @ weights + bias, expected, atol=1e-4)


def test_gradient_of_filters_and_its_norm_equal_torch() -> None:
    learner, _ = learners()
    first, *others = learner.layers()
    batch, convolution = rows(learner), filters_of(first)
    learner.gradient(batch, LOSSES[NumpyLearner])
    _, _, grad_weights, grad_bias = learner._actor.layers[0]

    x = said_by(convolution, batch.vector)
    for weights, bias in others:
        x = torch.relu(x) @ torch.from_numpy(weights) + torch.from_numpy(bias)
    distribution = torch.distributions.Categorical(logits=x)
    log_probs, entropies = distribution.log_prob(torch.as_tensor(batch.actions)), distribution.entropy()
    values = learner.values(batch.vector, [])
    loss = LOSSES[NumpyLearner](Outputs(log_probs.detach().numpy(), entropies.detach().numpy(), values), batch)
    ((log_probs * torch.as_tensor(loss.log_prob)).sum() + entropies.sum() * loss.entropy).backward()

    expected = [convolution.weight.grad, convolution.bias.grad]
    assert all(one is not None for one in expected)
    norm = float(np.sqrt(sum((one**2).sum().item() for one in expected if one is not None)))
    np.testing.assert_allclose(np.linalg.norm(np.concatenate([grad_weights.reshape(-1), grad_bias])), norm, rtol=1e-4)


def test_numpy_and_torch_take_the_same_steps() -> None:
    ours, theirs = learners()
    ours.optimizer.load_weights(theirs.optimizer.weights())
    updated(ours)
    updated(theirs)
    for mine, their in zip(ours.optimizer.weights(), theirs.optimizer.weights()):
        np.testing.assert_allclose(mine, their, atol=2e-4)


@pytest.mark.parametrize("board", [(6, 7, 2), (2, 6, 7), (8, 8, 111), (3, 7, 7), (5, 5, 5)])
def test_channels_may_come_first_or_last(board: tuple[int, ...]) -> None:
    channels = board[0] if board in ((2, 6, 7), (3, 7, 7)) else board[2]
    assert Convolution(board, 4, 3).kernel == (4, channels * 9)


def agent(space: spaces.Space[Any], **settings: Any) -> OnPolicy:
    return PPO(PPOConfig(**settings), space, ACTIONS, slots=2, seed=0)


def test_policy_with_filters_acts_as_dense_layers() -> None:
    space = spaces.Box(0, 1, BOARD, np.int8)
    policy = agent(space, filters=8, kernel_size=4, hidden_sizes=(16,)).policy()
    board = np.random.default_rng(0).integers(0, 2, (3, *BOARD)).astype(np.int8)
    actions, _ = policy.act(Seen({(): board}, np.ones(3, bool)), None, {})
    assert actions.shape == (3,) and policy.portable() is policy


@pytest.mark.parametrize(
    ("space", "settings", "message"),
    [
        (spaces.Box(0, 1, (4,)), {}, "one Box of three axes"),
        (spaces.Dict({"a": spaces.Box(0, 1, BOARD), "b": spaces.Discrete(3)}), {}, "one Box of three axes"),
        (spaces.Box(0, 1, BOARD), {"kernel_size": 7}, "kernel_size=7: larger than the board, 6 × 7"),
        (spaces.Box(0, 1, BOARD), {"kernel_size": 0}, "kernel_size=0"),
        (spaces.Box(0, 1, BOARD), {"filters": -1}, "filters=-1"),
        (spaces.Box(0, 1, BOARD), {"memory": "lstm"}, "filters=8: cannot be used with a memory"),
    ],
)
def test_invalid_convolutions_are_refused(space: Any, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        agent(space, **{"filters": 8, **settings})


def test_a2c_has_the_filters_setting() -> None:
    assert A2CConfig(filters=4).filters == 4

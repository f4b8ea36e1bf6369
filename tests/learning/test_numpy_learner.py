"""The learner in numpy equals the one in torch: values, likelihoods, gradients and steps, from the same weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from multiverse.algorithms.a2c import A2C, A2CConfig
from multiverse.algorithms.ppo import PPO, PPOConfig
from multiverse.learning.batches import Packing, RolloutBatch
from multiverse.learning.network_spec import NetworkSpec
from multiverse.learning.numpy_learner import NumpyLearner
from multiverse.learning.optimizers import Adam, RMSprop
from multiverse.networks.actor_critic import ActorCritic
from tests.kernels.losses import kernel, torch_loss

ROWS, SIZE = 50, 5
ACTIONS: dict[str, spaces.Space[Any]] = {
    "discrete": spaces.Discrete(4),
    "multi-discrete": spaces.MultiDiscrete([2, 3]),
    "binary": spaces.MultiBinary(3),
    "box": spaces.Box(-1, 1, (2,), np.float32),
}
OF_PPO = PPO, PPOConfig(value_clip_range=0.3, entropy_coef=0.02, clip_range=0.1)
OF_A2C = A2C, A2CConfig(entropy_coef=0.02)


LENGTHS = (12, 12, 11, 8, 5, 1, 1)


def along(learner: Any, memory: Any) -> Packing:
    rng, cells = np.random.default_rng(4), 1 if memory == "gru" else 2
    counts = [sum(length > p for length in LENGTHS) for p in range(max(LENGTHS))]
    assert sum(counts) == ROWS
    return Packing(counts, learner.put(rng.normal(size=(len(LENGTHS), 2, cells, 6)).astype(np.float32)))


def pair(
    name: str, activation: Any, squash: bool, optimizer: Any, memory: Any = None
) -> tuple[NumpyLearner, ActorCritic]:
    more: dict[str, Any] = {"log_std_init": -0.3, "squash": squash, "memory": memory, "memory_size": 6}
    shape = NetworkSpec(SIZE, [], ACTIONS[name], (16, 8), activation, **more)
    ours, theirs = NumpyLearner(shape, optimizer, seed=1), ActorCritic(shape, optimizer, 2, "cpu")
    ours.optimizer.load_weights(theirs.optimizer.weights())
    return ours, theirs


def batches(name: str, ours: Any, theirs: Any, memory: Any = None) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    vector = rng.normal(size=(ROWS, SIZE)).astype(np.float32)
    actions: Any = {
        "discrete": rng.integers(0, 4, ROWS),
        "multi-discrete": np.stack([rng.integers(0, 2, ROWS), rng.integers(0, 3, ROWS)], axis=1),
        "binary": rng.integers(0, 2, (ROWS, 3)),
        "box": rng.normal(size=(ROWS, 2)).astype(np.float32),
    }[name]
    masks = np.ones((ROWS, 4), bool) if name == "discrete" else None
    if masks is not None:
        masks[np.arange(ROWS), (actions + 1) % 4] = False
    columns = {key: rng.normal(size=ROWS).astype(np.float32) for key in ("advantages", "returns", "values")}
    made = []
    for learner in (ours, theirs):
        put = {key: learner.put(column) for key, column in columns.items()}
        allowed = None if masks is None else learner.put(masks)
        made.append(RolloutBatch(learner.put(vector), [], learner.put(actions), allowed, **put))
        made[-1].packing = None if memory is None else along(learner, memory)
        made[-1].columns["log_probs"] = learner.log_probs(made[-1]) - 0.05
    return made[0], made[1]


def assert_equal_metrics(ours: Any, theirs: Any) -> None:
    assert ours.keys() == theirs.keys()
    for name in ours:
        assert float(ours[name]) == pytest.approx(float(theirs[name]), rel=1e-3, abs=1e-5), name


@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("name", ACTIONS)
@pytest.mark.parametrize(("loss", "optimizer"), [(OF_PPO, Adam), (OF_A2C, RMSprop)], ids=["ppo", "a2c"])
def test_five_steps_from_equal_weights_give_equal_weights(
    name: str, activation: Any, loss: Any, optimizer: Any
) -> None:
    ours, theirs = pair(name, activation, False, optimizer)
    mine, his = batches(name, ours, theirs)
    np.testing.assert_allclose(ours.values(mine.vector, []), theirs.values(mine.vector, []), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(mine["log_probs"], his["log_probs"].numpy(), rtol=1e-4, atol=1e-6)
    for _ in range(5):
        assert_equal_metrics(ours.gradient(mine, kernel(*loss)), theirs.gradient(his, torch_loss(*loss)))
        np.testing.assert_allclose(ours.optimizer.gradient, theirs.optimizer.gradient.numpy(), rtol=1e-2, atol=1e-5)
        assert ours.optimizer.step(0.01, 0.5) and theirs.optimizer.step(0.01, 0.5)
    np.testing.assert_allclose(ours.optimizer.weights(), theirs.optimizer.weights(), rtol=1e-3, atol=1e-4)
    assert ours.optimizer.state().keys() == theirs.optimizer.state().keys()


def test_squashed_gaussian_equals_torch() -> None:
    ours, theirs = pair("box", "tanh", True, Adam)
    mine, his = batches("box", ours, theirs)
    np.testing.assert_allclose(mine["log_probs"], his["log_probs"].numpy(), rtol=1e-4, atol=1e-5)
    ours.gradient(mine, kernel(*OF_PPO))
    theirs.gradient(his, torch_loss(*OF_PPO))
    np.testing.assert_allclose(ours.optimizer.gradient, theirs.optimizer.gradient.numpy(), rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("name", ["discrete", "box"])
@pytest.mark.parametrize(("loss", "optimizer"), [(OF_PPO, Adam), (OF_A2C, RMSprop)], ids=["ppo", "a2c"])
@pytest.mark.parametrize("memory", ["lstm", "gru"])
def test_recurrent_networks_of_both_learners_are_equal(memory: Any, loss: Any, optimizer: Any, name: str) -> None:
    ours, theirs = pair(name, "tanh", False, optimizer, memory)
    mine, his = batches(name, ours, theirs, memory)
    (values, after), (expected, then) = (
        learner.recurrent_values(batch.vector, [], batch.packing) for learner, batch in ((ours, mine), (theirs, his))
    )
    np.testing.assert_allclose(values, expected, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(after, then, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(mine["log_probs"], his["log_probs"].numpy(), rtol=1e-4, atol=1e-5)
    for _ in range(5):
        assert_equal_metrics(ours.gradient(mine, kernel(*loss)), theirs.gradient(his, torch_loss(*loss)))
        np.testing.assert_allclose(ours.optimizer.gradient, theirs.optimizer.gradient.numpy(), rtol=1e-2, atol=1e-5)
        assert ours.optimizer.step(0.01, 0.5) and theirs.optimizer.step(0.01, 0.5)
    np.testing.assert_allclose(ours.optimizer.weights(), theirs.optimizer.weights(), rtol=1e-3, atol=1e-4)
    for one, other in zip(ours.cells(), theirs.cells()):
        assert [value.shape for value in one] == [value.shape for value in other]


def test_initial_weights_are_orthogonal_and_depend_on_the_seed() -> None:
    shape = NetworkSpec(SIZE, [], ACTIONS["discrete"], (64, 64))
    one, again, other = (NumpyLearner(shape, Adam, seed) for seed in (1, 1, 2))
    first_weights = one.optimizer.weights()
    assert (first_weights == again.optimizer.weights()).all() and (first_weights != other.optimizer.weights()).any()
    (first, _), (second, _), (last, _) = one.layers()
    np.testing.assert_allclose(second @ second.T, 2 * np.eye(64), atol=1e-5)
    np.testing.assert_allclose(first @ first.T, 2 * np.eye(SIZE), atol=1e-5)
    np.testing.assert_allclose(last.T @ last, 1e-4 * np.eye(4), atol=1e-8)


@pytest.mark.parametrize("memory", ["lstm", "gru"])
def test_initial_time_scales_of_cells_reach_a_chunk(memory: Any) -> None:
    shape = NetworkSpec(SIZE, [], ACTIONS["discrete"], (16,), memory=memory, memory_size=64, chunk_length=32)
    for learner in (NumpyLearner(shape, Adam, 1), ActorCritic(shape, Adam, 1, "cpu")):
        for inward, recurrent, bias, recurrent_bias in learner.cells():
            np.testing.assert_allclose(inward.T @ inward, np.eye(SIZE), atol=1e-5)
            np.testing.assert_allclose(recurrent.T @ recurrent, np.eye(64), atol=1e-5)
            kept = 1 / (1 + np.exp(-bias[64:128]))
            lasting = 1 / (1 - kept)
            assert lasting.min() >= 1.9 and 24 < lasting.max() <= 32 and (recurrent_bias == 0).all()
            assert (bias[:64] == 0).all() and (bias[128:] == 0).all()
    plain = NetworkSpec(SIZE, [], ACTIONS["discrete"], (16,), memory=memory, memory_size=64, ortho_init=False)
    (cell, _) = NumpyLearner(plain, Adam, 1).cells()
    assert all(0.1 < np.abs(value).max() <= 1 / 8 for value in cell)


def test_torch_resumes_from_numpy_weights() -> None:
    ours, theirs = pair("box", "tanh", False, Adam)
    mine, his = batches("box", ours, theirs)
    for _ in range(3):
        ours.gradient(mine, kernel(*OF_PPO))
        ours.optimizer.step(0.01, 0.5)
    theirs.optimizer.load_weights(ours.optimizer.weights())
    theirs.optimizer.load(ours.optimizer.state())
    for learner, batch, loss in ((ours, mine, kernel(*OF_PPO)), (theirs, his, torch_loss(*OF_PPO))):
        learner.gradient(batch, loss)
        learner.optimizer.step(0.01, 0.5)
    np.testing.assert_allclose(ours.optimizer.weights(), theirs.optimizer.weights(), rtol=1e-4, atol=1e-6)

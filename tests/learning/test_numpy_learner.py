"""The learner in numpy is the one in torch: values, likelihoods, gradients and steps, from the same weights."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from multiverse.algorithms.a2c import a2c_loss
from multiverse.algorithms.ppo import ppo_loss
from multiverse.learning.actor_critic import ActorCritic
from multiverse.learning.loss import Shape
from multiverse.learning.numpy_learner import NumpyLearner

ROWS, SIZE = 50, 5
ACTIONS: dict[str, spaces.Space[Any]] = {
    "discrete": spaces.Discrete(4),
    "multi-discrete": spaces.MultiDiscrete([2, 3]),
    "binary": spaces.MultiBinary(3),
    "box": spaces.Box(-1, 1, (2,), np.float32),
}
PPO = partial(ppo_loss, clip=0.1, value_clip=0.3, value_coef=0.5, entropy_coef=0.02, normalize=True, looks=True)
A2C = partial(a2c_loss, value_coef=0.5, entropy_coef=0.02, normalize=False)


def pair(name: str, activation: Any, squash: bool, optimizer: Any) -> tuple[NumpyLearner, ActorCritic]:
    shape = Shape((16, 8), activation, -0.3, True, squash)
    ours = NumpyLearner(SIZE, ACTIONS[name], shape, optimizer, 0.01, seed=1)
    theirs = ActorCritic(SIZE, [], ACTIONS[name], shape, optimizer, 0.01, 2, "cpu")
    ours.load_weights(theirs.weights())
    return ours, theirs


def batches(name: str, ours: Any, theirs: Any) -> tuple[Any, Any]:
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
    made = [learner.batch(vector, [], actions, masks, **columns) for learner in (ours, theirs)]
    for batch, learner in zip(made, (ours, theirs)):
        batch.columns["log_probs"] = learner.log_probs(batch) - 0.05
    return made[0], made[1]


@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("name", ACTIONS)
@pytest.mark.parametrize(("loss", "optimizer"), [(PPO, "adam"), (A2C, "rmsprop")], ids=["ppo", "a2c"])
def test_five_steps_from_the_same_weights_lead_to_the_same(
    name: str, activation: Any, loss: Any, optimizer: Any
) -> None:
    ours, theirs = pair(name, activation, False, optimizer)
    mine, his = batches(name, ours, theirs)
    np.testing.assert_allclose(ours.values(mine.vector, []), theirs.values(mine.vector, []), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(mine["log_probs"], his["log_probs"].numpy(), rtol=1e-4, atol=1e-6)
    for _ in range(5):
        parts, expected = ours.gradient(mine, loss), theirs.gradient(his, loss)
        np.testing.assert_allclose(parts, expected, rtol=1e-3, atol=1e-5)
        np.testing.assert_allclose(ours.optimizer.gradient, theirs.optimizer.gradient.numpy(), rtol=1e-2, atol=1e-5)
        ours.optimizer.step(0.5)
        theirs.optimizer.step(0.5)
    np.testing.assert_allclose(ours.weights(), theirs.weights(), rtol=1e-3, atol=1e-4)
    assert ours.state().keys() == theirs.state().keys()


def test_a_squashed_gaussian_too() -> None:
    ours, theirs = pair("box", "tanh", True, "adam")
    mine, his = batches("box", ours, theirs)
    np.testing.assert_allclose(mine["log_probs"], his["log_probs"].numpy(), rtol=1e-4, atol=1e-5)
    ours.gradient(mine, PPO)
    theirs.gradient(his, PPO)
    np.testing.assert_allclose(ours.optimizer.gradient, theirs.optimizer.gradient.numpy(), rtol=1e-3, atol=1e-6)


def test_first_weights_are_orthogonal_and_the_seeds_own() -> None:
    shape = Shape((64, 64), "tanh")
    one, again, other = (NumpyLearner(SIZE, ACTIONS["discrete"], shape, "adam", 0.1, seed) for seed in (1, 1, 2))
    assert (one.weights() == again.weights()).all() and (one.weights() != other.weights()).any()
    (first, _), (second, _), (last, _) = one.layers()
    np.testing.assert_allclose(second @ second.T, 2 * np.eye(64), atol=1e-5)
    np.testing.assert_allclose(first @ first.T, 2 * np.eye(SIZE), atol=1e-5)
    np.testing.assert_allclose(last.T @ last, 1e-4 * np.eye(4), atol=1e-8)


def test_torch_goes_on_with_what_numpy_has_learned() -> None:
    ours, theirs = pair("box", "tanh", False, "adam")
    mine, his = batches("box", ours, theirs)
    for _ in range(3):
        ours.gradient(mine, PPO)
        ours.optimizer.step(0.5)
    theirs.load_weights(ours.weights())
    theirs.load(ours.state())
    for learner, batch in ((ours, mine), (theirs, his)):
        learner.gradient(batch, PPO)
        learner.optimizer.step(0.5)
    np.testing.assert_allclose(ours.weights(), theirs.weights(), rtol=1e-4, atol=1e-6)


@pytest.mark.fault("B5")
@pytest.mark.parametrize("optimizer", ["adam", "rmsprop"])
def test_a_gradient_that_is_not_finite_changes_nothing(optimizer: Any) -> None:
    ours, _ = pair("box", "tanh", False, optimizer)
    before, state = ours.weights(), ours.state()
    ours.optimizer.gradient[3] = np.nan
    assert not np.isfinite(ours.optimizer.step(0.5))
    assert (ours.weights() == before).all() and repr(ours.state()) == repr(state)


def test_weights_of_another_size_are_refused() -> None:
    ours, _ = pair("box", "tanh", False, "adam")
    with pytest.raises(ValueError, match=r"the saved algorithm has 7 parameters .*other sizes"):
        ours.load_weights(np.zeros(7))

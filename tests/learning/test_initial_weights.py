"""The same seed gives the same first weights in numpy and in torch, for every stock algorithm."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from threadpoolctl import threadpool_info, threadpool_limits

from multiverse.algorithms import algorithm_class
from multiverse.algorithms.ppo import PPO
from multiverse.learning.initial_weights import orthogonal
from multiverse.networks import MLP

VECTOR, BOARD = spaces.Box(-1, 1, (5,), np.float32), spaces.Box(0, 1, (6, 5, 2), np.float32)
DISCRETE, BOX = spaces.Discrete(3), spaces.Box(-1, 1, (2,), np.float32)
ON_POLICY: list[dict[str, Any]] = [
    {},
    {"ortho_init": False},
    {"hidden_sizes": ()},
    {"hidden_sizes": (7,), "activation": "relu"},
    {"hidden_sizes": (100, 33, 4)},
    {"log_std_init": -0.7},
    {"critic": "central"},
    *({"memory": kind, "memory_size": 70, "hidden_sizes": (9,)} for kind in ("lstm", "gru")),
    *({"memory": kind, "memory_size": 6, "ortho_init": False} for kind in ("lstm", "gru")),
    {"memory": "gru", "see_previous": True, "chunk_length": 4},
    {"memory": "lstm", "critic": "central"},
    {"memory": "lstm", "hidden_sizes": ()},
]
FILTERS: list[dict[str, Any]] = [
    {"filters": 4},
    {"filters": 8, "kernel_size": 2, "hidden_sizes": ()},
    {"filters": 4, "ortho_init": False},
]
OFF_POLICY: list[dict[str, Any]] = [
    {},
    {"hidden_sizes": ()},
    {"hidden_sizes": (7,)},
    {"hidden_sizes": (300, 20, 5)},
    *({"memory": kind, "memory_size": 12} for kind in ("lstm", "gru")),
    {"memory": "lstm", "action_embedding": 0, "reward_embedding": 0},
    {"memory": "gru", "markov_actor": True},
]
CASES = [
    *((name, VECTOR, actions, one) for name in ("ppo", "a2c") for actions in (DISCRETE, BOX) for one in ON_POLICY),
    *((name, BOARD, DISCRETE, one) for name in ("ppo", "a2c") for one in FILTERS),
    *((name, VECTOR, BOX, one) for name in ("sac", "td3") for one in OFF_POLICY),
    *(("discrete_sac", VECTOR, DISCRETE, one) for one in OFF_POLICY),
    *(("dqn", VECTOR, DISCRETE, one) for one in OFF_POLICY if "markov_actor" not in one),
]


def made(name: str, space: Any, actions: Any, learner: str, seed: int = 3, **settings: Any) -> Any:
    kind = algorithm_class(name)
    more = {"agents": 2} if settings.get("critic") == "central" else {}
    return kind(kind.Config(learner=learner, **settings), space, actions, 2, seed, **more)


def flat(weights: Any) -> dict[str, bytes]:
    return {name: np.asarray(values).tobytes() for name, values in weights.items()}


@pytest.mark.parametrize(("name", "space", "actions", "settings"), CASES)
def test_initial_weights_of_both_learners_are_bit_equal(
    name: str, space: Any, actions: Any, settings: dict[str, Any]
) -> None:
    ours, theirs = (made(name, space, actions, learner, **settings) for learner in ("numpy", "torch"))
    assert flat(ours.weights()) == flat(theirs.weights())
    assert flat(ours.weights()) != flat(made(name, space, actions, "numpy", seed=4, **settings).weights())
    if "targets" in (state := ours.state()):
        assert flat(state["targets"]) == flat(theirs.state()["targets"])


def test_torch_only_layers_are_orthogonal_initially() -> None:
    algorithm = made("ppo", VECTOR, DISCRETE, "auto", hidden_sizes=(300, 300))
    (_, _), (second, bias), (last, _) = algorithm._networks.layers()
    np.testing.assert_allclose(second @ second.T, 2 * np.eye(300), atol=1e-5)
    np.testing.assert_allclose(last.T @ last, 1e-4 * np.eye(3), atol=1e-8)
    assert not bias.any()


def test_copies_of_a_network_start_with_different_weights() -> None:
    for learner in ("numpy", "torch"):
        first, second = np.split(made("sac", VECTOR, BOX, learner).weights()["critic"], 2)
        assert (first != second).all()


@pytest.mark.parametrize("size", [(3, 5), (5, 3), (70, 66), (66, 70)])
def test_smaller_side_of_an_orthogonal_matrix_is_orthonormal(size: tuple[int, int]) -> None:
    matrix = orthogonal(np.random.default_rng(0), size)
    assert matrix.shape == size
    product = matrix @ matrix.T if size[0] < size[1] else matrix.T @ matrix
    np.testing.assert_allclose(product, np.eye(min(size)), atol=1e-12)


def test_drawing_initial_weights_keeps_the_number_of_blas_threads() -> None:
    def threads() -> list[int]:
        return [one["num_threads"] for one in threadpool_info() if one["user_api"] == "blas"]

    with threadpool_limits(2, "blas"):
        before = threads()
        orthogonal(np.random.default_rng(0), (70, 70))
        assert threads() == before


def test_initial_weights_of_user_network_and_later_layers_depend_on_the_seed() -> None:
    def weights(seed: int) -> Any:
        network = "MLP", lambda space: MLP(space, (8,))
        return PPO(PPO.Config(hidden_sizes=(6,)), VECTOR, DISCRETE, 2, seed, network=network).weights()["parameters"]

    first, again, other = weights(3), weights(3), weights(4)
    assert (first == again).all() and ((first != other) | (first == 0)).all()  # biases are zero

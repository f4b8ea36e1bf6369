"""Policies in numpy: equal bits for a row in batches of any size, and restored exactly from a run."""

from __future__ import annotations

import itertools
import os
import pickle
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from multiverse.core.policy import Seen
from multiverse.policies.cells import Cells
from multiverse.policies.features import Features
from multiverse.policies.heads import head_for
from multiverse.policies.numpy_policies import NumpyPolicy, loaded_policy

SIZES = ((4, 64, 64, 2), (17, 64, 64, 6), (376, 256, 256, 17), (3, 8, 1))
ACTIONS: dict[str, spaces.Space[Any]] = {
    "discrete": spaces.Discrete(3, start=2),
    "multi-discrete": spaces.MultiDiscrete([2, 3]),
    "binary": spaces.MultiBinary(4),
    "box": spaces.Box(-2, 2, (3,), np.float32),
}


def policy_of(sizes: tuple[int, ...], actions: spaces.Space[Any], squash: bool = False) -> NumpyPolicy:
    rng, space = np.random.default_rng(0), spaces.Box(-np.inf, np.inf, sizes[:1], np.float32)
    layers = [
        (rng.normal(size=(a, b)).astype(np.float32), rng.normal(size=b).astype(np.float32))
        for a, b in itertools.pairwise(sizes)
    ]
    std = np.full(sizes[-1], 0.5, np.float32) if isinstance(actions, spaces.Box) else None
    moments = (rng.normal(size=sizes[0]).astype(np.float32), np.full(sizes[0], 0.7, np.float32))
    return NumpyPolicy(Features(space, actions), layers, "tanh", head_for(actions, std, squash), 7, moments)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_row_has_the_same_bits_among_any_number_of_rows(sizes: tuple[int, ...]) -> None:
    policy = policy_of(sizes, spaces.Discrete(sizes[-1]))
    rows = np.random.default_rng(1).normal(size=(64, sizes[0])).astype(np.float32)
    whole, _ = policy.output(rows, {})
    for count in range(1, 65):
        for first in {0, (64 - count) // 2, 64 - count}:
            part, _ = policy.output(rows[first : first + count], {})
            assert part.tobytes() == whole[first : first + count].tobytes(), (count, first)


def remembering(size: int = 5, units: int = 33) -> NumpyPolicy:
    """A recurrent policy with an embedding and a shortcut past the memory."""
    rng, space, actions = np.random.default_rng(0), spaces.Box(-9, 9, (size,), np.float32), spaces.Discrete(3)

    def drawn(*shape: int) -> Any:
        return rng.normal(size=shape).astype(np.float32)

    cell = [drawn(3 * units, 20), drawn(3 * units, units), drawn(3 * units), drawn(3 * units)]
    layers = [(drawn(units + 7, 16), drawn(16)), (drawn(16, 3), drawn(3))]
    features = Features(space, actions, see_previous=True)
    embedding = drawn(features.size, 20 + 7), drawn(20 + 7)
    return NumpyPolicy(features, layers, "relu", head_for(actions), 7, None, Cells("gru", [cell]), embedding)


def test_recurrent_row_has_the_same_bits_among_any_number_of_rows() -> None:
    policy = remembering()
    rows = np.random.default_rng(1).normal(size=(3, 64, 9)).astype(np.float32)
    whole, memory = [], policy.first_memory(64)
    for row in rows:
        said, memory = policy.output(row, memory)
        whole.append(said)
    for count in range(1, 65):
        part = slice(64 - count, 64)
        memory = policy.first_memory(count)
        for row, expected in zip(rows, whole):
            said, memory = policy.output(row[part], memory)
            assert said.tobytes() == expected[part].tobytes(), count


def test_embedding_that_does_not_fit_is_refused() -> None:
    policy = remembering()
    saved, spaces_ = policy.saved(), (spaces.Box(-9, 9, (5,), np.float32), spaces.Discrete(3))
    again = loaded_policy(pickle.loads(pickle.dumps(saved)), *spaces_)
    x, memory = np.ones((2, 9), np.float32), policy.first_memory(2)
    assert again.output(x, memory)[0].tobytes() == policy.output(x, memory)[0].tobytes()
    weights, bias = saved["embedding"]
    for wrong in ([weights[1:], bias], [weights[:, :9], bias[:9]], [weights, bias[:-1]]):
        with pytest.raises(ValueError, match="embedding does not fit"):
            loaded_policy({**saved, "embedding": wrong}, *spaces_)
    with pytest.raises(ValueError, match="layers do not fit"):
        loaded_policy({**saved, "embedding": [weights[:, :-1], bias[:-1]]}, *spaces_)


def test_row_has_the_same_bits_with_another_matrix_kernel() -> None:
    """OpenBLAS has a kernel for every kind of processor; Haswell's runs on all with AVX2."""
    file = f"{__file__}::test_row_has_the_same_bits_among_any_number_of_rows"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", file]
    done = subprocess.run(command, env={**os.environ, "OPENBLAS_CORETYPE": "Haswell"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:]


@pytest.mark.parametrize("name", ACTIONS)
@pytest.mark.parametrize("squash", [False, True])
def test_policy_loaded_from_a_run_equals_the_saved_one(name: str, squash: bool) -> None:
    actions = ACTIONS[name]
    outputs = {"discrete": 3, "multi-discrete": 5, "binary": 4, "box": 3}[name]
    policy = policy_of((4, 8, outputs), actions, squash)
    again = loaded_policy(policy.saved(), spaces.Box(-np.inf, np.inf, (4,), np.float32), actions)
    seen = Seen({(): np.random.default_rng(2).normal(size=(5, 4)).astype(np.float32)}, np.ones(5, bool))
    noise = policy.noise(np.random.default_rng(3), 1, 5)[0]
    for given in (None, noise):
        (ours, _), (theirs, _) = policy.act(seen, given, {}), again.act(seen, given, {})
        assert ours.tobytes() == theirs.tobytes()
        for one in policy.for_env(ours):
            assert actions.contains(np.asarray(one, actions.dtype))
    assert again.version == 7 and policy.portable() is policy


class _OwnPolicy(NumpyPolicy):
    own = 1


@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_pickled_policy_acts_with_the_same_bits(activation: str) -> None:
    rng, actions = np.random.default_rng(0), spaces.Discrete(2)
    layers = [(rng.normal(size=(3, 5)).astype(np.float32), rng.normal(size=5)), (rng.normal(size=(5, 2)), np.ones(2))]
    features = Features(spaces.Box(-1, 1, (3,), np.float32), actions)
    policy = _OwnPolicy(features, layers, activation, head_for(actions), 7)
    policy.own = 2
    one, another = (pickle.loads(pickle.dumps(policy)) for _ in range(2))
    rows = rng.normal(size=(6, 3)).astype(np.float32)
    assert len({each.output(rows, {})[0].tobytes() for each in (policy, one, another)}) == 1
    assert (type(one), one.own, one.version) == (_OwnPolicy, 2, 7)
    assert one._features is another._features  # constants were unpacked once
    assert one._features.vector({(): rows}).tobytes() == rows.tobytes()


def test_binary_actions_have_the_probabilities_of_their_logits() -> None:
    head = head_for(spaces.MultiBinary(2))
    output = np.tile(np.array([[0.0, 1.5]], np.float32), (20_000, 1))
    drawn = head.choose(output, head.noise(np.random.default_rng(0), 1, 20_000)[0], None)
    assert drawn.mean(axis=0) == pytest.approx([0.5, 1 / (1 + np.exp(-1.5))], abs=0.015)


def test_number_outside_its_space_sets_no_feature() -> None:
    """It is reported where the env runs; here it sets none of the feature columns."""
    features = Features(spaces.Tuple((spaces.Discrete(4), spaces.MultiDiscrete([2, 3]))), spaces.Discrete(2))
    seen = {(0,): np.array([1, 5, -1]), (1,): np.array([[1, 2], [2, 0], [-1, 3]])}
    assert features.vector(seen).tolist() == [
        [0, 1, 0, 0, 0, 1, 0, 0, 1],
        [0, 0, 0, 0, 0, 0, 1, 0, 0],
        [0, 0, 0, 0, 0, 0, 0, 0, 0],
    ]

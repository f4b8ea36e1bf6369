"""Policies with memory: torch's cells in numpy, with equal bits for a row in batches of any size."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from multiverse.core.policy import Seen
from multiverse.policies.cells import GATES, Cells
from multiverse.policies.features import Features, previous_of
from multiverse.policies.heads import head_for
from multiverse.policies.numpy_policies import NumpyPolicy, loaded_policy

SEEN = spaces.Box(-np.inf, np.inf, (5,), np.float32)
KINDS = ("lstm", "gru")


def normal(rng: np.random.Generator, *shape: int) -> Any:
    return rng.normal(size=shape).astype(np.float32)


def policy_of(
    kind: Any, size: int = 16, cells: int = 2, see_previous: bool = False, actions: Any = None
) -> NumpyPolicy:
    rng, actions = np.random.default_rng(0), actions or spaces.Discrete(3)
    features = Features(SEEN, actions, see_previous)
    shapes = [(GATES[kind] * size, inward) for inward in (features.size, size)]
    weights = [[*(normal(rng, *shape) / 3 for shape in shapes), *(normal(rng, shape[0]) for shape in shapes)]
               for _ in range(cells)]  # fmt: skip
    outputs = 3 if isinstance(actions, spaces.Discrete) else 2
    layers = [(normal(rng, size, 8), normal(rng, 8)), (normal(rng, 8, outputs), normal(rng, outputs))]
    std = np.ones(outputs, np.float32) if isinstance(actions, spaces.Box) else None
    moments = normal(rng, features.size), np.full(features.size, 0.7, np.float32)
    return NumpyPolicy(features, layers, "tanh", head_for(actions, std), 7, moments, Cells(kind, weights))


@pytest.mark.parametrize("kind", KINDS)
def test_cell_equals_that_of_torch(kind: Any) -> None:
    cells = policy_of(kind)._cells
    assert cells is not None
    theirs = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}[kind](5, 16)
    names = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
    x = normal(np.random.default_rng(1), 9, 4, 5)  # [steps, rows, …]
    for number, weights in enumerate(cells.weights):
        for name, array in zip(names, weights):
            getattr(theirs, name).data = torch.from_numpy(array)
        expected, last = theirs(torch.from_numpy(x))
        memory = cells.first_memory(4)
        for t in range(9):
            hidden, memory = cells.step(x[t : t + 1], memory)
            found = memory["cells"][:, number]
            np.testing.assert_allclose(found[:, 0], expected[t].detach(), rtol=1e-4, atol=1e-6)
            assert number or (hidden[0] == found[:, 0]).all()
        if kind == "lstm":
            np.testing.assert_allclose(found[:, 1], last[1][0].detach(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("size", [16, 64, 33])
@pytest.mark.parametrize("kind", KINDS)
def test_row_has_the_same_bits_among_any_number_of_rows(kind: Any, size: int) -> None:
    policy, rng = policy_of(kind, size), np.random.default_rng(1)
    rows, memory = normal(rng, 64, 5), normal(rng, *policy.first_memory(64)["cells"].shape)
    whole, after = policy.output(rows, {"cells": memory})
    for count in range(1, 65):
        for first in {0, (64 - count) // 2, 64 - count}:
            some = slice(first, first + count)
            part, then = policy.output(rows[some], {"cells": memory[some]})
            assert part.tobytes() == whole[some].tobytes(), (count, first)
            assert then["cells"].tobytes() == after["cells"][some].tobytes(), (count, first)


def test_row_has_the_same_bits_with_another_matrix_kernel() -> None:
    file = f"{__file__}::{test_row_has_the_same_bits_among_any_number_of_rows.__name__}"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", file]
    done = subprocess.run(command, env={**os.environ, "OPENBLAS_CORETYPE": "Haswell"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:]


@pytest.mark.parametrize("actions", [spaces.Discrete(3), spaces.Box(-1, 1, (2,), np.float32)], ids=["discrete", "box"])
@pytest.mark.parametrize("see_previous", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_saved_policy_acts_equally_with_only_the_actors_cell(kind: Any, see_previous: bool, actions: Any) -> None:
    policy = policy_of(kind, see_previous=see_previous, actions=actions)
    again = loaded_policy(policy.saved(), SEEN, actions)
    ours, theirs, rng = policy.first_memory(3), again.first_memory(3), np.random.default_rng(4)
    assert ours["cells"].shape[1] == 2 and theirs["cells"].shape[1] == 1
    did: Any = np.zeros(3, np.int64) if isinstance(actions, spaces.Discrete) else np.zeros((3, 2), np.float32)
    for t in range(6):
        seen = Seen({(): normal(rng, 3, 5)}, np.full(3, t == 0), None, did, normal(rng, 3))
        noise = policy.noise(rng, 1, 3)[0]
        (mine, ours), (his, theirs) = policy.act(seen, noise, ours), again.act(seen, noise, theirs)
        assert mine.tobytes() == his.tobytes() and ours["cells"][:, :1].tobytes() == theirs["cells"].tobytes()
        did = mine
    assert np.abs(theirs["cells"]).max() > 0.1


def test_previous_actions_and_rewards_are_features() -> None:
    features = Features(SEEN, spaces.MultiDiscrete([2, 3], start=[5, 1]), see_previous=True)
    seen = Seen({(): np.zeros((3, 5), np.float32)}, np.array([False, True, False]), None,
                np.array([[1, 0], [0, 0], [0, 2]]), np.array([1.5, 0.0, -2.0]))  # fmt: skip
    assert features.size == 11
    shown = features.vector(seen.observations, previous_of(seen))[:, 5:]
    assert shown.tolist() == [
        [0, 1, 1, 0, 0, 1.5],
        [0] * 6,
        [1, 0, 0, 0, 1, -2],
    ]
    numbers = Features(SEEN, spaces.Box(-1, 1, (2,), np.float32), see_previous=True)
    seen = seen._replace(previous_actions=np.full((3, 2), 0.5, np.float32))
    shown = numbers.vector(seen.observations, previous_of(seen))[:, 5:]
    assert shown.tolist() == [
        [0.5, 0.5, 1.5],
        [0] * 3,
        [0.5, 0.5, -2],
    ]


@pytest.mark.parametrize("wrong", [{"kind": "rnn"}, {"cell": []}, {"see_previous": True}, {"kind": "gru"}])
def test_saved_policies_that_do_not_fit_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises((ValueError, IndexError)):
        loaded_policy({**policy_of("lstm").saved(), **wrong}, SEEN, spaces.Discrete(3))

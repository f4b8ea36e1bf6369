"""Random actions, and the reset plan of an evaluation over tasks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

import multiverse as mv
from multiverse.core.policy import Seen
from multiverse.policies.heads import action_of
from multiverse.policies.simple_policies import RandomPolicy


def drawn(space: spaces.Space[Any], masks: Any = None, rows: int = 2000) -> tuple[Any, Any]:
    """Actions in the form of the policy, and in that of the env."""
    policy, seen = RandomPolicy(space), Seen({}, np.zeros(rows, np.bool_), masks)
    noise = policy.noise(np.random.default_rng(0), 1, rows)
    actions, memory = policy.act(seen, noise[0], policy.first_memory(rows))
    assert memory == {} and policy.portable() is policy
    shape, dtype = action_of(space)
    assert actions.shape == (rows, *shape) and actions.dtype == dtype
    return actions, policy.for_env(actions)


def test_random_box_actions_are_uniform_between_any_bounds() -> None:
    space = spaces.Box(np.array([[-0.1, 2.0]]), np.array([[0.1, 6.0]]), dtype=np.float64)
    actions, given = drawn(space)
    assert np.abs(actions).max() <= 1 and np.allclose(actions.mean(axis=0), 0, atol=0.06)
    assert given.shape == (2000, 1, 2) and all(one in space for one in given.astype(np.float64))
    assert np.allclose(given.min(axis=0), space.low, atol=0.01) and np.allclose(
        given.max(axis=0), space.high, atol=0.01
    )


@pytest.mark.parametrize(
    "space", [spaces.Discrete(3, start=2), spaces.MultiDiscrete([2, 3]), spaces.MultiBinary(2)], ids=str
)
def test_random_discrete_actions_are_uniform(space: Any) -> None:
    _, given = drawn(space)
    kinds, counts = np.unique(given.reshape(2000, -1), axis=0, return_counts=True)
    assert len(kinds) in (3, 4, 6) and counts.min() > 0.8 * 2000 / len(kinds)
    assert all(kind.reshape(space.shape) in space for kind in kinds.astype(space.dtype))


def test_closed_actions_are_never_drawn() -> None:
    masks = np.tile([True, False, True], (2000, 1))
    actions, _ = drawn(spaces.Discrete(3), masks)
    assert set(actions.tolist()) == {0, 2}


def test_random_policy_refuses_unbounded_spaces_and_missing_noise() -> None:
    with pytest.raises(mv.errors.InvalidRequest, match="random actions need finite bounds"):
        RandomPolicy(spaces.Box(-np.inf, np.inf, (2,)))
    with pytest.raises(mv.errors.InvalidRequest, match="no most likely action"):
        RandomPolicy(spaces.Discrete(2)).act(Seen({}, np.zeros(1, np.bool_)), None, {})


def test_evaluation_plays_each_task_in_turn_with_separate_seeds() -> None:
    plan, training = mv.EachTask(3, [7, 9]), mv.DerivedSeeds(3)
    found = [plan(0, number) for number in range(4)]
    assert [one.task for one in found] == [7, 9, 7, 9]
    seeds = {one.seed for one in found} | {plan(1, 0).seed}
    assert len(seeds) == 5 and all(seed is not None and seed >= 2**31 for seed in seeds)
    assert not seeds & {training(0, episode).seed for episode in range(100)}
    with pytest.raises(mv.errors.InvalidRequest, match="tasks is empty"):
        mv.EachTask(3, [])

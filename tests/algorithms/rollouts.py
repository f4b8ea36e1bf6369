"""Random rollouts that depend only on a seed: no environment, and actions not chosen by the policy."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from multiverse.core.layout import SINGLE_AGENT
from multiverse.core.policy import Seen
from multiverse.rollouts.rollout import Rollout, RolloutShape, private_fields


def random_rollout(algorithm: Any, slots: int, seed: int) -> Rollout:
    """Random steps, some of which end their episode; the policy only computes the memory that belongs to them."""
    rng, steps, policy = np.random.default_rng(seed), algorithm.steps_per_env, algorithm.policy()
    memory = policy.first_memory(slots)
    one = {name: rows[:1] for name, rows in memory.items()}
    shape = RolloutShape(SINGLE_AGENT, algorithm.observation_space, steps, slots, algorithm.action, memory=one)
    rollout = shape.rollout(private_fields(shape.fields()))
    for leaves in (rollout.observations, rollout.last, rollout.finals):
        for rows in leaves.values():
            rows[...] = rng.normal(size=rows.shape)
    rollout.rewards[...] = rng.normal(size=rollout.rewards.shape)
    space, shown = algorithm.action_space, rollout.actions.shape
    discrete = isinstance(space, spaces.Discrete)
    rollout.actions[...] = rng.integers(0, space.n, shown) if discrete else rng.uniform(-1, 1, shown)
    ends = rng.random(rollout.rewards.shape)
    rollout.terminated[...], rollout.truncated[...] = ends < 0.1, ends > 0.9
    ended = rollout.terminated | rollout.truncated
    rollout.starts[0], rollout.starts[1:], rollout.policy_version = True, ended[:-1], policy.version
    if memory:
        _remember(rollout, policy, memory)
    return rollout


def _remember(rollout: Rollout, policy: Any, memory: Any) -> None:
    assert rollout.previous is not None and rollout.last_previous is not None
    previous = np.zeros_like(rollout.actions[0]), np.zeros(rollout.slots)
    for t in range(rollout.steps):
        for rows in (*memory.values(), *previous):
            rows[rollout.starts[t]] = 0
        for name, rows in memory.items():
            rollout.memory[name][t] = rows
        for kept, rows in zip(rollout.previous, previous):
            kept[t] = rows
        seen = {path: rows[t] for path, rows in rollout.observations.items()}
        _, after = policy.act(Seen(seen, rollout.starts[t], None, *previous), None, memory)
        memory = {name: rows.copy() for name, rows in after.items()}
        previous = rollout.actions[t].copy(), rollout.rewards[t].astype(np.float64)
    for name, rows in memory.items():
        rollout.last_memory[name][...] = rows
    for kept, rows in zip(rollout.last_previous, previous):
        kept[...] = rows

"""What networks are given of a rollout: features of what was seen, normalised, and images."""

from __future__ import annotations

import numpy as np

from multiverse.contracts.policy import Leaves
from multiverse.contracts.views import Array
from multiverse.policies.features import Features, Previous
from multiverse.policies.numpy_policies import OBSERVATION_CLIP
from multiverse.rollouts.rollout import Rollout


def inputs(
    features: Features,
    observations: Leaves,
    shift_and_scale: tuple[Array, Array] | None,
    previous: Previous | None = None,
) -> tuple[Array, list[Array]]:
    """What networks are given: (features, normalised as they were when the policy acted; images)."""
    vector = features.vector(observations, previous)
    if shift_and_scale is not None:
        shift, scale = shift_and_scale
        vector = np.clip((vector - shift) * scale, -OBSERVATION_CLIP, OBSERVATION_CLIP)
    return vector, [observations[leaf.path] for leaf in features.images]


def flat(leaves: Leaves) -> Leaves:
    """[T, S, …] → [T × S, …]"""
    return {path: rows.reshape(-1, *rows.shape[2:]) for path, rows in leaves.items()}


def previous_of(rollout: Rollout) -> Previous | None:
    """[T × S, …] what the policy was shown as such."""
    if rollout.previous is None:
        return None
    actions, rewards = rollout.previous
    return rollout.starts.reshape(-1), actions.reshape(-1, *actions.shape[2:]), rewards.reshape(-1)


def previous_after(rollout: Rollout) -> Previous | None:
    """[S, …] the same after the last row."""
    return rollout.last_previous and (np.zeros(rollout.slots, np.bool_), *rollout.last_previous)


def previous_at_ends(rollout: Rollout, steps: Array, slots: Array) -> Previous | None:
    """[ends, …] and where episodes ended."""
    if rollout.previous is None:
        return None
    actions, rewards = rollout.actions[steps, slots], rollout.rewards[steps, slots]
    if rollout.acting is not None:  # who waited acted before that
        waited = ~rollout.acting[steps, slots]
        actions[waited] = rollout.previous[0][steps, slots][waited]
        rewards[waited] += rollout.previous[1][steps, slots][waited].astype(rewards.dtype)
    return np.zeros(len(steps), np.bool_), actions, rewards

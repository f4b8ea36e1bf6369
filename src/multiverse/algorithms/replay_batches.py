"""Batches from replay: single steps, or for recurrent networks whole sequences, as inputs of networks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from multiverse.algorithms.inputs import network_inputs
from multiverse.core.layout import Array
from multiverse.core.policy import Leaves
from multiverse.learning.batches import NetworkInput, ReplayBatch
from multiverse.policies.features import Features
from multiverse.rollouts.replay import Replay


def draw_steps(
    replay: Replay, rng: np.random.Generator, config: Any, features: Features, put: Callable[[Array], Any]
) -> ReplayBatch:
    """Draw `batch_size` steps. `put`: moves an array to the device of the networks."""
    rows = replay.rows(rng, config.batch_size, config.rewarded_fraction)

    def inputs(observations: Leaves) -> NetworkInput:
        vector, images = network_inputs(features, observations, None)
        return NetworkInput(put(vector), [put(image) for image in images])

    masks, next_masks = features.open_actions(rows.observations), features.open_actions(rows.next_observations)
    return ReplayBatch(
        observations=inputs(rows.observations),
        actions=put(rows.actions),
        rewards=put(rows.rewards),
        next_observations=inputs(rows.next_observations),
        discounts=put(np.float32(config.gamma) * ~rows.terminated),
        masks=None if masks is None else put(masks),
        next_masks=None if next_masks is None else put(_next_masks(next_masks)),
    )


def draw_sequences(
    replay: Replay, rng: np.random.Generator, config: Any, features: Features, put: Callable[[Array], Any]
) -> ReplayBatch:
    """Draw `sequences` sequences and return all of their steps, packed: the first steps of all, the longest first, then
    all second steps, and so on. `put`: moves an array to the device of the networks."""
    drawn = replay.sequences(rng, config.sequences, config.sequence_length, config.rewarded_fraction)
    order = np.argsort(-drawn.mask.sum(axis=0), kind="stable")
    steps = drawn.mask[:, order]
    observed = np.concatenate((np.ones_like(steps[:1]), steps))  # with the observation after the last step of each
    leaves = {path: rows[:, order][observed] for path, rows in drawn.observations.items()}
    previous_actions, previous_rewards = (
        np.concatenate((np.zeros_like(rows[:1]), rows))[:, order][observed] for rows in (drawn.actions, drawn.rewards)
    )
    counts = observed.sum(axis=1).tolist()
    rows, after = np.flatnonzero(np.concatenate((steps, steps[:1] & False))[observed]), slice(counts[0], None)
    starts = np.arange(len(previous_actions)) < counts[0]
    vector = put(features.vector(leaves, (starts, previous_actions, previous_rewards)))
    masks = features.open_actions(leaves)
    return ReplayBatch(
        observations=NetworkInput(vector, (), counts, put(rows)),
        actions=put(drawn.actions[:, order][steps]),
        rewards=put(drawn.rewards[:, order][steps]),
        next_observations=NetworkInput(vector, (), counts, after),
        discounts=put(np.float32(config.gamma) * ~drawn.terminated[:, order][steps]),
        masks=None if masks is None else put(masks[rows]),
        next_masks=None if masks is None else put(_next_masks(masks[after])),
    )


def _next_masks(masks: Array) -> Array:
    """[N, actions] bool. A mask after an episode's end may be all zero: then all actions count as open."""
    return masks | ~masks.any(axis=-1, keepdims=True)  # guard: a-closed-end-is-valued

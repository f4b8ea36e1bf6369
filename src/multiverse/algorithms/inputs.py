"""Inputs of networks: from observations to a normalised vector and images, and back to observations for networks of
the user."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np
from gymnasium import spaces

from multiverse.core.layout import Path
from multiverse.core.policy import Leaves
from multiverse.core.views import Array
from multiverse.learning.network_spec import LeafInput, ObservationLayout
from multiverse.policies.features import Features, Previous, channels_last
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


def layout_of(features: Features, space: spaces.Space[Any]) -> ObservationLayout:
    """Return the layout that turns the vector and images made by `features` into observations of this space again."""
    images, found = {leaf.path: number for number, leaf in enumerate(features.images)}, []
    for leaf in features.leaves:
        shape, last = tuple(leaf.space.shape or ()), False
        if (number := images.get(leaf.path)) is not None:
            last = channels_last(shape)
            shape = (shape[2], *shape[:2]) if last else shape
        elif not isinstance(leaf.space, spaces.Box):
            columns = features.columns[leaf.path]
            shape = (columns.stop - columns.start,)
        found.append(LeafInput(leaf.path, shape, features.columns.get(leaf.path), number, last))
    shown = {leaf.path: leaf for leaf in found}
    return ObservationLayout(_as_networks_see(space, shown), found, features.parts[0])


def _as_networks_see(space: spaces.Space[Any], shown: dict[Path, LeafInput], path: Path = ()) -> spaces.Space[Any]:
    """The space without leaves that networks do not see, and images with their channels first."""
    if isinstance(space, spaces.Dict):
        inner = [
            (key, _as_networks_see(one, shown, (*path, key)))
            for key, one in space.items()
            if _is_seen(shown, (*path, key))
        ]
        return spaces.Dict(OrderedDict(inner))  # in this order; a dict would be sorted
    if isinstance(space, spaces.Tuple):
        return spaces.Tuple([_as_networks_see(one, shown, (*path, k)) for k, one in enumerate(space.spaces)])
    if shown[path].channels_last and isinstance(space, spaces.Box):
        low, high = (np.moveaxis(bound, -1, 0) for bound in (space.low, space.high))
        return spaces.Box(low, high, dtype=space.dtype.type)
    return space


def _is_seen(shown: dict[Path, LeafInput], path: Path) -> bool:
    return any(leaf[: len(path)] == path for leaf in shown)

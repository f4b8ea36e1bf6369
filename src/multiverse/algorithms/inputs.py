"""Inputs of networks: from observations to a normalised vector and images, and back to observations for networks of
the user."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np
from gymnasium import spaces

from multiverse.core.layout import Array, Path
from multiverse.core.policy import Leaves
from multiverse.learning.network_spec import LeafInput, ObservationLayout
from multiverse.policies.features import Features, Previous, channels_last
from multiverse.policies.numpy_policies import OBSERVATION_CLIP


def network_inputs(
    features: Features,
    observations: Leaves,
    shift_and_scale: tuple[Array, Array] | None,
    previous: Previous | None = None,
) -> tuple[Array, list[Array]]:
    """Return (vector, images); the vector is normalised with the statistics of the policy that acted."""
    vector = features.vector(observations, previous)
    if shift_and_scale is not None:
        shift, scale = shift_and_scale
        vector = np.clip((vector - shift) * scale, -OBSERVATION_CLIP, OBSERVATION_CLIP)
    return vector, [observations[leaf.path] for leaf in features.images]


def observation_layout(features: Features, space: spaces.Space[Any]) -> ObservationLayout:
    """Return the layout that converts the vector and images made by `features` to observations of this space."""
    images, inputs = {leaf.path: number for number, leaf in enumerate(features.images)}, []
    for leaf in features.leaves:
        shape, last = tuple(leaf.space.shape or ()), False
        if (number := images.get(leaf.path)) is not None:
            last = channels_last(shape)
            shape = (shape[2], *shape[:2]) if last else shape
        elif not isinstance(leaf.space, spaces.Box):
            columns = features.columns[leaf.path]
            shape = (columns.stop - columns.start,)
        place = features.columns.get(leaf.path)
        inputs.append(LeafInput(leaf.path, shape, columns=place, image=number, channels_last=last))
    return ObservationLayout(_input_space(space, {leaf.path: leaf for leaf in inputs}), inputs, features.parts[0])


def _input_space(space: spaces.Space[Any], inputs: dict[Path, LeafInput], path: Path = ()) -> spaces.Space[Any]:
    """Return the space without leaves that are not inputs, and images with their channels first."""
    if isinstance(space, spaces.Dict):
        inner = [
            (key, _input_space(value, inputs, (*path, key)))
            for key, value in space.items()
            if any(leaf[: len(path) + 1] == (*path, key) for leaf in inputs)
        ]
        return spaces.Dict(OrderedDict(inner))  # in this order; a dict would be sorted
    if isinstance(space, spaces.Tuple):
        return spaces.Tuple([_input_space(value, inputs, (*path, k)) for k, value in enumerate(space.spaces)])
    if inputs[path].channels_last and isinstance(space, spaces.Box):
        low, high = (np.moveaxis(bound, -1, 0) for bound in (space.low, space.high))
        return spaces.Box(low, high, dtype=space.dtype.type)
    return space

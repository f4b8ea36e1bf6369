"""A network of the user that takes the place of the first layers, and the observations that it is given.

The convention is that of feature extractors in Stable-Baselines3: `Net(observation_space, **kwargs)`, and
`forward(observations)` returns `[rows, features_dim]`. Extractors written for SB3 work unchanged. Knows no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gymnasium import spaces

from multiverse.core.layout import Path, from_leaves


@dataclass(frozen=True)
class LeafInput:
    """Place of one leaf of the observation among the inputs of networks."""

    path: Path
    shape: tuple[int, ...]  # of one row, as the network is given it
    columns: slice | None = None  # of the vector
    image: int | None = None  # which of the images
    channels_last: bool = False  # of that image, as the env has it


@dataclass(frozen=True)
class ObservationLayout:
    """Takes the inputs of networks, a vector and images, apart into observations as networks of the user get them.

    Images are floats in [0, 1] with the channels first, Discrete observations one-hot vectors, all others floats in
    their own shape; Dict and Tuple observations keep their nesting.
    """

    space: spaces.Space[Any]
    """Space of these observations: without an action mask, and with the channels of images first (their bounds stay 0
    and 255)."""
    leaves: Sequence[LeafInput]
    size: int
    """Numbers of the vector that belong to the observation; others follow them."""

    def observation(self, vector: Any, images: Sequence[Any]) -> Any:
        """The observations [rows, …] of tensors `vector` [rows, size or more] and `images`."""
        values = {}
        for leaf in self.leaves:
            if leaf.image is None:
                values[leaf.path] = vector[:, leaf.columns].reshape(-1, *leaf.shape)
            else:
                image = images[leaf.image] / 255.0
                values[leaf.path] = image.permute(0, 3, 1, 2) if leaf.channels_last else image
        return from_leaves(self.space, values)

    def inputs(self, zeros: Callable[..., Any], rows: int) -> tuple[Any, list[Any]]:
        """Return a vector and images with this number of rows, made by `zeros(*shape)`."""
        images = [leaf for leaf in self.leaves if leaf.image is not None]
        shapes = [(*leaf.shape[1:], leaf.shape[0]) if leaf.channels_last else leaf.shape for leaf in images]
        return zeros(rows, self.size), [zeros(rows, *shape) for shape in shapes]


@dataclass(frozen=True)
class NetworkChoice:
    """A network of the user: how it is made, and what it observes."""

    name: str
    make: Callable[[spaces.Space[Any]], Any]
    """observation space → torch module"""
    layout: ObservationLayout

"""Description of networks: their inputs, layers and outputs. Knows no torch.

A network of the user (`CustomNetwork`) takes the place of the first layers. Its convention is that of feature
extractors in Stable-Baselines3: `Net(observation_space, **kwargs)`, and `forward(observations)` returns
`[rows, features_dim]`. Extractors written for SB3 work unchanged.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from gymnasium import spaces

from multiverse.core.errors import InvalidRequest
from multiverse.core.layout import Array, Path, from_leaves
from multiverse.learning.convolution import Convolution

MAX_PARAMETERS = 2**28
"""Largest number of parameters of the dense layers of one network: with the moments of Adam, 4 GiB."""


# -- networks of the user ----------------------------------------------------------------------------------------
@dataclass(frozen=True)
class LeafInput:
    """Place of one leaf of the observation among the inputs of networks."""

    path: Path
    shape: tuple[int, ...]  # of one row, as the network gets it
    columns: slice | None = None  # of the vector
    image: int | None = None  # index among the images
    channels_last: bool = False  # of that image, as the env returns it


@dataclass(frozen=True)
class ObservationLayout:
    """Converts the inputs of networks, a vector and images, to observations as networks of the user get them.

    Images are floats in [0, 1] with the channels first, Discrete observations one-hot vectors, all others floats in
    their own shape; Dict and Tuple observations keep their nesting.
    """

    space: spaces.Space[Any]
    """Space of these observations: without an action mask, and with the channels of images first (their bounds stay 0
    and 255)."""
    leaves: Sequence[LeafInput]
    size: int
    """Number of columns of the vector that belong to the observation; other inputs follow them."""

    def observation(self, vector: Any, images: Sequence[Any]) -> Any:
        """Return the observations [rows, …] of tensors `vector` [rows, size or more] and `images`."""
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
class CustomNetwork:
    """A network of the user: its name, constructor and input."""

    name: str
    make: Callable[[spaces.Space[Any]], Any]
    """observation space → torch module"""
    layout: ObservationLayout


# -- architecture ------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class NetworkSpec:
    """Inputs, layers and outputs of networks; settings as in `OnPolicyConfig`."""

    size: int  # of the vector of features
    images: Sequence[tuple[int, ...]]
    action_space: spaces.Space[Any]
    hidden_sizes: tuple[int, ...]
    activation: Literal["tanh", "relu"] = "tanh"
    ortho_init: bool = True
    log_std_init: float = 0.0
    squash: bool = False
    share_features: bool = False
    memory: Literal["lstm", "gru"] | None = None
    memory_size: int = 64
    chunk_length: int = 32
    embeddings: Sequence[tuple[int, int]] = ()  # (columns, units) of each part of the vector, the observation first
    critic_size: int | None = None  # size of the value network's vector; None: the same as the policy's
    critic_members: int = 1  # number of agents whose vectors are concatenated in the value network's input
    network: CustomNetwork | None = None  # of the user, in place of convolutions
    convolution: Convolution | None = None  # the first of the layers

    @property
    def hidden(self) -> tuple[int, ...]:
        """Number of units of all layers but the last."""
        return self.hidden_sizes if self.convolution is None else (self.convolution.outputs, *self.hidden_sizes)

    @property
    def recurrent_critic(self) -> bool:
        """Whether the value network has a cell: only if it has the policy's input, along which memory is carried."""
        return self.memory is not None and self.critic_size is None

    @property
    def critic_inputs(self) -> int:
        """Size of the value network's input vector."""
        return self.size if self.critic_size is None else self.critic_size


def count_parameters(widths: Sequence[int]) -> int:
    """Return the number of parameters of dense layers of these widths; refuse more than `MAX_PARAMETERS`."""
    count = sum((inward + 1) * outward for inward, outward in itertools.pairwise(widths))
    if count > MAX_PARAMETERS:  # guard: networks-are-bounded
        raise InvalidRequest(
            f"a network of {' × '.join(map(str, widths))} units has {count:,} parameters, more than "
            f"{MAX_PARAMETERS:,}: choose smaller hidden_sizes, features or spaces"
        )
    return count


def count_cell_parameters(spec: NetworkSpec, gates: int) -> int:
    """Return the number of parameters of a recurrent cell whose input is the vector; refuse more than
    `MAX_PARAMETERS`."""
    return count_parameters([spec.size + spec.memory_size + 1, gates * spec.memory_size])


def initial_gate_bias(spec: NetworkSpec, uniform: Array) -> tuple[slice, Array]:
    """Return (gate, bias): biases of a cell's forget gate, or of a GRU's update gate, that give its units initial time
    scales between 2 and `chunk_length` steps (Tallec and Ollivier 2018). `uniform`: [size] between 0 and 1.

    With biases of zero the memory halves at every step, and hardly any gradient reaches back 20 steps."""
    bias = np.log1p(uniform * max(0, spec.chunk_length - 2)).astype(np.float32)
    return slice(spec.memory_size, 2 * spec.memory_size), bias

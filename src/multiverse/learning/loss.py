"""What a loss is to the networks: a function of what they say, that gives its gradient by it. numpy or torch alike."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from gymnasium import spaces

from multiverse.contracts.errors import InvalidRequest
from multiverse.contracts.views import Array

MOST_PARAMETERS = 2**28
"""Of the dense layers of one network: with what Adam keeps of each, 4 GiB."""


@dataclass(frozen=True)
class Shape:
    """What the networks see, say, and look like; settings as in `OnPolicyConfig`."""

    size: int  # of the vector of features
    images: Sequence[tuple[int, ...]]
    action_space: spaces.Space[Any]
    hidden_sizes: tuple[int, ...]
    activation: Literal["tanh", "relu"] = "tanh"
    ortho_init: bool = True
    log_std_init: float = 0.0
    squash: bool = False
    share_features: bool = False


class Outputs(NamedTuple):
    """What the networks say of some rows."""

    log_probs: Any  # [rows] of the actions taken
    entropies: Any  # [rows]
    values: Any  # [rows]


class LossGradient(NamedTuple):
    """A loss, by what the networks say."""

    by_log_prob: Any  # [rows]
    by_entropy: float  # the same for every row
    by_value: Any  # [rows]
    metrics: Any  # what is worth telling of the loss; None if nobody asks


class Batch:
    """Rows to learn from: inputs, actions, and whatever columns the algorithm has for them."""

    def __init__(self, vector: Any, images: list[Any], actions: Any, masks: Any = None, **columns: Any) -> None:
        self.vector, self.images, self.actions, self.masks, self.columns = vector, images, actions, masks, columns

    def __len__(self) -> int:
        return len(self.actions)

    def __getitem__(self, name: str) -> Any:
        return self.columns[name]

    def take(self, rows: Any) -> Batch:
        """Some of them: a slice, or indices where the batch lies."""
        masks = None if self.masks is None else self.masks[rows]
        images = [image[rows] for image in self.images]
        columns = {name: column[rows] for name, column in self.columns.items()}
        return Batch(self.vector[rows], images, self.actions[rows], masks, **columns)


Loss = Callable[[Any, Outputs, Batch], LossGradient]
"""(numpy or torch, what the networks say, the rows) → its gradient."""


def parameters_of(widths: Sequence[int]) -> int:
    """How many parameters dense layers of these widths have; refused if no memory is meant to hold them."""
    count = sum((inward + 1) * outward for inward, outward in itertools.pairwise(widths))
    if count > MOST_PARAMETERS:  # guard: networks-are-bounded
        raise InvalidRequest(
            f"a network of {' × '.join(map(str, widths))} units has {count:,} parameters, more than "
            f"{MOST_PARAMETERS:,}: smaller hidden_sizes, or smaller spaces"
        )
    return count


def normalized(xp: Any, values: Any) -> Any:
    """[rows] with mean 0 and standard deviation 1."""
    if len(values) < 2:
        return values
    apart = values - values.sum() / len(values)
    return apart / (xp.sqrt(apart @ apart / (len(values) - 1)) + 1e-8)


def as_numpy(values: Any) -> Array:
    """A copy of an array, or of a tensor wherever it is."""
    return np.array(values.detach().cpu().numpy() if hasattr(values, "detach") else values)

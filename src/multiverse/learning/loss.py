"""Arguments and result of a loss: outputs of the networks, a batch of rows, and a scalar to minimise."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
from gymnasium import spaces

from multiverse.core.errors import InvalidRequest
from multiverse.core.views import Array
from multiverse.learning.chunks import Along
from multiverse.learning.convolution import Convolution
from multiverse.learning.network_choice import NetworkChoice, ObservationLayout

SHUFFLED_ROWS = 4096
"""So many are gathered at once, of which minibatches are slices: few calls, and no second copy of a long rollout."""
TEAM = "team"
"""The column of a batch that a value is judged by which sees more than the policy."""
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
    memory: Literal["lstm", "gru"] | None = None
    memory_size: int = 64
    chunk_length: int = 32
    embeddings: Sequence[tuple[int, int]] = ()  # (numbers, units) of the vector's parts, that of the observation first
    critic_size: int | None = None  # of what the value sees instead of the vector; None: the same
    critic_members: int = 1  # agents whose vectors lie side by side in what the value sees
    network: NetworkChoice | None = None  # of the user, in the place of convolutions
    convolution: Convolution | None = None  # the first of the layers

    @property
    def hidden(self) -> tuple[int, ...]:
        """Units of all layers but the last."""
        return self.hidden_sizes if self.convolution is None else (self.convolution.outputs, *self.hidden_sizes)

    @property
    def critic_remembers(self) -> bool:
        """Only where it sees what the policy does, which carries its memory along."""
        return self.memory is not None and self.critic_size is None

    @property
    def judged(self) -> int:
        """How many numbers the value is given, images aside."""
        return self.size if self.critic_size is None else self.critic_size


class Shown(NamedTuple):
    """What networks are shown of some steps. Where they remember, the vector is of whole sequences, whose rows lie as
    `Along` has them, and `rows` are those that are asked about."""

    vector: Any  # [rows, size] features
    images: Sequence[Any] = ()
    counts: Sequence[int] = ()  # how many sequences have a first row, a second one, …
    rows: Any = None


@dataclass(frozen=True)
class Outputs:
    """Outputs of the networks for the rows of a batch."""

    log_prob: Any
    """[rows] log-probabilities of the actions in the batch."""
    entropy: Any
    """[rows] entropy of the distribution over actions."""
    values: Any
    """[rows] estimates of the value function."""
    features: Any = None
    """[rows, features] what the policy's dense layers, or its recurrent cell, are given: the features that a `network`
    of yours or convolutions compute, or else the inputs. In torch, as `hidden` and `logits`."""
    hidden: Any = None
    """[rows, units] of the policy's last hidden layer."""
    logits: Any = None
    """[rows, outputs] of the policy: logits, or the means of Box actions."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Whatever else the networks of an algorithm compute, by name: `out["critic"]`, [rows, outputs] of the value
    network, from which `values` come."""

    def __getitem__(self, name: str) -> Any:
        return self.extra[name]


class Loss:
    """A loss to minimise, and the numbers to log with it: `Loss(total, policy_loss=policy_loss, entropy=entropy)`."""

    def __init__(self, total: Any, **metrics: Any) -> None:
        self.total, self.metrics = total, metrics

    def plus(self, **terms: Any) -> Loss:
        """The same loss with further terms, each of which is logged under its name."""
        if taken := sorted(self.metrics.keys() & terms.keys()):
            raise InvalidRequest(
                f"plus({taken[0]}=...): the loss has a metric {taken[0]!r} already; choose another name"
            )
        return Loss(self.total + sum(terms.values()), **self.metrics, **terms)


class RolloutBatch:
    """Rows to learn from: inputs, actions, and the columns that the algorithm has computed for them."""

    vector: Any
    """[rows, size] all observations but images, as numbers, normalized if the algorithm does so."""
    images: list[Any]
    """[rows, …] images, as the env has them."""
    actions: Any
    """[rows, …] actions that were taken."""
    masks: Any
    """[rows, actions] actions that were open, or None."""
    columns: dict[str, Any]
    """Further columns by name, which `batch[name]` returns."""
    noise: Sequence[Any] = ()
    """Gaussian noise of the shape of the actions, as many arrays as the algorithm's `noise_draws`."""
    along: Along | None = None
    """Order of the rows in time, for recurrent networks; else None. Minibatches then consist of whole chunks: first the
    first rows of all chunks, then their second rows, and so on. `along.counts`: number of chunks that have a first row,
    a second row, …; `along.memory`: [chunks, cells, parts, size] memory of each chunk before its first row."""
    layout: ObservationLayout | None = None

    def __init__(self, vector: Any, images: list[Any], actions: Any, masks: Any = None, **columns: Any) -> None:
        self.vector, self.images, self.actions, self.masks, self.columns = vector, images, actions, masks, columns

    def __len__(self) -> int:
        return len(self.actions)

    def __getitem__(self, name: str) -> Any:
        return self.columns[name]

    @property
    def observations(self) -> Any:
        """Observations [rows, …] with the nesting of the space, as networks of the user get them (`network`)."""
        assert self.layout is not None
        return self.layout.observation(self.vector, self.images)

    @property
    def advantages(self) -> Any:
        """[rows] how much better than expected the outcome of each action was."""
        return self.columns["advantages"]

    @property
    def returns(self) -> Any:
        """[rows] targets of the value function."""
        return self.columns["returns"]

    @property
    def values(self) -> Any:
        """[rows] estimates of the value function before this update."""
        return self.columns["values"]

    @property
    def log_probs(self) -> Any:
        """[rows] log-probabilities of the actions under the policy that took them."""
        return self.columns["log_probs"]

    @property
    def rewards(self) -> Any:
        """[rows] rewards of the actions, normalized if `normalize_rewards` is set."""
        return self.columns["rewards"]

    @property
    def starts(self) -> Any:
        """[rows] bool: whether the row is the first of its episode."""
        return self.columns["starts"]

    def take(self, rows: Any) -> RolloutBatch:
        """Some of them: a slice, or indices where the batch lies."""
        masks = None if self.masks is None else self.masks[rows]
        images = [image[rows] for image in self.images]
        columns = {name: column[rows] for name, column in self.columns.items()}
        found = RolloutBatch(self.vector[rows], images, self.actions[rows], masks, **columns)
        found.layout = self.layout
        return found

    def in_order(self, rows: Any, along: Along) -> RolloutBatch:
        """These rows, which follow one another so."""
        found = self.take(rows)
        found.along = along
        return found

    @property
    def units(self) -> int:
        """Of what minibatches are made: rows, or chunks."""
        return len(self) if self.along is None else len(self.along.memory)

    def minibatches(self, order: Array, size: int, put: Callable[[Array], Any]) -> Iterator[RolloutBatch]:
        """All units in this order, about `size` rows at a time; `put`: to where the batch lies."""
        return self._rows(order, size, put) if self.along is None else self._chunks(order, size, put)

    def _rows(self, rows: Array, size: int, put: Callable[[Array], Any]) -> Iterator[RolloutBatch]:
        order, gathered = put(rows), max(1, SHUFFLED_ROWS // size) * size
        for start in range(0, len(rows), gathered):
            some = self.take(order[start : start + gathered])
            for first in range(0, len(some), size):
                yield some.take(slice(first, first + size))

    def _chunks(self, chunks: Array, size: int, put: Callable[[Array], Any]) -> Iterator[RolloutBatch]:
        """As many minibatches as of single rows; each begins with the first chunk that begins in it."""
        assert self.along is not None
        lengths = self.along.lengths()[chunks]
        numbers = (lengths.cumsum() - lengths) // size
        if not numbers.any():  # all in one: their order is the same again
            yield from [self] if len(self) else []
            return
        for some in np.split(chunks, np.flatnonzero(np.diff(numbers)) + 1):
            some = np.sort(some)
            rows, counts = self.along.some(some)
            yield self.in_order(put(rows), Along(counts, self.along.memory[put(some)]))


@dataclass
class ReplayBatch:
    """N steps drawn from replay, where the networks are."""

    observations: Shown
    """Input of the networks: `self.critic(batch.observations, batch.actions)`."""
    actions: Any
    """[N, …] actions that were taken."""
    rewards: Any
    """[N] rewards of the actions."""
    next_observations: Shown
    """Input of the networks after each step; of the final observation where an episode ended."""
    discounts: Any
    """[N] γ, or 0 where the task ended."""
    masks: Any = None
    """[N, actions] actions that were open, or None."""
    next_masks: Any = None
    """[N, actions] actions that are open after each step, or None."""
    noise: Sequence[Any] = ()
    """Gaussian noise of the shape of the actions, as many arrays as the algorithm's `noise_draws`."""
    kept: dict[str, Any] = field(default_factory=dict)
    """Results of the kernel of one loss that the kernel of another uses."""


LossOf = Callable[[Outputs, RolloutBatch], Loss]
"""(outputs, rows) → a loss, which torch differentiates."""


def approximate_kl(log_ratio: Any) -> Any:
    """KL(π_old ‖ π), estimated from log(π / π_old) of actions of π_old: the mean of (r - 1) - log r (Schulman 2020)."""
    return (log_ratio.expm1() - log_ratio).mean()


def parameters_of(widths: Sequence[int]) -> int:
    """How many parameters dense layers of these widths have; refused if no memory is meant to hold them."""
    count = sum((inward + 1) * outward for inward, outward in itertools.pairwise(widths))
    if count > MOST_PARAMETERS:  # guard: networks-are-bounded
        raise InvalidRequest(
            f"a network of {' × '.join(map(str, widths))} units has {count:,} parameters, more than "
            f"{MOST_PARAMETERS:,}: choose smaller hidden_sizes, features or spaces"
        )
    return count


def of_cell(shape: Shape, gates: int) -> int:
    """Parameters of a recurrent cell that sees the vector, likewise."""
    return parameters_of([shape.size + shape.memory_size + 1, gates * shape.memory_size])


def time_scales(shape: Shape, drawn: Array) -> tuple[slice, Array]:
    """(where, what): biases of a cell's forget gate, or of a GRU's update gate, with which its units at first remember
    for between 2 and `chunk_length` rows (as Tallec and Ollivier 2018); `drawn`: [size] between 0 and 1. With biases of
    zero half of what is remembered is gone after a row, and hardly anything of a row 20 rows ago reaches a gradient."""
    bias = np.log1p(drawn * max(0, shape.chunk_length - 2)).astype(np.float32)
    return slice(shape.memory_size, 2 * shape.memory_size), bias


def standardized(values: Any) -> Any:
    """[rows] with mean 0 and standard deviation 1; arrays and tensors."""
    if len(values) < 2:
        return values
    centered = values - values.sum() / len(values)
    return centered / ((centered @ centered / (len(values) - 1)) ** 0.5 + 1e-8)


def as_numpy(values: Any) -> Array:
    """A copy of an array, or of a tensor wherever it is."""
    return np.array(values.detach().cpu().numpy() if hasattr(values, "detach") else values)

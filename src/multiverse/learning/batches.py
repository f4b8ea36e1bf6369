"""Batches to learn from: rows of a rollout, for recurrent networks in chunks, and steps drawn from replay."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from multiverse.core.layout import Array
from multiverse.learning.network_spec import ObservationLayout

SHUFFLED_ROWS = 4096
"""Number of shuffled rows that are copied at once; minibatches are slices of them. This takes few calls, and no second
copy of a long rollout."""
TEAM = "team"
"""Name of the column with the input of a critic that sees more than the policy."""


# -- chunks of rollouts ------------------------------------------------------------------------------------------
class Packing(NamedTuple):
    """Order of the rows of packed chunks, which are sorted by length, longest first: the first rows of all chunks, then
    their second rows, and so on (as in torch's `PackedSequence`)."""

    counts: Sequence[int]  # number of chunks that have a first row, a second row, …
    memory: Any  # [chunks, cells, parts, size] before the first row of each chunk

    def select(self, chunks: Array) -> tuple[Array, Sequence[int]]:
        """Return (rows, counts) of these chunks, whose numbers are sorted."""
        counts = np.searchsorted(chunks, self.counts)
        counts = counts[counts > 0]
        firsts = np.cumsum(self.counts) - self.counts
        position = np.repeat(np.arange(len(counts)), counts)
        chunk = np.arange(len(position)) - (np.cumsum(counts) - counts)[position]
        return firsts[position] + chunks[chunk], counts.tolist()

    def lengths(self) -> Array:
        """[chunks] number of rows of each."""
        return np.asarray(np.searchsorted(-np.asarray(self.counts), -np.arange(len(self.memory))))

    def last_rows(self) -> Array:
        """[chunks] index of the last row of each."""
        counts, lengths = np.asarray(self.counts, np.int64), self.lengths()
        return np.asarray((np.cumsum(counts) - counts)[lengths - 1] + np.arange(len(lengths)))


class Chunks(NamedTuple):
    """Chunks of a rollout: the indices of their rows (t × S + s), chunk after chunk, and the place of each chunk."""

    rows: Array
    firsts: Array  # [chunks] position of its first row in `rows`
    lengths: Array  # [chunks]

    def pack(self) -> tuple[Array, Sequence[int]]:
        """Return (rows in the order of `Packing`, its counts)."""
        order = np.argsort(-self.lengths, kind="stable")
        firsts, lengths = self.firsts[order], self.lengths[order]
        counts = np.searchsorted(-lengths, -np.arange(lengths[:1].sum()))
        position = np.repeat(np.arange(len(counts)), counts)
        chunk = np.arange(len(position)) - (np.cumsum(counts) - counts)[position]
        return self.rows[firsts[chunk] + position], counts.tolist()

    def drop_invalid(self, valid: Array) -> Chunks:
        """Return the chunks without rows that are not `valid` [T × S]. Only the last row of a chunk can be invalid."""
        lengths = self.lengths - ~valid[self.rows[self.firsts + self.lengths - 1]]
        return Chunks(self.rows, self.firsts[lengths > 0], lengths[lengths > 0])


def split_into_chunks(starts: Array, ended: Array, valid: Array, acting: Array | None, length: int) -> Chunks:
    """Split a rollout into chunks of at most `length` rows, from [T, S] arrays.

    A chunk ends where an episode starts, and after a row that ended an episode or was lost. Rows in which a slot does
    not act are left out, because its memory does not change in them. No gradient flows from one chunk to another."""
    acts = np.ones_like(starts) if acting is None else acting
    slots, steps = np.nonzero(acts.T)
    cut = starts[steps, slots].copy()
    cut[:1] = True
    cut[1:] |= (slots[1:] != slots[:-1]) | (ended | ~valid)[steps, slots][:-1]  # guard: chunks-end-where-memory-does
    begun = np.flatnonzero(cut)
    position = np.arange(len(cut)) - np.repeat(begun, np.diff(begun, append=len(cut)))
    firsts = np.flatnonzero(position % length == 0)
    return Chunks(steps * starts.shape[1] + slots, firsts, np.diff(firsts, append=len(cut)))


# -- rows of a rollout -------------------------------------------------------------------------------------------
class RolloutBatch:
    """Rows to learn from: inputs, actions, and the columns that the algorithm has computed for them."""

    vector: Any
    """[rows, size] all observations but images, as numbers, normalized if the algorithm does so."""
    images: list[Any]
    """[rows, …] images, as the env returns them."""
    actions: Any
    """[rows, …] actions that were taken."""
    masks: Any
    """[rows, actions] actions that were open, or None."""
    columns: dict[str, Any]
    """Further columns by name, which `batch[name]` returns."""
    noise: Sequence[Any] = ()
    """Gaussian noise of the shape of the actions, as many arrays as the algorithm's `noise_draws`."""
    packing: Packing | None = None
    """Order of the rows in time, for recurrent networks; else None. Minibatches then consist of whole chunks: first the
    first rows of all chunks, then their second rows, and so on. `packing.counts`: number of chunks that have a first
    row, a second row, …; `packing.memory`: [chunks, cells, parts, size] memory of each chunk before its first row."""
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

    @property
    def along(self) -> Packing | None:
        """Deprecated: use `packing`."""
        warnings.warn("batch.along is deprecated: use batch.packing", DeprecationWarning, stacklevel=2)
        return self.packing

    def take(self, rows: Any) -> RolloutBatch:
        """Return these rows: a slice, or indices on the device of the batch."""
        masks = None if self.masks is None else self.masks[rows]
        images = [image[rows] for image in self.images]
        columns = {name: column[rows] for name, column in self.columns.items()}
        batch = RolloutBatch(self.vector[rows], images, self.actions[rows], masks, **columns)
        batch.layout = self.layout
        return batch

    def take_packed(self, rows: Any, packing: Packing) -> RolloutBatch:
        """Return these rows, which are packed chunks."""
        batch = self.take(rows)
        batch.packing = packing
        return batch

    @property
    def units(self) -> int:
        """Number of units that minibatches consist of: rows, or chunks."""
        return len(self) if self.packing is None else len(self.packing.memory)

    def minibatches(self, order: Array, size: int, put: Callable[[Array], Any]) -> Iterator[RolloutBatch]:
        """Yield all units in this order, about `size` rows at a time. `put`: moves an array to the batch's device."""
        return self._rows(order, size, put) if self.packing is None else self._chunks(order, size, put)

    def _rows(self, rows: Array, size: int, put: Callable[[Array], Any]) -> Iterator[RolloutBatch]:
        order, copied = put(rows), max(1, SHUFFLED_ROWS // size) * size
        for start in range(0, len(rows), copied):
            shuffled = self.take(order[start : start + copied])
            for first in range(0, len(shuffled), size):
                yield shuffled.take(slice(first, first + size))

    def _chunks(self, chunks: Array, size: int, put: Callable[[Array], Any]) -> Iterator[RolloutBatch]:
        """Yield as many minibatches as `_rows` does; each begins with the first chunk that begins in it."""
        assert self.packing is not None
        lengths = self.packing.lengths()[chunks]
        numbers = (lengths.cumsum() - lengths) // size
        if not numbers.any():  # one minibatch: the batch itself, in its own order
            yield from [self] if len(self) else []
            return
        for selected in np.split(chunks, np.flatnonzero(np.diff(numbers)) + 1):
            selected = np.sort(selected)
            rows, counts = self.packing.select(selected)
            yield self.take_packed(put(rows), Packing(counts, self.packing.memory[put(selected)]))


# -- steps drawn from replay -------------------------------------------------------------------------------------
class NetworkInput(NamedTuple):
    """Input of networks for some steps. For recurrent networks the vector has the rows of whole sequences, in the order
    of `Packing`, and `rows` selects those whose outputs are needed."""

    vector: Any  # [rows, size] features
    images: Sequence[Any] = ()
    counts: Sequence[int] = ()  # number of sequences that have a first row, a second row, …
    rows: Any = None


@dataclass
class ReplayBatch:
    """N steps drawn from replay, on the device of the networks."""

    observations: NetworkInput
    """Input of the networks: `self.critic(batch.observations, batch.actions)`."""
    actions: Any
    """[N, …] actions that were taken."""
    rewards: Any
    """[N] rewards of the actions."""
    next_observations: NetworkInput
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

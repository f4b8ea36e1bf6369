"""What `NumpyNetwork` is, for networks that remember: they learn along whole sequences, each from an empty memory.

Observation, previous action and previous reward are embedded (a linear layer and a ReLU each) and go through a
recurrent cell. Its hidden state and a shortcut, an embedding of the observation (and of the action that is judged), are
what the dense layers are given; copies of these share all that comes before. Sequences of different lengths are packed:
no row is padding. The cell goes along them once for as long as neither they nor the weights are others.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from multiverse.core.views import Array
from multiverse.learning.batches import NetworkInput
from multiverse.learning.cells import CELLS, BufferPool, CellWeights
from multiverse.learning.network_spec import NetworkSpec, count_parameters
from multiverse.learning.numpy_learner import Dense, begin_cell
from multiverse.learning.numpy_network import FlatParameters, SoftUpdated, given
from multiverse.learning.optimizers import Adam, Optimizer

ZERO = np.float32(0)


class RecurrentLayers:
    """Rows of sequences, and `more` numbers of each → [rows, outputs], or, of copies, [copies, rows, outputs]."""

    xp, recurrent = np, True

    def __init__(
        self,
        spec: NetworkSpec,
        outputs: int,
        more: int,
        copies: int,
        flat: tuple[Array, Array],
        learns: Optimizer | None,
    ) -> None:
        """`flat`: all parameters, and where their gradients go; `learns`: who changes them, if anybody does."""
        assert spec.memory is not None
        kind, size, self._learns = CELLS[spec.memory], spec.memory_size, learns
        common = common_parameters(spec, more)
        ours = FlatParameters(flat[0][:common], flat[1][:common], 0)
        heads = FlatParameters(flat[0][common:], flat[1][common:], copies)
        self._embeddings: list[tuple[slice, slice, Dense]] = []  # which columns of the vector, and of what is embedded
        for columns, units in embedded_columns(spec):
            self._embeddings.append((columns, units, Dense(ours, (_width(columns), _width(units)), "relu")))
        self._cells = kind([CellWeights(ours, kind.gates, _embedded(spec), size)])
        self._shortcut = Dense(ours, (spec.embeddings[0][0] + more, size), "relu")
        self._dense = Dense(heads, (2 * size, *spec.hidden_sizes, outputs), spec.activation, copies)
        self._size, self._copies, self._buffers = size, copies, BufferPool()
        self._along: Any = None  # what it went along, and how often the weights had changed then
        self._said: Array | None = None  # of all rows of that
        self._whole = self  # who goes along them

    def put(self, array: Array) -> Array:
        return array

    def output(self, shown: NetworkInput, more: Array | None = None) -> Array:
        return self.forward(shown, more)

    def forward(self, shown: NetworkInput, more: Array | None = None) -> Array:
        """Without `more`, all rows go through the layers once, whichever of them are asked about."""
        hidden, self._rows = self._whole._remembered(shown), shown.rows
        if more is not None:
            return self._through(hidden[shown.rows], given(shown, more, self._shortcut.inputs))
        if self._said is None:
            self._said = self._through(hidden, shown.vector[:, : self._shortcut.inputs])
        return self._said[..., shown.rows, :]

    def _through(self, hidden: Array, current: Array) -> Array:
        short = self._shortcut.forward(current)
        self._short = np.maximum(short, ZERO, out=short)
        both = np.concatenate((hidden, short), -1, out=self._buffers.get("both", (len(short), 2 * self._size)))
        return self._dense.forward(both)

    def _remembered(self, shown: NetworkInput) -> Array:
        """[rows, size] hidden states after all rows of all sequences."""
        changes = 0 if self._learns is None else self._learns.steps
        if self._along is None or self._along[0] is not shown.vector or self._along[1] != changes:
            parts = [layer.forward(shown.vector[:, of]) for of, _, layer in self._embeddings]
            room = self._buffers.get("embedded", (len(shown.vector), self._embeddings[-1][1].stop))
            self._embedded = np.concatenate(parts, -1, out=room)
            np.maximum(self._embedded, ZERO, out=self._embedded)
            nothing = np.zeros((shown.counts[0], 1, self._cells.parts, self._size), np.float32)
            self._hidden = self._cells.forward(self._embedded, shown.counts, nothing)[:, 0]
            self._along, self._said = (shown.vector, changes), None
        return self._hidden

    def backward(self, grad_output: Array) -> None:
        size, rows = self._size, self._rows
        if self._said is not None:
            grad_output, some = np.zeros(self._said.shape, np.float32), grad_output
            grad_output[..., rows, :], rows = some, slice(None)
        grad_given = self._buffers.get("by given", (*grad_output.shape[:-1], 2 * size))
        self._dense.backward(grad_output, grad_given)
        if self._copies:
            grad_given = np.sum(grad_given, axis=0, out=self._buffers.get("by given of all", grad_given.shape[1:]))
        grad_short, grad_hidden = grad_given[:, size:], self._buffers.get("by hidden", (len(self._hidden), 1, size))
        grad_short *= self._short > 0
        self._shortcut.backward(grad_short)
        grad_hidden[...] = 0
        grad_hidden[rows, 0] = grad_given[:, :size]
        self._cells.backward(grad_hidden)
        grad_embedded = self._cells.input_grad(0)
        grad_embedded *= self._embedded > 0
        for _, units, layer in self._embeddings:
            layer.backward(grad_embedded[:, units])

    def vector_grad(self, grad_output: Array, columns: slice) -> Array:
        """By columns of what the shortcut is given: what is remembered knows nothing of an action not taken yet."""
        grad_short = self._dense.input_grad(grad_output, slice(self._size, None))
        grad_short *= self._short > 0
        return self._shortcut.input_grad(grad_short, columns)


class RecurrentNetwork(RecurrentLayers):
    """Layers that learn."""

    def __init__(self, spec: NetworkSpec, outputs: int, more: int, copies: int, seed: Sequence[int]) -> None:
        dense = count_parameters((2 * spec.memory_size, *spec.hidden_sizes, outputs)) * max(1, copies)
        self.optimizer: Optimizer = Adam(np, np.zeros(common_parameters(spec, more) + dense, np.float32), 1e-8)
        self._made = spec, outputs, more
        flat = self.optimizer.parameters, self.optimizer.gradient
        super().__init__(*self._made, copies, flat, self.optimizer)
        rng = np.random.default_rng(seed)
        for _, _, layer in self._embeddings:
            layer.begin(rng, ortho_init=False)
        begin_cell(self._cells.weights[0], rng, spec)
        self._shortcut.begin(rng, ortho_init=False)
        self._dense.begin(rng, ortho_init=False)

    def first(self) -> RecurrentLayers:
        """The first of the copies alone, with the same parameters, and what is remembered; to look at, not to learn."""
        common = common_parameters(self._made[0], self._made[2])
        mine = slice(common + (len(self.optimizer.parameters) - common) // self._copies)
        flat = self.optimizer.parameters[mine], self.optimizer.gradient[mine]
        found = RecurrentLayers(*self._made, 0, flat, self.optimizer)
        found._whole = self
        return found

    def target(self) -> RecurrentTarget:
        """A network that begins as this one and follows it slowly."""
        return RecurrentTarget(*self._made, self._copies, self.optimizer)

    def layers(self) -> list[tuple[Array, Array]]:
        """(weights [in, out], bias) of the dense ones, copies, to act with."""
        return [(weights.T.copy(), bias.copy()) for weights, bias, _, _ in self._dense.layers]

    def cell(self) -> list[Array]:
        """The cell's weights, copies."""
        return [one.copy() for one in self._cells.weights[0].values]

    def embedding(self) -> tuple[Array, Array]:
        """(weights [in, out], bias) of one layer that computes all that is embedded, and then the shortcut."""
        layers = [layer.layers[0][:2] for layer in (*(layer for _, _, layer in self._embeddings), self._shortcut)]
        return embedding_of(self._made[0], layers)


class RecurrentTarget(RecurrentLayers, SoftUpdated):
    """Layers whose parameters follow another network's. They do so between the rows of two gradient steps."""

    def __init__(self, spec: NetworkSpec, outputs: int, more: int, copies: int, followed: Optimizer) -> None:
        SoftUpdated.__init__(self, followed, followed.parameters.copy())
        RecurrentLayers.__init__(self, spec, outputs, more, copies, (self.parameters, self.parameters), None)


def embedding_of(spec: NetworkSpec, layers: Sequence[tuple[Array, Array]]) -> tuple[Array, Array]:
    """(weights [in, out], bias) of one layer that computes all that is embedded, and then the shortcut, from
    (weights [out, in], bias) of the layers that do it one by one."""
    width = _embedded(spec) + spec.memory_size
    weights, bias = np.zeros((spec.size, width), np.float32), np.zeros(width, np.float32)
    shortcut = slice(0, spec.embeddings[0][0]), slice(_embedded(spec), None)
    for (columns, units), (matrix, offset) in zip((*embedded_columns(spec), shortcut), layers):
        weights[columns, units], bias[units] = matrix.T, offset
    return weights, bias


def embedded_columns(spec: NetworkSpec) -> list[tuple[slice, slice]]:
    """Of every part of the vector that is embedded: where it is there, and where among what is embedded."""
    numbers, units = (list(itertools.accumulate((one[i] for one in spec.embeddings), initial=0)) for i in (0, 1))
    return [
        (slice(numbers[k], numbers[k + 1]), slice(units[k], units[k + 1]))
        for k in range(len(spec.embeddings))
        if units[k + 1] > units[k]
    ]


def _width(columns: slice) -> int:
    return int(columns.stop - columns.start)


def _embedded(spec: NetworkSpec) -> int:
    return sum(units for _, units in spec.embeddings)


def common_parameters(spec: NetworkSpec, more: int) -> int:
    """Of all but the dense layers: how many."""
    assert spec.memory is not None
    size, inward = spec.memory_size, _embedded(spec)
    embedding = sum(count_parameters((_width(columns), _width(units))) for columns, units in embedded_columns(spec))
    cell = count_parameters((inward + size + 1, CELLS[spec.memory].gates * size))
    return embedding + cell + count_parameters((spec.embeddings[0][0] + more, size))

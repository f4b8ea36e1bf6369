"""Recurrent counterpart of `NumpyNetwork`: it learns along whole sequences, each with an empty initial memory.

Observation, previous action and previous reward are embedded (a linear layer and a ReLU each) and are the input of a
recurrent cell. The dense layers get its hidden state and a shortcut: an embedding of the observation (for critics, also
of the action). Copies of the dense layers share everything before them. Sequences of different lengths are packed: no
row is padding. The hidden states of a batch are computed once for as long as the weights stay the same.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from multiverse.core.layout import Array
from multiverse.learning.batches import NetworkInput
from multiverse.learning.cells import CELLS, BufferPool, CellWeights
from multiverse.learning.network_spec import NetworkSpec, count_parameters
from multiverse.learning.numpy_learner import Dense, initialize_cell
from multiverse.learning.numpy_network import FlatParameters, SoftUpdated, dense_inputs
from multiverse.learning.optimizers import Adam, Optimizer

ZERO = np.float32(0)


class RecurrentLayers:
    """(rows of sequences, `more` inputs of each) → [rows, outputs], or with copies [copies, rows, outputs]."""

    xp, recurrent = np, True

    def __init__(
        self,
        spec: NetworkSpec,
        outputs: int,
        more: int,
        copies: int,
        flat: tuple[Array, Array],
        optimizer: Optimizer | None,
    ) -> None:
        """`flat`: all parameters and their gradients. `optimizer`: of these parameters; None for targets."""
        assert spec.memory is not None
        kind, size, self._optimizer = CELLS[spec.memory], spec.memory_size, optimizer
        common = count_common_parameters(spec, more)
        shared = FlatParameters(flat[0][:common], flat[1][:common], 0)
        heads = FlatParameters(flat[0][common:], flat[1][common:], copies)
        self._embeddings: list[tuple[slice, slice, Dense]] = []  # columns of the vector and of the embedding
        for columns, units in embedded_columns(spec):
            self._embeddings.append((columns, units, Dense(shared, (_width(columns), _width(units)), "relu")))
        self._cells = kind([CellWeights(shared, kind.gates, _embedded(spec), size)])
        self._shortcut = Dense(shared, (spec.embeddings[0][0] + more, size), "relu")
        self._dense = Dense(heads, (2 * size, *spec.hidden_sizes, outputs), spec.activation, copies)
        self._size, self._copies, self._buffers = size, copies, BufferPool()
        self._cached_for: Any = None  # (vector, number of optimizer steps) of the cached hidden states
        self._outputs: Array | None = None  # of all rows of that vector
        self._whole = self  # the network that computes the hidden states

    def put(self, array: Array) -> Array:
        return array

    def output(self, inputs: NetworkInput, more: Array | None = None) -> Array:
        return self.forward(inputs, more)

    def forward(self, inputs: NetworkInput, more: Array | None = None) -> Array:
        """Return the outputs for the selected rows. Without `more`, those of all rows are computed once."""
        hidden, self._rows = self._whole._hidden_states(inputs), inputs.rows
        if more is not None:
            return self._through(hidden[inputs.rows], dense_inputs(inputs, more, self._shortcut.inputs))
        if self._outputs is None:
            self._outputs = self._through(hidden, inputs.vector[:, : self._shortcut.inputs])
        return self._outputs[..., inputs.rows, :]

    def _through(self, hidden: Array, current: Array) -> Array:
        short = self._shortcut.forward(current)
        self._short = np.maximum(short, ZERO, out=short)
        both = np.concatenate((hidden, short), -1, out=self._buffers.get("both", (len(short), 2 * self._size)))
        return self._dense.forward(both)

    def _hidden_states(self, inputs: NetworkInput) -> Array:
        """Return the hidden states [rows, size] after all rows of all sequences."""
        steps = 0 if self._optimizer is None else self._optimizer.steps
        if self._cached_for is None or self._cached_for[0] is not inputs.vector or self._cached_for[1] != steps:
            parts = [layer.forward(inputs.vector[:, of]) for of, _, layer in self._embeddings]
            buffer = self._buffers.get("embedded", (len(inputs.vector), self._embeddings[-1][1].stop))
            self._embedded = np.concatenate(parts, -1, out=buffer)
            np.maximum(self._embedded, ZERO, out=self._embedded)
            empty = np.zeros((inputs.counts[0], 1, self._cells.parts, self._size), np.float32)
            self._hidden = self._cells.forward(self._embedded, inputs.counts, empty)[:, 0]
            self._cached_for, self._outputs = (inputs.vector, steps), None
        return self._hidden

    def backward(self, grad_output: Array) -> None:
        size, rows = self._size, self._rows
        if self._outputs is not None:
            grad_output, grad_rows = np.zeros(self._outputs.shape, np.float32), grad_output
            grad_output[..., rows, :], rows = grad_rows, slice(None)
        grad_inputs = self._buffers.get("grad inputs", (*grad_output.shape[:-1], 2 * size))
        self._dense.backward(grad_output, grad_inputs)
        if self._copies:
            grad_inputs = np.sum(
                grad_inputs, axis=0, out=self._buffers.get("grad inputs of all", grad_inputs.shape[1:])
            )
        grad_short, grad_hidden = grad_inputs[:, size:], self._buffers.get("grad hidden", (len(self._hidden), 1, size))
        grad_short *= self._short > 0
        self._shortcut.backward(grad_short)
        grad_hidden[...] = 0
        grad_hidden[rows, 0] = grad_inputs[:, :size]
        self._cells.backward(grad_hidden)
        grad_embedded = self._cells.input_grad(0)
        grad_embedded *= self._embedded > 0
        for _, units, layer in self._embeddings:
            layer.backward(grad_embedded[:, units])

    def vector_grad(self, grad_output: Array, columns: slice) -> Array:
        """Return the gradient by columns of the shortcut's input. The hidden state does not depend on the present
        action."""
        grad_short = self._dense.input_grad(grad_output, slice(self._size, None))
        grad_short *= self._short > 0
        return self._shortcut.input_grad(grad_short, columns)


class RecurrentNetwork(RecurrentLayers):
    """Layers with an optimizer."""

    def __init__(self, spec: NetworkSpec, outputs: int, more: int, copies: int, seed: Sequence[int]) -> None:
        dense = count_parameters((2 * spec.memory_size, *spec.hidden_sizes, outputs)) * max(1, copies)
        self.optimizer: Optimizer = Adam(np, np.zeros(count_common_parameters(spec, more) + dense, np.float32), 1e-8)
        self._spec, self._num_outputs, self._more = spec, outputs, more
        flat = self.optimizer.parameters, self.optimizer.gradient
        super().__init__(spec, outputs, more, copies, flat, self.optimizer)
        rng = np.random.default_rng(seed)
        for _, _, layer in self._embeddings:
            layer.initialize(rng, ortho_init=False)
        initialize_cell(self._cells.weights[0], rng, spec)
        self._shortcut.initialize(rng, ortho_init=False)
        self._dense.initialize(rng, ortho_init=False)

    def first(self) -> RecurrentLayers:
        """Return the first copy alone, with the same parameters and hidden states, for inference only."""
        common = count_common_parameters(self._spec, self._more)
        part = slice(common + (len(self.optimizer.parameters) - common) // self._copies)
        flat = self.optimizer.parameters[part], self.optimizer.gradient[part]
        first = RecurrentLayers(self._spec, self._num_outputs, self._more, 0, flat, self.optimizer)
        first._whole = self
        return first

    def target(self) -> RecurrentTarget:
        """Return a target network, initially equal to this one."""
        return RecurrentTarget(self._spec, self._num_outputs, self._more, self._copies, self.optimizer)

    def layers(self) -> list[tuple[Array, Array]]:
        """Return copies of the (weights [in, out], bias) of the dense layers."""
        return [(weights.T.copy(), bias.copy()) for weights, bias, _, _ in self._dense.layers]

    def cell(self) -> list[Array]:
        """Return copies of the cell's weights."""
        return [value.copy() for value in self._cells.weights[0].values]

    def embedding(self) -> tuple[Array, Array]:
        """Return (weights [in, out], bias) of one layer that computes all embeddings and the shortcut."""
        layers = [layer.layers[0][:2] for layer in (*(layer for _, _, layer in self._embeddings), self._shortcut)]
        return embedding_of(self._spec, layers)


class RecurrentTarget(RecurrentLayers, SoftUpdated):
    """Layers whose parameters are updated towards those of another network, between two gradient steps."""

    def __init__(self, spec: NetworkSpec, outputs: int, more: int, copies: int, source: Optimizer) -> None:
        SoftUpdated.__init__(self, source, source.parameters.copy())
        RecurrentLayers.__init__(self, spec, outputs, more, copies, (self.parameters, self.parameters), None)


def embedding_of(spec: NetworkSpec, layers: Sequence[tuple[Array, Array]]) -> tuple[Array, Array]:
    """Return (weights [in, out], bias) of one layer that computes all embeddings and the shortcut, from the (weights
    [out, in], bias) of the single layers."""
    width = _embedded(spec) + spec.memory_size
    weights, bias = np.zeros((spec.size, width), np.float32), np.zeros(width, np.float32)
    shortcut = slice(0, spec.embeddings[0][0]), slice(_embedded(spec), None)
    for (columns, units), (matrix, offset) in zip((*embedded_columns(spec), shortcut), layers):
        weights[columns, units], bias[units] = matrix.T, offset
    return weights, bias


def embedded_columns(spec: NetworkSpec) -> list[tuple[slice, slice]]:
    """Return the columns of each embedded part: in the vector, and in the embedding."""
    numbers, units = (list(itertools.accumulate((sizes[i] for sizes in spec.embeddings), initial=0)) for i in (0, 1))
    return [
        (slice(numbers[k], numbers[k + 1]), slice(units[k], units[k + 1]))
        for k in range(len(spec.embeddings))
        if units[k + 1] > units[k]
    ]


def _width(columns: slice) -> int:
    return int(columns.stop - columns.start)


def _embedded(spec: NetworkSpec) -> int:
    return sum(units for _, units in spec.embeddings)


def count_common_parameters(spec: NetworkSpec, more: int) -> int:
    """Return the number of parameters of all but the dense layers."""
    assert spec.memory is not None
    size, inward = spec.memory_size, _embedded(spec)
    embedding = sum(count_parameters((_width(columns), _width(units))) for columns, units in embedded_columns(spec))
    cell = count_parameters((inward + size + 1, CELLS[spec.memory].gates * size))
    return embedding + cell + count_parameters((spec.embeddings[0][0] + more, size))

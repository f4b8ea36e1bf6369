"""LSTM and GRU cells in numpy, forward and backward along chunks, for the actor and the critic at once.

Rows are packed (see `Packing`): a step along all chunks is one slice, and no row is padding. Products that do not
depend on the previous step (with the inputs, and for the gradients of the weights) are one product over all rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from multiverse.core.layout import Array

HALF = np.float32(0.5)
ONE = np.float32(1)


class ParameterAllocator(Protocol):
    """Hands out the parameters of a flat array in order."""

    def allocate(self, shape: tuple[int, ...]) -> tuple[Array, Array]:
        """Return the next parameters of this shape, and their gradients."""


class BufferPool:
    """Buffers by name that are reused: allocating an array costs as much as filling it."""

    def __init__(self) -> None:
        self._buffers: dict[str, Array] = {}

    def get(self, name: str, shape: tuple[int, ...]) -> Array:
        """Return a buffer of this shape; its contents are undefined."""
        size = math.prod(shape)
        if name not in self._buffers or len(self._buffers[name]) < size:
            self._buffers[name] = np.empty(size + size // 8, np.float32)
        return self._buffers[name][:size].reshape(shape)


class CellWeights:
    """Weights of one cell, laid out as in torch, and their gradients: [gates × size, in], [gates × size, size] and two
    biases."""

    def __init__(self, allocator: ParameterAllocator, gates: int, inward: int, size: int) -> None:
        rows = gates * size
        parts = [allocator.allocate(shape) for shape in ((rows, inward), (rows, size), (rows,), (rows,))]
        self.values, self.gradients = [value for value, _ in parts], [gradient for _, gradient in parts]


class RecurrentCells:
    """Several cells with the same input, each with its own memory.

    σ(x) is (1 + tanh(x / 2)) / 2: one tanh for all gates. The half is in the weights, and exact there.
    """

    gates: int
    parts: int  # number of parts of the memory: hidden state and, for an LSTM, cell state

    def __init__(self, weights: Sequence[CellWeights]) -> None:
        self.weights, self.size = weights, weights[0].values[1].shape[1]
        self._half = np.full(self.gates * self.size, HALF)
        self._half[2 * self.size : 3 * self.size] = ONE  # the candidate, of both kinds
        self._buffer = BufferPool().get

    def forward(self, x: Array, counts: Sequence[int], memory: Array) -> Array:
        """Return the hidden states [rows, cells, size] after rows [rows, in]. `counts`: number of chunks that have a
        first row, a second row, …; `memory`: [chunks, cells, parts, size] before each chunk. Keeps what `backward`
        needs."""
        raise NotImplementedError

    def backward(self, grad_hidden: Array) -> None:
        """Compute the gradient of every weight from that of the hidden states, which is overwritten. No gradient flows
        into the memory before a chunk."""
        raise NotImplementedError

    def input_grad(self, cell: int) -> Array:
        """Return the gradient [rows, in] by the input of this cell, after `backward`."""
        return np.asarray(self._grad_inward[:, cell] @ self.weights[cell].values[0])

    def after(self, rows: Array) -> Array:
        """Return the memory [rows, cells, parts, size] after these rows of the last `forward`."""
        raise NotImplementedError

    # -- common to both kinds --------------------------------------------------------------------------------------
    def _begin(self, x: Array, counts: Sequence[int], memory: Array) -> tuple[Array, Array]:
        """Return (inputs' part of the gates of all rows [rows, cells, gates × size], recurrent weights)."""
        inward, self._recurrent, bias, recurrent_bias = (
            np.stack([cell.values[i] for cell in self.weights]) for i in range(4)
        )
        self._x, self._counts, self._first, half = x, counts, memory, self._half[:, None]
        gates = self._buffer("gates", (len(x), *bias.shape))
        np.matmul(x, (inward * half).transpose(0, 2, 1), out=gates.swapaxes(0, 1))
        gates += self._bias(bias, recurrent_bias) * self._half
        return gates, np.ascontiguousarray((self._recurrent * half).transpose(0, 2, 1))

    def _bias(self, bias: Array, recurrent_bias: Array) -> Array:
        raise NotImplementedError

    def _before(self, states: Array, part: int) -> Array:
        """Return the states [rows, cells, size] before each row, from those after each row."""
        before, first = self._buffer(f"before {part}", states.shape), len(self._first)
        before[:first] = self._first[:, :, part]
        counts = np.array(self._counts, np.int64)
        earlier = np.arange(first, len(before)) - np.repeat(counts[:-1], counts[1:])
        np.take(states, earlier, axis=0, out=before[first:], mode="clip")  # other modes make another copy
        return before

    def _finish(self, grad_inward: Array, grad_recurrent: Array, hidden_before: Array) -> None:
        """Compute the gradients of all weights from those of the gates."""
        self._grad_inward = grad_inward
        ones = np.ones(len(self._x), np.float32)
        for i, cell in enumerate(self.weights):
            np.matmul(grad_inward[:, i].T, self._x, out=cell.gradients[0])
            np.matmul(grad_recurrent[:, i].T, hidden_before[:, i], out=cell.gradients[1])
            np.matmul(ones, grad_inward[:, i], out=cell.gradients[2])
            np.matmul(ones, grad_recurrent[:, i], out=cell.gradients[3])

    def _gate(self, gates: Array, number: int) -> Array:
        return gates[..., number * self.size : (number + 1) * self.size]


class LSTM(RecurrentCells):
    """Hochreiter and Schmidhuber 1997, with a forget gate. Gates: input, forget, candidate, output."""

    gates, parts = 4, 2

    def _bias(self, bias: Array, recurrent_bias: Array) -> Array:
        return bias + recurrent_bias

    def forward(self, x: Array, counts: Sequence[int], memory: Array) -> Array:
        gates, recurrent = self._begin(x, counts, memory)
        shape, size, at = (*gates.shape[:2], self.size), self.size, 0
        hidden, cells, candidates, squashed = (self._buffer(n, shape) for n in ("hidden", "cells", "new", "squashed"))
        buffer = self._buffer("from memory", (len(memory), *gates.shape[1:]))
        h, c = memory[:, :, 0], memory[:, :, 1]
        for count in counts:
            rows, at = slice(at, at + count), at + count
            now, new, cell = gates[rows], candidates[rows], cells[rows]
            from_memory = buffer[:count]
            np.matmul(h[:count].swapaxes(0, 1), recurrent, out=from_memory.swapaxes(0, 1))
            now += from_memory
            np.tanh(now, out=now)
            new[...] = now[..., 2 * size : 3 * size]
            now *= HALF
            now += HALF
            np.multiply(now[..., size : 2 * size], c[:count], out=cell)
            cell += now[..., :size] * new
            h, c = np.multiply(now[..., 3 * size :], np.tanh(cell, out=squashed[rows]), out=hidden[rows]), cell
        self._kept = gates, hidden, cells, candidates, squashed
        return hidden

    def after(self, rows: Array) -> Array:
        _, hidden, cells, _, _ = self._kept
        return np.stack([hidden[rows], cells[rows]], axis=2)

    def backward(self, grad_hidden: Array) -> None:
        gates, hidden, cells, g, squashed = self._kept
        i, f, o = (self._gate(gates, number) for number in (0, 1, 3))
        # Derivatives of the cell state (by input, forget, candidate) and of the hidden state (by output) by each gate.
        grad_gates = self._buffer("by gates", gates.shape)
        np.subtract(ONE, gates, out=grad_gates)
        grad_gates *= gates
        grad_i, grad_f, grad_g, grad_o = (self._gate(grad_gates, number) for number in range(4))
        grad_i *= g
        grad_f *= self._before(cells, 1)
        np.multiply(g, g, out=grad_g)
        np.subtract(ONE, grad_g, out=grad_g)
        grad_g *= i
        grad_o *= squashed
        grad_cells = self._buffer("by cells", squashed.shape)
        np.multiply(squashed, squashed, out=grad_cells)
        np.subtract(ONE, grad_cells, out=grad_cells)
        grad_cells *= o
        into_cell = grad_gates.reshape(*gates.shape[:2], 4, self.size)[:, :, :3]
        at, later, grad_h, grad_c = len(self._x), 0, grad_hidden[:0], grad_hidden[:0]
        for count in reversed(self._counts):
            rows, at = slice(at - count, at), at - count
            now, cell, into, out = grad_hidden[rows], grad_cells[rows], into_cell[rows], grad_o[rows]
            now[:later] += grad_h
            cell *= now
            cell[:later] += grad_c
            into *= cell[:, :, None]
            out *= now
            if at:
                grad_c, later = cell * f[rows], count
                grad_h = np.matmul(grad_gates[rows].swapaxes(0, 1), self._recurrent).swapaxes(0, 1)
        self._finish(grad_gates, grad_gates, self._before(hidden, 0))


class GRU(RecurrentCells):
    """Cho et al. 2014, in torch's variant. Gates: reset, update, candidate."""

    gates, parts = 3, 1

    def _bias(self, bias: Array, recurrent_bias: Array) -> Array:
        """The reset gate multiplies the memory's part of the candidate, including its bias."""
        self._memory_bias, both = recurrent_bias[:, 2 * self.size :], slice(0, 2 * self.size)
        bias[:, both] += recurrent_bias[:, both]
        return bias

    def forward(self, x: Array, counts: Sequence[int], memory: Array) -> Array:
        gates, recurrent = self._begin(x, counts, memory)
        shape, size, at = (*gates.shape[:2], self.size), self.size, 0
        hidden, candidates, of_memory = (self._buffer(name, shape) for name in ("hidden", "new", "of memory"))
        buffer, h = self._buffer("from memory", (len(memory), *gates.shape[1:])), memory[:, :, 0]
        for count in counts:
            rows, at = slice(at, at + count), at + count
            now, new, h, from_memory = gates[rows], candidates[rows], h[:count], buffer[:count]
            np.matmul(h.swapaxes(0, 1), recurrent, out=from_memory.swapaxes(0, 1))
            np.add(from_memory[..., 2 * size :], self._memory_bias, out=of_memory[rows])
            new[...] = now[..., 2 * size :]
            now += from_memory
            np.tanh(now, out=now)
            now *= HALF
            now += HALF
            new += now[..., :size] * of_memory[rows]
            np.tanh(new, out=new)
            h = np.subtract(h, new, out=hidden[rows])
            h *= now[..., size : 2 * size]
            h += new
        self._kept = gates, hidden, candidates, of_memory
        return hidden

    def after(self, rows: Array) -> Array:
        return np.asarray(self._kept[1][rows][:, :, None])

    def backward(self, grad_hidden: Array) -> None:
        gates, hidden, n, of_memory = self._kept
        r, z, before = self._gate(gates, 0), self._gate(gates, 1), self._before(hidden, 0)
        # Derivatives of the hidden state by each gate; of the candidate, by the memory's part of it.
        grad_gates, grad_new = self._buffer("by gates", gates.shape), self._buffer("by new", n.shape)
        np.subtract(ONE, gates, out=grad_gates)
        np.multiply(n, n, out=grad_new)
        np.subtract(ONE, grad_new, out=grad_new)
        grad_new *= self._gate(grad_gates, 1)
        grad_gates *= gates
        grad_r, grad_z, grad_n = (self._gate(grad_gates, number) for number in range(3))
        grad_r *= grad_new
        grad_r *= of_memory
        grad_z *= before - n
        np.multiply(grad_new, r, out=grad_n)
        every, at, later, grad_h = grad_gates.reshape(*gates.shape[:2], 3, self.size), len(self._x), 0, grad_hidden[:0]
        for count in reversed(self._counts):
            rows, at = slice(at - count, at), at - count
            now, into = grad_hidden[rows], every[rows]
            now[:later] += grad_h
            into *= now[:, :, None]
            if at:
                grad_h, later = np.matmul(grad_gates[rows].swapaxes(0, 1), self._recurrent).swapaxes(0, 1), count
                grad_h += now * z[rows]
        grad_inward = self._buffer("by inward", gates.shape)
        grad_inward[...] = grad_gates
        np.multiply(grad_new, grad_hidden, out=self._gate(grad_inward, 2))
        self._finish(grad_inward, grad_gates, before)


CELLS: dict[str, type[RecurrentCells]] = {"lstm": LSTM, "gru": GRU}

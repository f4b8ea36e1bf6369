"""LSTM and GRU cells in numpy, forward and backward along chunks: the actor's and the critic's side by side.

Rows lie as chunks are packed: the first rows of all chunks, then the second rows of those that have one, and so on. So
a step along all chunks is one slice, no row is padding, and whatever does not wait for the step before (the products
with the inputs, and those that give the gradients of the weights) is one product for all rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from multiverse.core.views import Array

HALF = np.float32(0.5)
ONE = np.float32(1)


class ParameterAllocator(Protocol):
    """Who has the parameters."""

    def allocate(self, shape: tuple[int, ...]) -> tuple[Array, Array]:
        """The next parameters of this shape, and their gradients."""


class BufferPool:
    """Arrays laid out once, for the most rows and a few more: a new one would cost as much as what is written to it."""

    def __init__(self) -> None:
        self._laid_out: dict[str, Array] = {}

    def get(self, name: str, shape: tuple[int, ...]) -> Array:
        wanted = math.prod(shape)
        if name not in self._laid_out or len(self._laid_out[name]) < wanted:
            self._laid_out[name] = np.empty(wanted + wanted // 8, np.float32)
        return self._laid_out[name][:wanted].reshape(shape)


class CellWeights:
    """Of one cell, as torch has them: [gates × size, in], [gates × size, size] and two biases; and their gradients."""

    def __init__(self, owner: ParameterAllocator, gates: int, inward: int, size: int) -> None:
        rows = gates * size
        parts = [owner.allocate(shape) for shape in ((rows, inward), (rows, size), (rows,), (rows,))]
        self.values, self.gradients = [value for value, _ in parts], [gradient for _, gradient in parts]


class RecurrentCells:
    """Several cells that see the same rows, each with a memory of its own.

    σ(x) is (1 + tanh(x / 2)) / 2: one tanh for all gates. The half is in the weights, and exact there.
    """

    gates: int
    parts: int  # of what is remembered

    def __init__(self, weights: Sequence[CellWeights]) -> None:
        self.weights, self.size = weights, weights[0].values[1].shape[1]
        self._half = np.full(self.gates * self.size, HALF)
        self._half[2 * self.size : 3 * self.size] = ONE  # the candidate, of both kinds
        self._buffer = BufferPool().get

    def forward(self, x: Array, counts: Sequence[int], memory: Array) -> Array:
        """[rows, cells, size] hidden states after rows [rows, in]. `counts`: how many chunks have a first row, a second
        one, …; `memory`: [chunks, cells, parts, size] before each. What `backward` needs is kept."""
        raise NotImplementedError

    def backward(self, grad_hidden: Array) -> None:
        """From the gradient by the hidden states, which is used up, to that of every weight. Nothing flows into what
        was remembered before a chunk."""
        raise NotImplementedError

    def input_grad(self, cell: int) -> Array:
        """[rows, in] after `backward`: the gradient by what this cell was given."""
        return np.asarray(self._grad_inward[:, cell] @ self.weights[cell].values[0])

    def after(self, rows: Array) -> Array:
        """[rows, cells, parts, size] what was remembered after some rows of the last `forward`."""
        raise NotImplementedError

    # -- what both kinds do --------------------------------------------------------------------------------------
    def _begin(self, x: Array, counts: Sequence[int], memory: Array) -> tuple[Array, Array]:
        """(the gates of all rows [rows, cells, gates × size] as far as the inputs make them, the recurrent weights)."""
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
        """[rows, cells, size] of states after each row: those before it."""
        room, first = self._buffer(f"before {part}", states.shape), len(self._first)
        room[:first] = self._first[:, :, part]
        counts = np.array(self._counts, np.int64)
        earlier = np.arange(first, len(room)) - np.repeat(counts[:-1], counts[1:])
        np.take(states, earlier, axis=0, out=room[first:], mode="clip")  # with another mode it is copied once more
        return room

    def _finish(self, grad_inward: Array, grad_recurrent: Array, hidden_before: Array) -> None:
        """The gradients of all weights, from those by the gates."""
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
        room = self._buffer("from memory", (len(memory), *gates.shape[1:]))
        h, c = memory[:, :, 0], memory[:, :, 1]
        for count in counts:
            rows, at = slice(at, at + count), at + count
            now, new, cell = gates[rows], candidates[rows], cells[rows]
            known = room[:count]
            np.matmul(h[:count].swapaxes(0, 1), recurrent, out=known.swapaxes(0, 1))
            now += known
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
        # What each gate's gradient is to that of the cell (input, forget, candidate) or of the hidden state (output).
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
    """Cho et al. 2014, as torch has it. Gates: reset, update, candidate."""

    gates, parts = 3, 1

    def _bias(self, bias: Array, recurrent_bias: Array) -> Array:
        """Of the candidate, the reset gate multiplies what comes from the memory, its bias included."""
        self._of_memory, both = recurrent_bias[:, 2 * self.size :], slice(0, 2 * self.size)
        bias[:, both] += recurrent_bias[:, both]
        return bias

    def forward(self, x: Array, counts: Sequence[int], memory: Array) -> Array:
        gates, recurrent = self._begin(x, counts, memory)
        shape, size, at = (*gates.shape[:2], self.size), self.size, 0
        hidden, candidates, of_memory = (self._buffer(name, shape) for name in ("hidden", "new", "of memory"))
        room, h = self._buffer("from memory", (len(memory), *gates.shape[1:])), memory[:, :, 0]
        for count in counts:
            rows, at = slice(at, at + count), at + count
            now, new, h, known = gates[rows], candidates[rows], h[:count], room[:count]
            np.matmul(h.swapaxes(0, 1), recurrent, out=known.swapaxes(0, 1))
            np.add(known[..., 2 * size :], self._of_memory, out=of_memory[rows])
            new[...] = now[..., 2 * size :]
            now += known
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
        # What each gate's gradient is to that of the hidden state; of the candidate, by what comes from the memory.
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

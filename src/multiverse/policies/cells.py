"""Recurrent cells in numpy: one step for every row, in blocks of four rows as in all policies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from multiverse.core.layout import Array
from multiverse.core.policy import Memory

BLOCK_ROWS = 4
MemoryKind = Literal["lstm", "gru"]
GATES = {"lstm": 4, "gru": 3}
PARTS = {"lstm": 2, "gru": 1}
"""Number of states in memory: hidden state, and cell state of an LSTM."""
HALF = np.float32(0.5)

CellWeights = Sequence[Array]
"""Four arrays, as in torch: [gates × size, in] and [gates × size, size] weights, and the biases of both."""


def in_blocks(x: Array) -> Array:
    """[rows, …] → [blocks, 4, …], with zeros where rows are missing."""
    rows = len(x)
    if missing := -rows % BLOCK_ROWS:
        given, x = x, np.zeros((rows + missing, *x.shape[1:]), x.dtype)
        x[:rows] = given
    return x.reshape(-1, BLOCK_ROWS, *x.shape[1:])


class Cells:
    """Cells of the actor and the critic. Policies step the critic's cell too, so that rollouts contain its memory.

    A memory is {"cells": [rows, cells, parts, size]}. σ(x) is (1 + tanh(x / 2)) / 2, the half being in the weights.
    """

    def __init__(self, kind: MemoryKind, weights: Sequence[CellWeights]) -> None:
        self.kind, self.weights = kind, [[np.asarray(part, np.float32) for part in cell] for cell in weights]
        self.inputs, self.size = (self.weights[0][i].shape[-1] for i in (0, 1))
        gates, size = GATES[kind] * self.size, self.size
        shapes = [(gates, self.inputs), (gates, size), (gates,), (gates,)]
        if any([part.shape for part in cell] != shapes for cell in self.weights):
            raise ValueError("the weights of its recurrent cells have inconsistent shapes")
        half = np.full(gates, HALF)
        half[2 * size : 3 * size] = 1.0  # the candidate of both kinds, which has a tanh
        inward, recurrent, bias, recurrent_bias = (np.stack([cell[i] for cell in self.weights]) for i in range(4))
        if kind == "lstm":
            bias = bias + recurrent_bias
        else:  # the reset gate multiplies the recurrent part of the candidate, including its bias
            self._of_memory = recurrent_bias[:, None, None, 2 * size :]
            bias[:, : 2 * size] += recurrent_bias[:, : 2 * size]
        self._inward = np.ascontiguousarray((inward * half[:, None]).transpose(0, 2, 1))[:, None]
        self._recurrent = np.ascontiguousarray((recurrent * half[:, None]).transpose(0, 2, 1))[:, None]
        self._bias = (bias * half)[:, None, None]

    def first_memory(self, rows: int) -> Memory:
        return {"cells": np.zeros((rows, len(self.weights), PARTS[self.kind], self.size), np.float32)}

    def step(self, x: Array, memory: Memory) -> tuple[Array, Memory]:
        """([blocks, 4, size] output of the actor's cell for [blocks, 4, in], next memory)."""
        rows = memory["cells"]
        before = in_blocks(rows).transpose(2, 3, 0, 1, 4)  # [cells, parts, blocks, 4, size]
        after = np.empty((*x.shape[:2], *rows.shape[1:]), np.float32)
        states = after.transpose(2, 3, 0, 1, 4)
        gates = np.matmul(x, self._inward)
        gates += self._bias
        (self._lstm if self.kind == "lstm" else self._gru)(gates, before, states)
        next_rows = after.reshape(-1, *rows.shape[1:])[: len(rows)]
        return np.ascontiguousarray(states[0, 0]), {"cells": next_rows}

    def _lstm(self, gates: Array, before: Array, after: Array) -> None:
        size = self.size
        gates += np.matmul(before[:, 0], self._recurrent)
        np.tanh(gates, out=gates)
        candidate = gates[..., 2 * size : 3 * size].copy()
        gates *= HALF
        gates += HALF
        cell = gates[..., size : 2 * size] * before[:, 1]
        candidate *= gates[..., :size]
        np.add(cell, candidate, out=after[:, 1])
        np.multiply(gates[..., 3 * size :], np.tanh(after[:, 1]), out=after[:, 0])

    def _gru(self, gates: Array, before: Array, after: Array) -> None:
        size, hidden = self.size, before[:, 0]
        of_memory = np.matmul(hidden, self._recurrent)
        both, candidate = gates[..., : 2 * size], gates[..., 2 * size :]
        both += of_memory[..., : 2 * size]
        np.tanh(both, out=both)
        both *= HALF
        both += HALF
        recurrent = of_memory[..., 2 * size :]
        recurrent += self._of_memory
        recurrent *= both[..., :size]
        candidate += recurrent
        np.tanh(candidate, out=candidate)
        np.add(candidate, both[..., size:] * (hidden - candidate), out=after[:, 0])

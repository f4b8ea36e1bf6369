"""Recurrent cells in numpy, along chunks of any length: outputs and gradients equal those of formulas and of torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from multiverse.learning.cells import CELLS, CellWeights, RecurrentCells

SIZE, INWARD, LENGTHS = 7, 3, (6, 6, 3, 1, 1)
COUNTS = [sum(length > p for length in LENGTHS) for p in range(max(LENGTHS))]
NAMES = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")


class Drawn:
    """Parameters in the form in which a learner passes them."""

    def __init__(self) -> None:
        self._rng = np.random.default_rng(1)

    def allocate(self, shape: tuple[int, ...]) -> tuple[Any, Any]:
        return (self._rng.normal(size=shape) * 0.5).astype(np.float32), np.full(shape, np.nan, np.float32)


def made(kind: str) -> RecurrentCells:
    cells, owner = CELLS[kind], Drawn()
    return cells([CellWeights(owner, cells.gates, INWARD, SIZE) for _ in range(2)])


def given(cells: RecurrentCells) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(0)
    rows = sum(LENGTHS)
    return tuple(
        rng.normal(size=shape).astype(np.float32)
        for shape in ((rows, INWARD), (len(LENGTHS), 2, cells.parts, SIZE), (rows, 2, SIZE))
    )  # type: ignore[return-value]


def obvious(kind: str, weights: list[Any], x: Any, memory: Any) -> tuple[list[Any], list[Any]]:
    """(hidden states by row, memory after each chunk), chunk after chunk, by the formulas, in double precision."""
    inward, recurrent, bias, recurrent_bias = weights
    hidden: list[Any] = [None] * len(x)
    after, sigmoid = [], torch.sigmoid
    firsts = np.cumsum([0, *COUNTS])
    for chunk, length in enumerate(LENGTHS):
        state = list(memory[chunk])
        for p in range(length):
            row = int(firsts[p]) + chunk
            a, b = inward @ x[row] + bias, recurrent @ state[0] + recurrent_bias
            if kind == "lstm":
                i, f, g, o = (a + b).split(SIZE)
                c = sigmoid(f) * state[1] + sigmoid(i) * torch.tanh(g)
                state = [sigmoid(o) * torch.tanh(c), c]
            else:
                (ar, az, an), (br, bz, bn) = a.split(SIZE), b.split(SIZE)
                r, z = sigmoid(ar + br), sigmoid(az + bz)
                state = [(1 - z) * torch.tanh(an + r * bn) + z * state[0]]
            hidden[row] = state[0]
        after.append(torch.stack(state))
    return hidden, after


@pytest.mark.parametrize("kind", CELLS)
def test_outputs_and_gradients_of_cells_equal_their_formulas(kind: str) -> None:
    cells = made(kind)
    x, memory, grad_hidden = given(cells)
    for _ in range(2):  # the second time in buffers that were used before
        found = cells.forward(x, COUNTS, memory).copy()
        after = cells.after(np.array([sum(COUNTS[: n - 1]) + k for k, n in enumerate(LENGTHS)]))
        cells.backward(grad_hidden.copy())
        for number, cell in enumerate(cells.weights):
            weights = [torch.tensor(value, dtype=torch.float64, requires_grad=True) for value in cell.values]
            hidden, remembered = obvious(
                kind, weights, torch.tensor(x).double(), torch.tensor(memory[:, number]).double()
            )
            (torch.stack(hidden) * torch.tensor(grad_hidden[:, number])).sum().backward()
            np.testing.assert_allclose(found[:, number], torch.stack(hidden).detach(), rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(after[:, number], torch.stack(remembered).detach(), rtol=1e-5, atol=1e-6)
            for gradient, weight in zip(cell.gradients, weights):
                np.testing.assert_allclose(gradient, weight.grad, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", CELLS)
def test_cells_equal_torch(kind: str) -> None:
    cells = made(kind)
    x, memory, grad_hidden = given(cells)
    found = cells.forward(x, COUNTS, memory)
    for number, cell in enumerate(cells.weights):
        theirs = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}[kind](INWARD, SIZE)
        for name, value in zip(NAMES, cell.values):
            getattr(theirs, name).data = torch.from_numpy(value)
        first = torch.from_numpy(memory[:, number].swapaxes(0, 1)[:, None].copy())
        packed = torch.nn.utils.rnn.PackedSequence(torch.from_numpy(x), torch.tensor(COUNTS))
        hidden, _ = theirs(packed, (first[0], first[1]) if kind == "lstm" else first[0])
        np.testing.assert_allclose(found[:, number], hidden.data.detach(), rtol=1e-5, atol=1e-6)
        hidden.data.backward(torch.from_numpy(grad_hidden[:, number].copy()))
        cell.gradients.append([getattr(theirs, name).grad for name in NAMES])
    cells.backward(grad_hidden.copy())
    for cell in cells.weights:
        expected = cell.gradients.pop()
        for mine, his in zip(cell.gradients, expected):
            np.testing.assert_allclose(mine, his, rtol=1e-4, atol=1e-5)

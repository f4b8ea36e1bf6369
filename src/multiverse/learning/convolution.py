"""A convolution over a small board or picture as the dense layer that it is: weights that are the same everywhere, and
zero where a filter does not look.

So whoever acts, saves or loads a policy knows dense layers only. Learning adds up the gradients of what is the same,
which keeps it the same.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from multiverse.core.errors import InvalidRequest
from multiverse.core.views import Array


class Convolution:
    """`filters` of size × size at every place of a board of this shape, without padding; outputs are place by place."""

    def __init__(self, board: tuple[int, ...], filters: int, size: int) -> None:
        cells = np.arange(math.prod(board)).reshape(board)
        if not channels_last(board):
            cells = np.moveaxis(cells, 0, 2)
        if min(cells.shape[:2]) < size:
            raise InvalidRequest(
                f"kernel_size={size}: larger than what is looked at, {cells.shape[0]} × {cells.shape[1]}"
            )
        looked_at = np.lib.stride_tricks.sliding_window_view(cells, (size, size), axis=(0, 1))
        inputs = looked_at.reshape(-1, cells.shape[2] * size * size)
        self._places, self._filters, self.kernel = len(inputs), filters, (filters, inputs.shape[1])
        self.outputs = self._places * filters
        rows = np.arange(self.outputs).reshape(self._places, filters, 1)
        self._inputs = cells.size
        self.tied = rows * cells.size + inputs[:, None]
        """[places, filters, weights of a filter] where in the layer's weights, [out, in] and flat, each is."""

    def spread(self, kernel: Array) -> Array:
        """[out, in] the layer's weights of these filters."""
        weights = np.zeros((self.outputs, self._inputs), np.float32)
        weights.reshape(-1)[self.tied] = kernel
        return weights

    def tie(self, grad_weights: Any, grad_bias: Any, tied: Any) -> None:
        """From the gradient by each weight to that by what they have in common, in its place; `tied`: where they are.

        Over the root of how often it is there: its norm is that of the filters' gradient, and Adam and RMSprop take
        steps that no scale changes.
        """
        flat, once = grad_weights.reshape(-1), 1 / math.sqrt(self._places)
        kernel = flat[tied].sum(0) * once
        flat[...] = 0
        flat[tied] = kernel
        bias = grad_bias.reshape(self._places, self._filters)
        bias[...] = bias.sum(0) * once


def channels_last(board: tuple[int, ...]) -> bool:
    """Of two equal sides, the third is how many channels there are; else of the first and the last, the shorter."""
    height, width, last = board
    return height == width or (width != last and last <= height)

"""A convolution over a small board or image, written as a dense layer: its weights repeat the filters at every place,
and are zero outside a filter's window.

Policies then consist of dense layers only, also when they are saved and loaded. Summing the gradients of equal weights
keeps them equal.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from multiverse.core.errors import InvalidRequest
from multiverse.core.layout import Array


class Convolution:
    """`filters` of size × size at every place of a board of this shape, without padding. Outputs are ordered by
    place."""

    def __init__(self, board: tuple[int, ...], filters: int, size: int) -> None:
        cells = np.arange(math.prod(board)).reshape(board)
        if not channels_last(board):
            cells = np.moveaxis(cells, 0, 2)
        if min(cells.shape[:2]) < size:
            raise InvalidRequest(f"kernel_size={size}: larger than the board, {cells.shape[0]} × {cells.shape[1]}")
        windows = np.lib.stride_tricks.sliding_window_view(cells, (size, size), axis=(0, 1))
        inputs = windows.reshape(-1, cells.shape[2] * size * size)
        self._places, self._filters, self.kernel = len(inputs), filters, (filters, inputs.shape[1])
        self.outputs = self._places * filters
        rows = np.arange(self.outputs).reshape(self._places, filters, 1)
        self._inputs = cells.size
        self.tied = rows * cells.size + inputs[:, None]
        """[places, filters, weights of a filter] indices into the layer's weights, [out, in] flattened."""

    def spread(self, kernel: Array) -> Array:
        """Return the layer's weights [out, in] of these filters."""
        weights = np.zeros((self.outputs, self._inputs), np.float32)
        weights.reshape(-1)[self.tied] = kernel
        return weights

    def tie(self, grad_weights: Any, grad_bias: Any, tied: Any) -> None:
        """Replace the gradient of each weight by that of its filter weight, in place. `tied`: indices of the weights.

        The sum is divided by √places, so that the norm is that of the filters' gradient. Steps of Adam and RMSprop do
        not depend on the scale of the gradient.
        """
        flat, scale = grad_weights.reshape(-1), 1 / math.sqrt(self._places)
        kernel = flat[tied].sum(0) * scale
        flat[...] = 0
        flat[tied] = kernel
        bias = grad_bias.reshape(self._places, self._filters)
        bias[...] = bias.sum(0) * scale


def channels_last(board: tuple[int, ...]) -> bool:
    """Return whether the last axis is that of the channels: the axis beside two equal ones, or the shorter of the first
    and the last."""
    height, width, last = board
    return height == width or (width != last and last <= height)

"""One network of a few dense layers, or several alike side by side, with an optimizer of their own, in numpy.

What off-policy algorithms learn with: they say what the gradient by a network's outputs is, and it goes on from there,
to its weights or to what it was given. `TorchNetwork` is the same in torch; parameters lie in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from multiverse.contracts.views import Array
from multiverse.learning.loss import Shape, parameters_of
from multiverse.learning.numpy_learner import Dense
from multiverse.learning.optimizers import Adam, Optimizer


class NumpyNetwork:
    """(vector [rows, size]) → [rows, outputs], or [copies, rows, outputs]."""

    xp = np

    def __init__(self, shape: Shape, outputs: int, copies: int, seed: Sequence[int], epsilon: float = 1e-8) -> None:
        self._widths, self._activation, self._copies = (
            (shape.size, *shape.hidden_sizes, outputs),
            shape.activation,
            copies,
        )
        count = parameters_of(self._widths) * max(1, copies)
        self.optimizer: Optimizer = Adam(np, np.zeros(count, np.float32), epsilon)
        self._layers = self._over(self.optimizer.parameters, self.optimizer.gradient)
        self._layers.begin(np.random.default_rng(seed), 1.0, orthogonal=False)

    def _over(self, parameters: Array, gradient: Array) -> Dense:
        return Dense(_Parts(parameters, gradient, self._copies), self._widths, self._activation, self._copies)

    def put(self, array: Array) -> Array:
        """Where the network is: it is there."""
        return array

    def output(self, vector: Array, images: Sequence[Array] = ()) -> Array:
        """Nothing is kept."""
        return self._layers.output(vector)

    def forward(self, vector: Array, images: Sequence[Array] = ()) -> Array:
        """As `output`; what it takes to go back is kept, for one of the two that follow."""
        return self._layers.forward(vector)

    def backward(self, by_output: Array) -> None:
        """From the gradient by the outputs to that by the parameters, where the optimizer takes it."""
        with np.errstate(over="ignore", invalid="ignore"):  # noticed where the gradient is
            self._layers.backward(by_output)

    def by_vector(self, by_output: Array, columns: slice) -> Array:
        """[rows, columns] from the gradient by the outputs to that by some columns of the vector, of all copies
        together."""
        found = self._layers.by_input(by_output, columns)
        return np.asarray(found.sum(axis=0) if self._copies else found)

    def target(self) -> NumpyTarget:
        """A network that begins as this one and follows it slowly."""
        parameters = self.optimizer.parameters.copy()
        return NumpyTarget(self, parameters, self._over(parameters, parameters))

    def layers(self) -> list[tuple[Array, Array]]:
        """(weights [in, out], bias) of each, copies, to act with."""
        return [(weights.T.copy(), bias.copy()) for weights, bias, _, _ in self._layers.layers]


class NumpyTarget:
    """Parameters that follow another network's."""

    def __init__(self, network: NumpyNetwork, parameters: Array, layers: Dense) -> None:
        self._network, self.parameters, self._layers, self._room = (
            network,
            parameters,
            layers,
            np.empty_like(parameters),
        )

    def output(self, vector: Array, images: Sequence[Array] = ()) -> Array:
        return self._layers.output(vector)

    def follow(self, tau: float) -> None:
        """θ' ← θ' + τ (θ - θ')"""
        np.subtract(self._network.optimizer.parameters, self.parameters, out=self._room)
        self._room *= np.float32(tau)
        self.parameters += self._room


class _Parts:
    """Parameters in the order of layers, those of every copy together."""

    def __init__(self, parameters: Array, gradient: Array, copies: int) -> None:
        self._flat, self._copies, self._at = (parameters, gradient), copies, 0

    def part(self, shape: tuple[int, ...]) -> tuple[Any, Any]:
        columns = slice(self._at, self._at + int(np.prod(shape)))
        self._at = columns.stop
        if not self._copies:
            return self._flat[0][columns].reshape(shape), self._flat[1][columns].reshape(shape)
        ours, gradients = (flat.reshape(self._copies, -1)[:, columns] for flat in self._flat)
        return ours.reshape(self._copies, *shape), gradients.reshape(self._copies, *shape)

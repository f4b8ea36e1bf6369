"""A network of a few dense layers, or several copies of it, with its own optimizer, in numpy.

Algorithms that learn from replay use it with the kernels in `kernels/replay.py`, which compute gradients by the
outputs; the network computes those of its weights or inputs. `TorchNetwork` is for autograd; its parameters have the
same order.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from multiverse.core.layout import Array
from multiverse.learning.batches import NetworkInput
from multiverse.learning.network_spec import NetworkSpec, count_parameters
from multiverse.learning.numpy_learner import Dense
from multiverse.learning.optimizers import Adam, Optimizer


class NumpyLayers:
    """(input [rows, size], `more` inputs of each row) → [rows, outputs], or with copies [copies, rows, outputs]."""

    xp, recurrent = np, False

    def __init__(self, dense: Dense, copies: int) -> None:
        self._dense, self._copies = dense, copies

    def put(self, array: Array) -> Array:
        """Move an array to the device of the network: here there is nothing to do."""
        return array

    def output(self, inputs: NetworkInput, more: Array | None = None) -> Array:
        """Return the outputs; overwrites what an earlier `forward` has kept."""
        return self.forward(inputs, more)  # in its buffers: allocating new ones would take longer than the products

    def forward(self, inputs: NetworkInput, more: Array | None = None) -> Array:
        """Return the outputs; keep what `backward` or `vector_grad` needs."""
        return self._dense.forward(dense_inputs(inputs, more, self._dense.inputs))

    def backward(self, grad_output: Array) -> None:
        """Write the gradient by the parameters into the optimizer's, from that by the outputs."""
        self._dense.backward(grad_output)

    def vector_grad(self, grad_output: Array, columns: slice) -> Array:
        """Return the gradient [rows, columns] by these columns of the input, summed over copies, from that by the
        outputs."""
        return self._dense.input_grad(grad_output, columns)


class NumpyNetwork(NumpyLayers):
    """Layers with an optimizer."""

    def __init__(
        self, spec: NetworkSpec, outputs: int, copies: int, seed: Sequence[int], epsilon: float = 1e-8
    ) -> None:
        self._widths = (spec.size, *spec.hidden_sizes, outputs)
        self._activation, count = spec.activation, count_parameters(self._widths) * max(1, copies)
        self.optimizer: Optimizer = Adam(np, np.zeros(count, np.float32), epsilon)
        super().__init__(self._over(self.optimizer.parameters, self.optimizer.gradient, copies), copies)
        self._dense.initialize(np.random.default_rng(seed), ortho_init=False)

    def _over(self, parameters: Array, gradient: Array, copies: int) -> Dense:
        return Dense(FlatParameters(parameters, gradient, copies), self._widths, self._activation, copies)

    def first(self) -> NumpyLayers:
        """Return the first copy alone, with the same parameters."""
        part = slice(0, len(self.optimizer.parameters) // self._copies)
        return NumpyLayers(self._over(self.optimizer.parameters[part], self.optimizer.gradient[part], 0), 0)

    def target(self) -> NumpyTarget:
        """Return a target network, initially equal to this one."""
        parameters = self.optimizer.parameters.copy()
        return NumpyTarget(self, parameters, self._over(parameters, parameters, self._copies), self._copies)

    def layers(self) -> list[tuple[Array, Array]]:
        """Return copies of the (weights [in, out], bias) of each layer."""
        return [(weights.T.copy(), bias.copy()) for weights, bias, _, _ in self._dense.layers]


class NumpyParameters:
    """Learned numbers that are not part of a network, with their optimizer."""

    xp = np

    def __init__(self, initial: Array, epsilon: float = 1e-8) -> None:
        self.optimizer: Optimizer = Adam(np, initial.copy(), epsilon)

    @property
    def values(self) -> Array:
        """The learned numbers."""
        return np.asarray(self.optimizer.parameters)

    def exp(self) -> Any:
        """Return the exponential of the first number."""
        return np.exp(self.optimizer.parameters[0])


class Target:
    """Parameters θ' that are updated towards the parameters θ of another network."""

    def soft_update(self, tau: float) -> None:
        """θ' ← θ' + τ (θ - θ')"""
        raise NotImplementedError

    def follow(self, tau: float) -> None:
        """Deprecated: use `soft_update`."""
        warnings.warn("follow(tau) is deprecated: use soft_update(tau)", DeprecationWarning, stacklevel=2)
        self.soft_update(tau)


class SoftUpdated(Target):
    """Parameters in numpy that are updated towards those of an optimizer."""

    def __init__(self, optimizer: Optimizer, parameters: Array) -> None:
        self._source, self.parameters, self._buffer = optimizer, parameters, np.empty_like(parameters)

    def soft_update(self, tau: float) -> None:
        np.subtract(self._source.parameters, self.parameters, out=self._buffer)
        self._buffer *= np.float32(tau)
        self.parameters += self._buffer


class NumpyTarget(NumpyLayers, SoftUpdated):
    """Layers whose parameters are updated towards those of another network."""

    def __init__(self, network: NumpyNetwork, parameters: Array, dense: Dense, copies: int) -> None:
        NumpyLayers.__init__(self, dense, copies)
        SoftUpdated.__init__(self, network.optimizer, parameters)


def dense_inputs(inputs: NetworkInput, more: Array | None, size: int) -> Array:
    """Return the input [rows, size] of dense layers: of packed sequences only the selected rows, and the columns that
    this network has."""
    vector: Array = inputs.vector
    if inputs.rows is not None:
        vector = vector[inputs.rows, : size - (0 if more is None else more.shape[-1])]
    return vector if more is None else np.concatenate((vector, more), -1)


class FlatParameters:
    """Allocates parameters in the order of the layers, those of each copy together."""

    def __init__(self, parameters: Array, gradient: Array, copies: int) -> None:
        self._flat, self._copies, self._allocated = (parameters, gradient), copies, 0

    def allocate(self, shape: tuple[int, ...]) -> tuple[Any, Any]:
        columns = slice(self._allocated, self._allocated + int(np.prod(shape)))
        self._allocated = columns.stop
        if not self._copies:
            return self._flat[0][columns].reshape(shape), self._flat[1][columns].reshape(shape)
        values, gradients = (flat.reshape(self._copies, -1)[:, columns] for flat in self._flat)
        return values.reshape(self._copies, *shape), gradients.reshape(self._copies, *shape)

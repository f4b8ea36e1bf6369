"""One network of a few dense layers, or several alike side by side, with an optimizer of their own, in numpy.

What off-policy algorithms learn with where `kernels/replay.py` has the gradient of their losses by the outputs: from
there it goes back to the weights, or to the inputs. `TorchNetwork` is for autograd; its parameters have the same order.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from multiverse.core.views import Array
from multiverse.learning.batches import NetworkInput
from multiverse.learning.network_spec import NetworkSpec, count_parameters
from multiverse.learning.numpy_learner import Dense
from multiverse.learning.optimizers import Adam, Optimizer


class NumpyLayers:
    """What is shown [rows, size], and `more` numbers of each row → [rows, outputs], or, of several copies, [copies,
    rows, outputs]."""

    xp, recurrent = np, False

    def __init__(self, dense: Dense, copies: int) -> None:
        self._dense, self._copies = dense, copies

    def put(self, array: Array) -> Array:
        """Where the network is: it is there."""
        return array

    def output(self, shown: NetworkInput, more: Array | None = None) -> Array:
        """To look at; what an earlier `forward` has kept is gone then."""
        return self.forward(shown, more)  # in buffers: new ones would take longer than what is done in them

    def forward(self, shown: NetworkInput, more: Array | None = None) -> Array:
        """As `output`, and what it takes to go back is kept, for one of the two that follow."""
        return self._dense.forward(given(shown, more, self._dense.inputs))

    def backward(self, grad_output: Array) -> None:
        """From the gradient by the outputs to that by the parameters, where the optimizer takes it."""
        self._dense.backward(grad_output)

    def vector_grad(self, grad_output: Array, columns: slice) -> Array:
        """[rows, columns] from the gradient by the outputs to that by some columns of what it was given, of all copies
        together."""
        return self._dense.input_grad(grad_output, columns)


class NumpyNetwork(NumpyLayers):
    """Layers that learn."""

    def __init__(
        self, spec: NetworkSpec, outputs: int, copies: int, seed: Sequence[int], epsilon: float = 1e-8
    ) -> None:
        self._widths = (spec.size, *spec.hidden_sizes, outputs)
        self._activation, count = spec.activation, count_parameters(self._widths) * max(1, copies)
        self.optimizer: Optimizer = Adam(np, np.zeros(count, np.float32), epsilon)
        super().__init__(self._over(self.optimizer.parameters, self.optimizer.gradient, copies), copies)
        self._dense.begin(np.random.default_rng(seed), ortho_init=False)

    def _over(self, parameters: Array, gradient: Array, copies: int) -> Dense:
        return Dense(FlatParameters(parameters, gradient, copies), self._widths, self._activation, copies)

    def first(self) -> NumpyLayers:
        """The first of the copies alone, with the same parameters."""
        mine = slice(0, len(self.optimizer.parameters) // self._copies)
        return NumpyLayers(self._over(self.optimizer.parameters[mine], self.optimizer.gradient[mine], 0), 0)

    def target(self) -> NumpyTarget:
        """A network that begins as this one and follows it slowly."""
        parameters = self.optimizer.parameters.copy()
        return NumpyTarget(self, parameters, self._over(parameters, parameters, self._copies), self._copies)

    def layers(self) -> list[tuple[Array, Array]]:
        """(weights [in, out], bias) of each, copies, to act with."""
        return [(weights.T.copy(), bias.copy()) for weights, bias, _, _ in self._dense.layers]


class NumpyParameters:
    """Learned numbers that depend on no input, with their optimizer."""

    xp = np

    def __init__(self, first: Array, epsilon: float = 1e-8) -> None:
        self.optimizer: Optimizer = Adam(np, first.copy(), epsilon)

    @property
    def values(self) -> Array:
        """The numbers."""
        return np.asarray(self.optimizer.parameters)

    def exp(self) -> Any:
        """e to the power of the first of them."""
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
    """Layers whose parameters follow another network's."""

    def __init__(self, network: NumpyNetwork, parameters: Array, dense: Dense, copies: int) -> None:
        NumpyLayers.__init__(self, dense, copies)
        SoftUpdated.__init__(self, network.optimizer, parameters)


def given(shown: NetworkInput, more: Array | None, size: int) -> Array:
    """[rows, size] what layers take: of sequences the rows that are asked about, as much as those see of each."""
    vector: Array = shown.vector
    if shown.rows is not None:
        vector = vector[shown.rows, : size - (0 if more is None else more.shape[-1])]
    return vector if more is None else np.concatenate((vector, more), -1)


class FlatParameters:
    """Parameters in the order of layers, those of every copy together."""

    def __init__(self, parameters: Array, gradient: Array, copies: int) -> None:
        self._flat, self._copies, self._at = (parameters, gradient), copies, 0

    def allocate(self, shape: tuple[int, ...]) -> tuple[Any, Any]:
        columns = slice(self._at, self._at + int(np.prod(shape)))
        self._at = columns.stop
        if not self._copies:
            return self._flat[0][columns].reshape(shape), self._flat[1][columns].reshape(shape)
        ours, gradients = (flat.reshape(self._copies, -1)[:, columns] for flat in self._flat)
        return ours.reshape(self._copies, *shape), gradients.reshape(self._copies, *shape)

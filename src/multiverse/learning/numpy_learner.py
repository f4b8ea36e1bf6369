"""A policy and a value network of a few dense layers, with optional recurrent cells and their optimizer, in numpy.

For minibatches of a few hundred rows this takes half the time of torch, whose overhead per call exceeds the time of the
matrix products. Buffers are reused for equal numbers of rows. Parameters have the same order as torch's, so that a run
can be resumed with either.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from multiverse.core.layout import Array
from multiverse.learning.batches import TEAM, Packing, RolloutBatch
from multiverse.learning.cells import CELLS, BufferPool, CellWeights, ParameterAllocator
from multiverse.learning.convolution import Convolution
from multiverse.learning.distributions import distribution_for
from multiverse.learning.initial_weights import cell_weights, dense_weights
from multiverse.learning.loss import Outputs
from multiverse.learning.network_spec import NetworkSpec, count_cell_parameters, count_parameters
from multiverse.learning.optimizers import Optimizer

LossGradientFunction = Callable[[Outputs, RolloutBatch, bool], Any]
"""(outputs, rows, with metrics) → the gradient of a loss by the outputs."""
Layer = tuple[Array, Array, Array, Array]
"""Weights [out, in] and bias, and their gradients."""


class NumpyLearner:
    """Numpy counterpart of `ActorCritic`, without images."""

    xp = np

    def __init__(self, spec: NetworkSpec, optimizer: type[Optimizer], seed: int) -> None:
        self.distribution = distribution_for(spec)
        outputs, gaussian = self.distribution.outputs, isinstance(spec.action_space, spaces.Box)
        kind = None if spec.memory is None else CELLS[spec.memory]
        both = 1 + spec.recurrent_critic
        inward, of_cells = (
            (spec.size, 0) if kind is None else (spec.memory_size, both * count_cell_parameters(spec, kind.gates))
        )
        critic_inputs = inward if spec.recurrent_critic else spec.critic_inputs
        actor, critic = (inward, *spec.hidden, outputs), (critic_inputs, *spec.hidden, 1)
        count = count_parameters(actor) + count_parameters(critic) + of_cells + (outputs if gaussian else 0)
        self.optimizer, self._allocated = optimizer(np, np.zeros(count, np.float32)), 0
        cells = [] if kind is None else [CellWeights(self, kind.gates, spec.size, spec.memory_size)]
        self._actor = Dense(self, actor, spec.activation, convolution=spec.convolution)
        if gaussian:
            self.distribution.log_std, self._grad_log_std = self.allocate((outputs,))
            self.distribution.log_std[...] = spec.log_std_init
        if kind is not None and spec.recurrent_critic:
            cells.append(CellWeights(self, kind.gates, spec.size, spec.memory_size))
        self._critic = Dense(self, critic, spec.activation, convolution=spec.convolution)
        self._cells = None if kind is None else kind(cells)
        rng = np.random.default_rng((seed, 3))
        for weights in cells:
            initialize_cell(weights, rng, spec)
        self._actor.initialize(rng, 0.01, ortho_init=spec.ortho_init)
        self._critic.initialize(rng, ortho_init=spec.ortho_init)

    def allocate(self, shape: tuple[int, ...]) -> tuple[Array, Array]:
        """Return the next parameters of this shape, and their gradients."""
        part = slice(self._allocated, self._allocated + int(np.prod(shape)))
        self._allocated = part.stop
        return self.optimizer.parameters[part].reshape(shape), self.optimizer.gradient[part].reshape(shape)

    # -- inference -----------------------------------------------------------------------------------------------
    def put(self, array: Array) -> Array:
        """Move an array to the device of the networks: here there is nothing to do."""
        return array

    def values(self, vector: Array, images: Sequence[Array]) -> Array:
        """Return the values [rows]."""
        return self._critic.output(vector)[:, 0]

    def recurrent_values(self, vector: Array, images: Sequence[Array], along: Packing) -> tuple[Array, Array]:
        """Return (values [rows] of recurrent networks, their memory [chunks, cells, parts, size] after each chunk)."""
        assert self._cells is not None
        values = self._critic.output(self._cells.forward(vector, along.counts, along.memory)[:, 1])[:, 0]
        return values, self._cells.after(along.last_rows())

    def log_probs(self, batch: RolloutBatch) -> Array:
        """Return the log-probabilities [rows] of the actions in the batch."""
        output = self._actor.output(self._dense_inputs(batch)[0])
        log_probs, _ = self.distribution.log_prob_and_entropy(np, output, batch.actions, batch.masks)
        return np.asarray(log_probs)

    def _dense_inputs(self, batch: RolloutBatch) -> tuple[Array, Array]:
        """Return the inputs of the dense layers of the policy and of the value network."""
        if self._cells is None or batch.packing is None:
            return batch.vector, batch.columns.get(TEAM, batch.vector)
        hidden = self._cells.forward(batch.vector, batch.packing.counts, batch.packing.memory)
        return hidden[:, 0], batch[TEAM] if TEAM in batch.columns else hidden[:, 1]

    # -- learning ------------------------------------------------------------------------------------------------
    def gradient(self, batch: RolloutBatch, loss_gradient: LossGradientFunction, with_metrics: bool = True) -> Any:
        """Write the gradient of a loss into the optimizer's; return the metrics of the loss. `loss_gradient`: a kernel
        that computes its gradient by the outputs."""
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # the optimizer checks the gradient
            actor_inputs, critic_inputs = self._dense_inputs(batch)
            output, values = self._actor.forward(actor_inputs), self._critic.forward(critic_inputs)[:, 0]
            log_probs, entropies = self.distribution.log_prob_and_entropy(np, output, batch.actions, batch.masks)
            grads = loss_gradient(Outputs(log_probs, entropies, values), batch, with_metrics)
            grad_output, grad_log_std = self.distribution.gradient(
                output, batch.actions, batch.masks, grads.log_prob, grads.entropy
            )
            if grad_log_std is not None:
                self._grad_log_std[...] = grad_log_std
            if self._cells is None:
                self._actor.backward(grad_output)
                self._critic.backward(grads.value[:, None])
            else:
                grad_hidden = np.empty((len(batch), len(self._cells.weights), self._cells.size), np.float32)
                self._actor.backward(grad_output, grad_hidden[:, 0])
                self._critic.backward(grads.value[:, None], None if TEAM in batch.columns else grad_hidden[:, 1])
                self._cells.backward(grad_hidden)
        return grads.metrics

    # -- acting --------------------------------------------------------------------------------------------------
    def layers(self) -> list[tuple[Array, Array]]:
        """Return copies of the (weights [in, out], bias) of the policy's layers."""
        return [(weights.T.copy(), bias.copy()) for weights, bias, _, _ in self._actor.layers]

    def cells(self) -> list[list[Array]]:
        """Return copies of the weights of the recurrent cells: the policy's and, if there is one, the value
        network's."""
        return [] if self._cells is None else [[value.copy() for value in cell.values] for cell in self._cells.weights]


class Dense:
    """A few dense layers, forward and backward, in reused buffers. `copies`: number of copies with the same input,
    whose outputs are [copies, rows, …] instead of [rows, …]. The first layer may be a convolution."""

    def __init__(
        self,
        allocator: ParameterAllocator,
        sizes: Sequence[int],
        activation: str,
        copies: int = 0,
        convolution: Convolution | None = None,
    ) -> None:
        self.layers: list[Layer] = []
        for inward, outward in itertools.pairwise(sizes):
            weights, grad_weights = allocator.allocate((outward, inward))
            bias, grad_bias = allocator.allocate((outward,))
            self.layers.append((weights, bias, grad_weights, grad_bias))
        self._widths, self._tanh, self._hidden = sizes, activation == "tanh", sizes[1:-1]
        self._lead = (copies,) if copies else ()
        self._times: Any = np.matmul if copies else np.dot  # matmul takes six times as long for one output
        self._zeros = np.zeros(max(self._hidden, default=0), np.float32)
        self._buffer = BufferPool().get
        self._buffers: dict[int, tuple[list[Array], list[Array], Array]] = {}  # by number of rows, in one pool
        self._inputs: list[Array] = []
        self._convolution = convolution
        self.inputs = sizes[0]

    def initialize(self, rng: np.random.Generator, last_gain: float = 1.0, *, ortho_init: bool) -> None:
        """Set the initial weights."""
        copies = self._lead[0] if self._lead else 1
        initial = dense_weights(
            rng, self._widths, last_gain, ortho_init=ortho_init, copies=copies, convolution=self._convolution
        )
        for (weights, bias, _, _), (initial_weights, initial_bias) in zip(self.layers, initial):
            weights[...], bias[...] = initial_weights, initial_bias

    def output(self, x: Array) -> Array:
        """Return the outputs [rows, outputs], without what `backward` needs."""
        last = len(self.layers) - 1
        for i, (weights, bias, _, _) in enumerate(self.layers):
            x = self._times(x, weights.swapaxes(-1, -2))
            x += bias[..., None, :]
            if i != last:
                self._activate(x)
        return np.asarray(x)

    def forward(self, x: Array) -> Array:
        """Return the outputs [rows, outputs]; keep the inputs of all layers for `backward`."""
        hidden, _, _ = self._buffers_for(len(x))
        self._inputs, last = [x], len(self.layers) - 1
        for (weights, bias, _, _), activations in zip(self.layers, hidden):
            self._times(x, weights.swapaxes(-1, -2), out=activations)
            activations += bias[..., None, :]
            self._activate(activations)
            self._inputs.append(activations)
            x = activations
        weights, bias, _, _ = self.layers[last]
        return np.asarray(self._times(x, weights.swapaxes(-1, -2)) + bias[..., None, :])

    def backward(self, grad_output: Array, grad_input: Array | None = None) -> None:
        """Compute the gradients of all weights and biases from that by the outputs, and write that by the inputs into
        `grad_input`."""
        grad_output = np.asarray(grad_output, np.float32)  # that of binary actions is double
        ones = self._buffers_for(grad_output.shape[-2])[2]
        for i in range(len(self.layers) - 1, -1, -1):
            _, _, grad_weights, grad_bias = self.layers[i]
            self._times(grad_output.swapaxes(-1, -2), self._inputs[i], out=grad_weights)
            self._times(ones, grad_output, out=grad_bias)
            if i:
                grad_output = self._before(i, grad_output)
            elif self._convolution is not None:
                self._convolution.tie(grad_weights, grad_bias, self._convolution.tied)
        if grad_input is not None:
            np.matmul(grad_output, self.layers[0][0], out=grad_input)

    def input_grad(self, grad_output: Array, columns: slice) -> Array:
        """Return the gradient [rows, columns] by these columns of the input, summed over all copies, from that by the
        outputs. The gradients of the weights stay as they are. Call this or `backward`, once after each `forward`.

        Rows in which the gradient by a copy's outputs is 0 are skipped: of two critics, one counts in each row.
        """
        inputs, layers = self._inputs, [weights for weights, _, _, _ in self.layers]
        if not self._lead:
            return self._input_grad(grad_output, inputs, layers)[:, columns]
        grad = np.zeros((len(inputs[0]), *inputs[0][:1, columns].shape[1:]), np.float32)
        for k, grad_copy in enumerate(grad_output):
            rows = np.flatnonzero(grad_copy.any(axis=-1))
            activations = [inputs[0], *(layer_inputs[k][rows] for layer_inputs in inputs[1:])]
            weights = [layer[k] for layer in layers]
            grad[rows] += self._input_grad(grad_copy[rows], activations, [weights[0][:, columns], *weights[1:]])
        return grad

    def _input_grad(self, grad_output: Array, inputs: list[Array], layers: list[Array]) -> Array:
        for weights, activations in zip(layers[:0:-1], inputs[:0:-1]):
            grad_output = grad_output * weights if grad_output.shape[-1] == 1 else grad_output @ weights
            self._through_activation(grad_output, activations)
        return np.asarray(grad_output @ layers[0])

    def _before(self, i: int, grad_output: Array) -> Array:
        """Return the gradient by the outputs of the layer before layer i, without its activation, from that by the
        outputs of layer i."""
        grad, weights = self._buffers_for(grad_output.shape[-2])[1][i - 1], self.layers[i][0]
        multiply = np.multiply if grad_output.shape[-1] == 1 else self._times  # the same result, four times as fast
        multiply(grad_output, weights, out=grad)
        self._through_activation(grad, self._inputs[i])
        return grad

    def _through_activation(self, grad: Array, activations: Array) -> None:
        """Multiply the gradient, in place, by the derivative of the activation."""
        if self._tanh:
            activations *= activations  # in place: they are not needed again, and a new array would cost as much
            np.subtract(np.float32(1), activations, out=activations)
            grad *= activations
        else:
            grad *= activations > 0

    def _activate(self, x: Array) -> None:
        if self._tanh:
            np.tanh(x, out=x)
        else:
            np.maximum(x, self._zeros[: x.shape[-1]], out=x)  # twice as fast as with a scalar

    def _buffers_for(self, rows: int) -> tuple[list[Array], list[Array], Array]:
        """Return (activations, their gradients, ones) for this number of rows."""
        if rows not in self._buffers:
            if len(self._buffers) > 8 or rows > max(self._buffers, default=0):  # after lost rows there are many sizes
                self._buffers.clear()
            shapes = [(*self._lead, rows, width) for width in self._hidden]
            activations = [self._buffer(f"activations {i}", shape) for i, shape in enumerate(shapes)]
            grads = [self._buffer(f"gradients {i}", shape) for i, shape in enumerate(shapes)]
            self._buffers[rows] = activations, grads, np.ones(rows, np.float32)
        return self._buffers[rows]


def initialize_cell(cell: CellWeights, rng: np.random.Generator, spec: NetworkSpec) -> None:
    """Set the initial weights of a recurrent cell."""
    for value, initial in zip(cell.values, cell_weights(rng, spec, [value.shape for value in cell.values])):
        value[...] = initial

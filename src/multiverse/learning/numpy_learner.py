"""A policy and a value network of a few dense layers, and recurrent cells if asked for, with their optimizer, in numpy.

For minibatches of a few hundred rows, half of what torch takes: what torch spends on each call weighs more than the
matrix products. Buffers are laid out once for each number of rows. Parameters lie in the same order as torch's, so that
a run may go on with either.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from gymnasium import spaces

from multiverse.core.views import Array
from multiverse.learning.batches import TEAM, Packing, RolloutBatch
from multiverse.learning.cells import CELLS, BufferPool, CellWeights
from multiverse.learning.convolution import Convolution
from multiverse.learning.distributions import distribution_for
from multiverse.learning.initial_weights import cell_weights, dense_weights
from multiverse.learning.loss import Outputs
from multiverse.learning.network_spec import NetworkSpec, count_cell_parameters, count_parameters
from multiverse.learning.optimizers import Optimizer

LossGradientFunction = Callable[[Outputs, RolloutBatch, bool], Any]
"""(outputs, rows, whether metrics are asked for) → the gradient of a loss by the outputs."""
Layer = tuple[Array, Array, Array, Array]
"""Weights [out, in] and bias, and where their gradients go."""


class ParameterAllocator(Protocol):
    """Whoever has the parameters."""

    def allocate(self, shape: tuple[int, ...]) -> tuple[Array, Array]:
        """The next parameters of this shape, and their gradients."""


class NumpyLearner:
    """What `ActorCritic` is in torch, without images."""

    xp = np

    def __init__(self, spec: NetworkSpec, optimizer: type[Optimizer], seed: int) -> None:
        self.distribution = distribution_for(spec)
        outputs, gaussian = self.distribution.outputs, isinstance(spec.action_space, spaces.Box)
        kind = None if spec.memory is None else CELLS[spec.memory]
        both = 1 + spec.recurrent_critic
        inward, of_cells = (
            (spec.size, 0) if kind is None else (spec.memory_size, both * count_cell_parameters(spec, kind.gates))
        )
        judged = inward if spec.recurrent_critic else spec.critic_inputs
        actor, critic = (inward, *spec.hidden, outputs), (judged, *spec.hidden, 1)
        count = count_parameters(actor) + count_parameters(critic) + of_cells + (outputs if gaussian else 0)
        self.optimizer, self._at = optimizer(np, np.zeros(count, np.float32)), 0
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
            begin_cell(weights, rng, spec)
        self._actor.begin(rng, 0.01, ortho_init=spec.ortho_init)
        self._critic.begin(rng, ortho_init=spec.ortho_init)

    def allocate(self, shape: tuple[int, ...]) -> tuple[Array, Array]:
        """The next parameters of this shape, and their gradients."""
        rows = slice(self._at, self._at + int(np.prod(shape)))
        self._at = rows.stop
        return self.optimizer.parameters[rows].reshape(shape), self.optimizer.gradient[rows].reshape(shape)

    # -- looking -------------------------------------------------------------------------------------------------
    def put(self, array: Array) -> Array:
        """Where the networks are: it is there."""
        return array

    def values(self, vector: Array, images: Sequence[Array]) -> Array:
        """[rows]"""
        return self._critic.output(vector)[:, 0]

    def recurrent_values(self, vector: Array, images: Sequence[Array], along: Packing) -> tuple[Array, Array]:
        """([rows] of networks that remember, [chunks, cells, parts, size] what they do after each chunk)."""
        assert self._cells is not None
        values = self._critic.output(self._cells.forward(vector, along.counts, along.memory)[:, 1])[:, 0]
        return values, self._cells.after(along.last_rows())

    def log_probs(self, batch: RolloutBatch) -> Array:
        """[rows] of the actions in the batch."""
        output = self._actor.output(self._seen(batch)[0])
        found, _ = self.distribution.log_prob_and_entropy(np, output, batch.actions, batch.masks)
        return np.asarray(found)

    def _seen(self, batch: RolloutBatch) -> tuple[Array, Array]:
        """What the dense layers of the policy and of the value see."""
        if self._cells is None or batch.packing is None:
            return batch.vector, batch.columns.get(TEAM, batch.vector)
        hidden = self._cells.forward(batch.vector, batch.packing.counts, batch.packing.memory)
        return hidden[:, 0], batch[TEAM] if TEAM in batch.columns else hidden[:, 1]

    # -- learning ------------------------------------------------------------------------------------------------
    def gradient(self, batch: RolloutBatch, loss_gradient: LossGradientFunction, with_metrics: bool = True) -> Any:
        """Put the gradient of a loss where the optimizer takes it; returns the metrics of the loss. `loss_gradient`:
        its gradient by the outputs, a kernel."""
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # noticed where the gradient is
            to_actor, to_critic = self._seen(batch)
            output, values = self._actor.forward(to_actor), self._critic.forward(to_critic)[:, 0]
            log_probs, entropies = self.distribution.log_prob_and_entropy(np, output, batch.actions, batch.masks)
            found = loss_gradient(Outputs(log_probs, entropies, values), batch, with_metrics)
            grad_output, grad_log_std = self.distribution.gradient(
                output, batch.actions, batch.masks, found.grad_log_prob, found.grad_entropy
            )
            if grad_log_std is not None:
                self._grad_log_std[...] = grad_log_std
            if self._cells is None:
                self._actor.backward(grad_output)
                self._critic.backward(found.grad_value[:, None])
            else:
                grad_hidden = np.empty((len(batch), len(self._cells.weights), self._cells.size), np.float32)
                self._actor.backward(grad_output, grad_hidden[:, 0])
                self._critic.backward(found.grad_value[:, None], None if TEAM in batch.columns else grad_hidden[:, 1])
                self._cells.backward(grad_hidden)
        return found.metrics

    # -- acting --------------------------------------------------------------------------------------------------
    def layers(self) -> list[tuple[Array, Array]]:
        """(weights [in, out], bias) of the policy's layers, copies."""
        return [(weights.T.copy(), bias.copy()) for weights, bias, _, _ in self._actor.layers]

    def cells(self) -> list[list[Array]]:
        """The weights of the policy's recurrent cell and of the value's, if it has one, copies."""
        return [] if self._cells is None else [[one.copy() for one in cell.values] for cell in self._cells.weights]


class Dense:
    """A few layers, forward and backward, in buffers that are kept. `copies` of them see the same rows side by side:
    what is [rows, …] of one is [copies, rows, …] then. The first layer may be a convolution."""

    def __init__(
        self,
        owner: ParameterAllocator,
        sizes: Sequence[int],
        activation: str,
        copies: int = 0,
        convolution: Convolution | None = None,
    ) -> None:
        self.layers: list[Layer] = []
        for inward, outward in itertools.pairwise(sizes):
            weights, grad_weights = owner.allocate((outward, inward))
            bias, grad_bias = owner.allocate((outward,))
            self.layers.append((weights, bias, grad_weights, grad_bias))
        self._widths, self._tanh, self._hidden = sizes, activation == "tanh", sizes[1:-1]
        self._lead = (copies,) if copies else ()
        self._times: Any = np.matmul if copies else np.dot  # of one output, matmul would take six times as long
        self._zeros = np.zeros(max(self._hidden, default=0), np.float32)
        self._buffer = BufferPool().get
        self._buffers: dict[int, tuple[list[Array], list[Array], Array]] = {}  # by rows, in the same rooms
        self._inputs: list[Array] = []
        self._convolution = convolution
        self.inputs = sizes[0]

    def begin(self, rng: np.random.Generator, last_gain: float = 1.0, *, ortho_init: bool) -> None:
        """Set the first weights."""
        copies = self._lead[0] if self._lead else 1
        first = dense_weights(
            rng, self._widths, last_gain, ortho_init=ortho_init, copies=copies, convolution=self._convolution
        )
        for (weights, bias, _, _), (first_weights, first_bias) in zip(self.layers, first):
            weights[...], bias[...] = first_weights, first_bias

    def output(self, x: Array) -> Array:
        """[rows, outputs], nothing kept."""
        last = len(self.layers) - 1
        for i, (weights, bias, _, _) in enumerate(self.layers):
            x = self._times(x, weights.swapaxes(-1, -2))
            x += bias[..., None, :]
            if i != last:
                self._activate(x)
        return np.asarray(x)

    def forward(self, x: Array) -> Array:
        """[rows, outputs]; what each layer was given is kept for `backward`."""
        hidden, _, _ = self._room_for(len(x))
        self._inputs, last = [x], len(self.layers) - 1
        for (weights, bias, _, _), room in zip(self.layers, hidden):
            self._times(x, weights.swapaxes(-1, -2), out=room)
            room += bias[..., None, :]
            self._activate(room)
            self._inputs.append(room)
            x = room
        weights, bias, _, _ = self.layers[last]
        return np.asarray(self._times(x, weights.swapaxes(-1, -2)) + bias[..., None, :])

    def backward(self, grad_output: Array, grad_input: Array | None = None) -> None:
        """From the gradient by the outputs to that of every weight and bias, and to that by the inputs if it is asked
        for."""
        grad_output = np.asarray(grad_output, np.float32)  # of whole numbers, as of yes or no, it is double
        ones = self._room_for(grad_output.shape[-2])[2]
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
        """[rows, columns] from the gradient by the outputs to that by these columns of what the layers were given, of
        all copies together; the weights' is left as it is. Either this or `backward`, once after each `forward`.

        A copy does nothing for rows of which its output does not count: of two critics, one does for each row.
        """
        given, layers = self._inputs, [weights for weights, _, _, _ in self.layers]
        if not self._lead:
            return self._back_to_input(grad_output, given, layers)[:, columns]
        found = np.zeros((len(given[0]), *given[0][:1, columns].shape[1:]), np.float32)
        for k, mine in enumerate(grad_output):
            rows = np.flatnonzero(mine.any(axis=-1))
            inputs, weights = [given[0], *(one[k][rows] for one in given[1:])], [one[k] for one in layers]
            found[rows] += self._back_to_input(mine[rows], inputs, [weights[0][:, columns], *weights[1:]])
        return found

    def _back_to_input(self, grad_output: Array, given: list[Array], layers: list[Array]) -> Array:
        for weights, said in zip(layers[:0:-1], given[:0:-1]):
            grad_output = grad_output * weights if grad_output.shape[-1] == 1 else grad_output @ weights
            self._through_activation(grad_output, said)
        return np.asarray(grad_output @ layers[0])

    def _before(self, i: int, grad_output: Array) -> Array:
        """From the gradient by what layer i said to that by what the layer before it said, ahead of its activation."""
        room, weights = self._room_for(grad_output.shape[-2])[1][i - 1], self.layers[i][0]
        multiply = np.multiply if grad_output.shape[-1] == 1 else self._times  # the same, in a quarter of the time
        multiply(grad_output, weights, out=room)
        self._through_activation(room, self._inputs[i])
        return room

    def _through_activation(self, grad_said: Array, said: Array) -> None:
        if self._tanh:
            said *= said  # in place: nobody asks for it again, and each new array would cost as much as this
            np.subtract(np.float32(1), said, out=said)
            grad_said *= said
        else:
            grad_said *= said > 0

    def _activate(self, x: Array) -> None:
        if self._tanh:
            np.tanh(x, out=x)
        else:
            np.maximum(x, self._zeros[: x.shape[-1]], out=x)  # of an array: half of what it takes of a number

    def _room_for(self, rows: int) -> tuple[list[Array], list[Array], Array]:
        if rows not in self._buffers:
            if len(self._buffers) > 8 or rows > max(self._buffers, default=0):  # lost rows make odd sizes
                self._buffers.clear()
            shapes = [(*self._lead, rows, width) for width in self._hidden]
            rooms = [[self._buffer(f"{way} {i}", shape) for i, shape in enumerate(shapes)] for way in ("said", "by")]
            self._buffers[rows] = rooms[0], rooms[1], np.ones(rows, np.float32)
        return self._buffers[rows]


def begin_cell(cell: CellWeights, rng: np.random.Generator, spec: NetworkSpec) -> None:
    """Set the first weights of a recurrent cell."""
    for value, first in zip(cell.values, cell_weights(rng, spec, [value.shape for value in cell.values])):
        value[...] = first

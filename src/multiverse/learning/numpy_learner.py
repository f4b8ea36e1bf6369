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
from multiverse.learning.cells import CELLS, Rooms, Weights
from multiverse.learning.chunks import Along
from multiverse.learning.convolution import Convolution
from multiverse.learning.distributions import distribution_for
from multiverse.learning.initial_weights import cell_weights, dense_weights
from multiverse.learning.loss import TEAM, Outputs, RolloutBatch, Shape, of_cell, parameters_of
from multiverse.learning.optimizers import Optimizer

LossGradientOf = Callable[[Outputs, RolloutBatch, bool], Any]
"""(outputs, rows, whether metrics are asked for) → the gradient of a loss by the outputs."""
Layer = tuple[Array, Array, Array, Array]
"""Weights [out, in] and bias, and where their gradients go."""


class Owner(Protocol):
    """Whoever has the parameters."""

    def part(self, shape: tuple[int, ...]) -> tuple[Array, Array]:
        """The next parameters of this shape, and their gradients."""


class NumpyLearner:
    """What `ActorCritic` is in torch, without images."""

    xp = np

    def __init__(self, shape: Shape, optimizer: type[Optimizer], seed: int) -> None:
        self.distribution = distribution_for(shape)
        outputs, gaussian = self.distribution.outputs, isinstance(shape.action_space, spaces.Box)
        kind = None if shape.memory is None else CELLS[shape.memory]
        both = 1 + shape.critic_remembers
        inward, of_cells = (shape.size, 0) if kind is None else (shape.memory_size, both * of_cell(shape, kind.gates))
        judged = inward if shape.critic_remembers else shape.judged
        actor, critic = (inward, *shape.hidden, outputs), (judged, *shape.hidden, 1)
        count = parameters_of(actor) + parameters_of(critic) + of_cells + (outputs if gaussian else 0)
        self.optimizer, self._at = optimizer(np, np.zeros(count, np.float32)), 0
        cells = [] if kind is None else [Weights(self, kind.gates, shape.size, shape.memory_size)]
        self._actor = Dense(self, actor, shape.activation, convolution=shape.convolution)
        if gaussian:
            self.distribution.log_std, self._by_log_std = self.part((outputs,))
            self.distribution.log_std[...] = shape.log_std_init
        if kind is not None and shape.critic_remembers:
            cells.append(Weights(self, kind.gates, shape.size, shape.memory_size))
        self._critic = Dense(self, critic, shape.activation, convolution=shape.convolution)
        self._cells = None if kind is None else kind(cells)
        rng = np.random.default_rng((seed, 3))
        for weights in cells:
            begin_cell(weights, rng, shape)
        self._actor.begin(rng, 0.01, ortho_init=shape.ortho_init)
        self._critic.begin(rng, ortho_init=shape.ortho_init)

    def part(self, shape: tuple[int, ...]) -> tuple[Array, Array]:
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

    def values_along(self, vector: Array, images: Sequence[Array], along: Along) -> tuple[Array, Array]:
        """([rows] of networks that remember, [chunks, cells, parts, size] what they do after each chunk)."""
        assert self._cells is not None
        values = self._critic.output(self._cells.forward(vector, along.counts, along.memory)[:, 1])[:, 0]
        return values, self._cells.after(along.lasts())

    def log_probs(self, batch: RolloutBatch) -> Array:
        """[rows] of the actions in the batch."""
        output = self._actor.output(self._seen(batch)[0])
        found, _ = self.distribution.log_prob_and_entropy(np, output, batch.actions, batch.masks)
        return np.asarray(found)

    def _seen(self, batch: RolloutBatch) -> tuple[Array, Array]:
        """What the dense layers of the policy and of the value see."""
        if self._cells is None or batch.along is None:
            return batch.vector, batch.columns.get(TEAM, batch.vector)
        hidden = self._cells.forward(batch.vector, batch.along.counts, batch.along.memory)
        return hidden[:, 0], batch[TEAM] if TEAM in batch.columns else hidden[:, 1]

    # -- learning ------------------------------------------------------------------------------------------------
    def gradient(self, batch: RolloutBatch, loss_gradient: LossGradientOf, with_metrics: bool = True) -> Any:
        """Put the gradient of a loss where the optimizer takes it; returns the metrics of the loss. `loss_gradient`:
        its gradient by the outputs, a kernel."""
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # noticed where the gradient is
            to_actor, to_critic = self._seen(batch)
            output, values = self._actor.forward(to_actor), self._critic.forward(to_critic)[:, 0]
            log_probs, entropies = self.distribution.log_prob_and_entropy(np, output, batch.actions, batch.masks)
            found = loss_gradient(Outputs(log_probs, entropies, values), batch, with_metrics)
            by_output, by_log_std = self.distribution.gradient(
                output, batch.actions, batch.masks, found.by_log_prob, found.by_entropy
            )
            if by_log_std is not None:
                self._by_log_std[...] = by_log_std
            if self._cells is None:
                self._actor.backward(by_output)
                self._critic.backward(found.by_value[:, None])
            else:
                by_hidden = np.empty((len(batch), len(self._cells.weights), self._cells.size), np.float32)
                self._actor.backward(by_output, by_hidden[:, 0])
                self._critic.backward(found.by_value[:, None], None if TEAM in batch.columns else by_hidden[:, 1])
                self._cells.backward(by_hidden)
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
        owner: Owner,
        sizes: Sequence[int],
        activation: str,
        copies: int = 0,
        convolution: Convolution | None = None,
    ) -> None:
        self.layers: list[Layer] = []
        for inward, outward in itertools.pairwise(sizes):
            weights, by_weights = owner.part((outward, inward))
            bias, by_bias = owner.part((outward,))
            self.layers.append((weights, bias, by_weights, by_bias))
        self._widths, self._tanh, self._hidden = sizes, activation == "tanh", sizes[1:-1]
        self._lead = (copies,) if copies else ()
        self._times: Any = np.matmul if copies else np.dot  # of one output, matmul would take six times as long
        self._zeros = np.zeros(max(self._hidden, default=0), np.float32)
        self._room = Rooms().room
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

    def backward(self, by_output: Array, by_input: Array | None = None) -> None:
        """From the gradient by the outputs to that of every weight and bias, and to that by the inputs if it is asked
        for."""
        by_output = np.asarray(by_output, np.float32)  # of whole numbers, as of yes or no, it is double
        ones = self._room_for(by_output.shape[-2])[2]
        for i in range(len(self.layers) - 1, -1, -1):
            _, _, by_weights, by_bias = self.layers[i]
            self._times(by_output.swapaxes(-1, -2), self._inputs[i], out=by_weights)
            self._times(ones, by_output, out=by_bias)
            if i:
                by_output = self._before(i, by_output)
            elif self._convolution is not None:
                self._convolution.tie(by_weights, by_bias, self._convolution.tied)
        if by_input is not None:
            np.matmul(by_output, self.layers[0][0], out=by_input)

    def by_input(self, by_output: Array, columns: slice) -> Array:
        """[rows, columns] from the gradient by the outputs to that by these columns of what the layers were given, of
        all copies together; the weights' is left as it is. Either this or `backward`, once after each `forward`.

        A copy does nothing for rows of which its output does not count: of two critics, one does for each row.
        """
        given, layers = self._inputs, [weights for weights, _, _, _ in self.layers]
        if not self._lead:
            return self._back_to_input(by_output, given, layers)[:, columns]
        found = np.zeros((len(given[0]), *given[0][:1, columns].shape[1:]), np.float32)
        for k, mine in enumerate(by_output):
            rows = np.flatnonzero(mine.any(axis=-1))
            inputs, weights = [given[0], *(one[k][rows] for one in given[1:])], [one[k] for one in layers]
            found[rows] += self._back_to_input(mine[rows], inputs, [weights[0][:, columns], *weights[1:]])
        return found

    def _back_to_input(self, by_output: Array, given: list[Array], layers: list[Array]) -> Array:
        for weights, said in zip(layers[:0:-1], given[:0:-1]):
            by_output = by_output * weights if by_output.shape[-1] == 1 else by_output @ weights
            self._through_activation(by_output, said)
        return np.asarray(by_output @ layers[0])

    def _before(self, i: int, by_output: Array) -> Array:
        """From the gradient by what layer i said to that by what the layer before it said, ahead of its activation."""
        room, weights = self._room_for(by_output.shape[-2])[1][i - 1], self.layers[i][0]
        multiply = np.multiply if by_output.shape[-1] == 1 else self._times  # the same, in a quarter of the time
        multiply(by_output, weights, out=room)
        self._through_activation(room, self._inputs[i])
        return room

    def _through_activation(self, by_said: Array, said: Array) -> None:
        if self._tanh:
            said *= said  # in place: nobody asks for it again, and each new array would cost as much as this
            np.subtract(np.float32(1), said, out=said)
            by_said *= said
        else:
            by_said *= said > 0

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
            rooms = [[self._room(f"{way} {i}", shape) for i, shape in enumerate(shapes)] for way in ("said", "by")]
            self._buffers[rows] = rooms[0], rooms[1], np.ones(rows, np.float32)
        return self._buffers[rows]


def begin_cell(cell: Weights, rng: np.random.Generator, shape: Shape) -> None:
    """Set the first weights of a recurrent cell."""
    for value, first in zip(cell.values, cell_weights(rng, shape, [value.shape for value in cell.values])):
        value[...] = first

"""A policy and a value network of a few dense layers with their optimizer, in numpy.

For minibatches of a few hundred rows, half of what torch takes: what torch spends on each call weighs more than the
matrix products. Buffers are laid out once for each number of rows. Parameters lie in the same order as torch's, so that
a run may go on with either.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from gymnasium import spaces

from multiverse.contracts.errors import InvalidRequest
from multiverse.contracts.views import Array
from multiverse.learning.distributions import distribution_for
from multiverse.learning.loss import Batch, Loss, Outputs, Shape, check_size

FIRST_DECAY, SECOND_DECAY = np.float32(0.9), np.float32(0.999)
Layer = tuple[Array, Array, Array, Array]
"""Weights [out, in] and bias, and where their gradients go."""


class NumpyLearner:
    """What `ActorCritic` is in torch."""

    device = "cpu"

    def __init__(
        self,
        size: int,
        action_space: spaces.Space[Any],
        shape: Shape,
        optimizer: Literal["adam", "rmsprop"],
        learning_rate: float,
        seed: int,
    ) -> None:
        self.distribution = distribution_for(action_space, shape)
        actor, critic = (size, *shape.hidden_sizes, self.distribution.outputs), (size, *shape.hidden_sizes, 1)
        check_size(actor)
        gaussian = isinstance(action_space, spaces.Box)
        count = _parameters(actor) + _parameters(critic) + (self.distribution.outputs if gaussian else 0)
        self._flat, self._gradient = np.zeros(count, np.float32), np.zeros(count, np.float32)
        self._at = 0
        self._actor = Dense(self, actor, shape.activation)
        if gaussian:
            self.distribution.log_std, self._by_log_std = self.part((self.distribution.outputs,))
            self.distribution.log_std[...] = shape.log_std_init
        self._critic = Dense(self, critic, shape.activation)
        rng = np.random.default_rng((seed, 3))
        self._actor.begin(rng, 0.01, shape.ortho_init)
        self._critic.begin(rng, 1.0, shape.ortho_init)
        self.optimizer = (Adam if optimizer == "adam" else RMSprop)(self._flat, self._gradient, learning_rate)

    def part(self, shape: tuple[int, ...]) -> tuple[Array, Array]:
        """The next parameters of this shape, and their gradients."""
        rows = slice(self._at, self._at + int(np.prod(shape)))
        self._at = rows.stop
        return self._flat[rows].reshape(shape), self._gradient[rows].reshape(shape)

    # -- looking -------------------------------------------------------------------------------------------------
    def batch(
        self, vector: Array, images: Sequence[Array], actions: Array, masks: Array | None, **columns: Any
    ) -> Batch:
        return Batch(np.ascontiguousarray(vector), [], actions, masks, **columns)

    def values(self, vector: Array, images: Sequence[Array]) -> Array:
        return self._critic.output(vector)[:, 0]

    def log_probs(self, batch: Batch) -> Array:
        output = self._actor.output(batch.vector)
        found, _ = self.distribution.log_prob_and_entropy(np, output, batch.actions, batch.masks)
        return np.asarray(found)

    def rows(self, indices: Array) -> Array:
        return indices

    # -- learning ------------------------------------------------------------------------------------------------
    def gradient(self, batch: Batch, loss: Loss) -> Any:
        """Put the gradient of this loss where the optimizer takes it; returns the loss's parts."""
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # noticed where the gradient is
            output, values = self._actor.forward(batch.vector), self._critic.forward(batch.vector)[:, 0]
            log_probs, entropies = self.distribution.log_prob_and_entropy(np, output, batch.actions, batch.masks)
            found = loss(np, Outputs(log_probs, entropies, values), batch)
            by_output, by_log_std = self.distribution.gradient(
                np, output, batch.actions, batch.masks, found.by_log_prob, found.by_entropy
            )
            if by_log_std is not None:
                self._by_log_std[...] = by_log_std
            self._actor.backward(by_output)
            self._critic.backward(found.by_value[:, None])
        return found.parts

    # -- its weights ---------------------------------------------------------------------------------------------
    def layers(self) -> list[tuple[Array, Array]]:
        return [(weights.T.copy(), bias.copy()) for weights, bias, _, _ in self._actor.layers]

    def std(self) -> Array | None:
        log_std = self.distribution.log_std
        return None if log_std is None else np.asarray(np.exp(log_std))

    def weights(self) -> Array:
        return self._flat.copy()

    def load_weights(self, parameters: Any) -> None:
        given = np.asarray(parameters)
        if given.shape != self._flat.shape:  # guard: sizes-are-compared-in-numpy
            raise InvalidRequest(
                f"the saved algorithm has {len(given)} parameters and this one {len(self._flat)}: its networks have "
                "other sizes"
            )
        self._flat[...] = given

    def state(self) -> dict[str, Any]:
        return self.optimizer.state()

    def load(self, state: Mapping[str, Any]) -> None:
        self.optimizer.load(state)


class Dense:
    """A few layers, forward and backward, in buffers that are kept."""

    def __init__(self, owner: NumpyLearner, sizes: Sequence[int], activation: str) -> None:
        self.layers: list[Layer] = []
        for inward, outward in itertools.pairwise(sizes):
            weights, by_weights = owner.part((outward, inward))
            bias, by_bias = owner.part((outward,))
            self.layers.append((weights, bias, by_weights, by_bias))
        self._tanh, self._hidden = activation == "tanh", sizes[1:-1]
        self._buffers: dict[int, tuple[list[Array], list[Array], Array]] = {}  # by rows
        self._inputs: list[Array] = []

    def begin(self, rng: np.random.Generator, last_gain: float, orthogonal: bool) -> None:
        """The first weights; biases are zero, or (not orthogonal) as torch begins."""
        last = len(self.layers) - 1
        for i, (weights, bias, _, _) in enumerate(self.layers):
            if orthogonal:
                weights[...] = _orthogonal(rng, weights.shape) * (last_gain if i == last else np.sqrt(2))
            else:
                limit = 1 / np.sqrt(weights.shape[1])
                weights[...], bias[...] = (
                    rng.uniform(-limit, limit, weights.shape),
                    rng.uniform(-limit, limit, len(bias)),
                )

    def output(self, x: Array) -> Array:
        """[rows, outputs], nothing kept."""
        last = len(self.layers) - 1
        for i, (weights, bias, _, _) in enumerate(self.layers):
            x = x @ weights.T
            x += bias
            if i != last:
                self._activate(x)
        return np.asarray(x)

    def forward(self, x: Array) -> Array:
        """[rows, outputs]; what each layer was given is kept for `backward`."""
        hidden, _, _ = self._room_for(len(x))
        self._inputs, last = [x], len(self.layers) - 1
        for (weights, bias, _, _), room in zip(self.layers, hidden):
            np.matmul(x, weights.T, out=room)
            room += bias
            self._activate(room)
            self._inputs.append(room)
            x = room
        weights, bias, _, _ = self.layers[last]
        return np.asarray(x @ weights.T + bias)

    def backward(self, by_output: Array) -> None:
        """From the gradient by the outputs to that of every weight and bias."""
        _, rooms, ones = self._room_for(len(by_output))
        for i in range(len(self.layers) - 1, -1, -1):
            weights, _, by_weights, by_bias = self.layers[i]
            given = self._inputs[i]
            np.matmul(by_output.T, given, out=by_weights)
            np.matmul(ones, by_output, out=by_bias)
            if i:
                room = rooms[i - 1]
                np.matmul(by_output, weights, out=room)
                if self._tanh:
                    room *= 1 - given * given
                else:
                    room *= given > 0
                by_output = room

    def _activate(self, x: Array) -> None:
        if self._tanh:
            np.tanh(x, out=x)
        else:
            np.maximum(x, np.float32(0), out=x)

    def _room_for(self, rows: int) -> tuple[list[Array], list[Array], Array]:
        if rows not in self._buffers:
            if len(self._buffers) > 8:  # lost rows make odd sizes
                self._buffers.clear()
            shapes = [(rows, width) for width in self._hidden]
            rooms = [[np.empty(shape, np.float32) for shape in shapes] for _ in range(2)]
            self._buffers[rows] = rooms[0], rooms[1], np.ones(rows, np.float32)
        return self._buffers[rows]


class _Optimizer:
    """One step down the gradient of all parameters."""

    def __init__(self, flat: Array, gradient: Array, learning_rate: float) -> None:
        self._flat, self.gradient, self.learning_rate = flat, gradient, learning_rate
        self._room = np.empty_like(flat)

    def step(self, max_norm: float) -> float:
        """Clipped to that norm; returns the norm before. A gradient that is not finite changes nothing."""
        norm = float(np.sqrt(np.dot(self.gradient, self.gradient)))
        if not np.isfinite(norm):  # guard: gradients-are-finite-in-numpy
            return norm
        if norm > max_norm:
            self.gradient *= np.float32(max_norm / (norm + 1e-6))
        self._descend()
        return norm

    def _descend(self) -> None:
        raise NotImplementedError


class Adam(_Optimizer):
    """Adam (Kingma and Ba 2015)."""

    def __init__(self, flat: Array, gradient: Array, learning_rate: float, epsilon: float = 1e-5) -> None:
        super().__init__(flat, gradient, learning_rate)
        self._epsilon, self._steps = np.float32(epsilon), 0
        self._first, self._second = np.zeros_like(flat), np.zeros_like(flat)

    def _descend(self) -> None:
        self._steps += 1
        gradient, room = self.gradient, self._room
        np.subtract(gradient, self._first, out=room)
        room *= 1 - FIRST_DECAY
        self._first += room
        self._second *= SECOND_DECAY
        np.multiply(gradient, gradient, out=room)
        room *= 1 - SECOND_DECAY
        self._second += room
        np.divide(self._second, np.float32(1 - 0.999**self._steps), out=room)
        np.sqrt(room, out=room)
        room += self._epsilon
        np.divide(self._first, room, out=room)
        room *= np.float32(self.learning_rate / (1 - 0.9**self._steps))
        self._flat -= room

    def state(self) -> dict[str, Any]:
        return {"first": self._first.copy(), "second": self._second.copy(), "steps": self._steps}

    def load(self, state: Mapping[str, Any]) -> None:
        first, second = np.asarray(state["first"]), np.asarray(state["second"])
        if not first.shape == second.shape == self._flat.shape or int(state["steps"]) < 0:
            raise ValueError("the moments do not belong to the parameters")
        self._first[...], self._second[...], self._steps = first, second, int(state["steps"])


class RMSprop(_Optimizer):
    """RMSprop (Hinton 2012), without momentum."""

    def __init__(self, flat: Array, gradient: Array, learning_rate: float, epsilon: float = 1e-5) -> None:
        super().__init__(flat, gradient, learning_rate)
        self._decay, self._epsilon, self._squares = np.float32(0.99), np.float32(epsilon), np.zeros_like(flat)

    def _descend(self) -> None:
        room = self._room
        self._squares *= self._decay
        np.multiply(self.gradient, self.gradient, out=room)
        room *= 1 - self._decay
        self._squares += room
        np.sqrt(self._squares, out=room)
        room += self._epsilon
        np.divide(self.gradient, room, out=room)
        room *= np.float32(self.learning_rate)
        self._flat -= room

    def state(self) -> dict[str, Any]:
        return {"squares": self._squares.copy()}

    def load(self, state: Mapping[str, Any]) -> None:
        self._squares[...] = state["squares"]


def _parameters(sizes: Sequence[int]) -> int:
    return sum((inward + 1) * outward for inward, outward in itertools.pairwise(sizes))


def _orthogonal(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """A random matrix whose rows, or columns where those are fewer, are orthonormal (Saxe et al. 2013)."""
    rows, columns = shape
    q, r = np.linalg.qr(rng.standard_normal((max(shape), min(shape))))
    q = q * np.sign(np.diag(r))
    return np.asarray(q if rows >= columns else q.T)

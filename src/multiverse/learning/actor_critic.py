"""A policy and a value network with one optimizer, in torch: what PPO and A2C learn with.

It knows no algorithm: a loss is a function of what the networks say, which also gives its gradient by them; this
backpropagates it, by hand through dense networks (half of what recording costs), by autograd through convolutions.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from multiverse.contracts.errors import InvalidRequest
from multiverse.contracts.views import Array
from multiverse.learning.distributions import (
    Bernoulli,
    Categorical,
    DiagonalGaussian,
    Distribution,
    MultiCategorical,
    SquashedGaussian,
)
from multiverse.learning.flat_parameters import FlatAdam, FlatRMSprop
from multiverse.learning.networks import Activation, DensePass, Network, torch_threads

PIECE_ROWS = 2048
"""Of a whole rollout, so many rows go through the networks at once: memory stays bounded for images too."""
_ONE_AT_A_TIME = threading.Lock()  # torch's generator is the process's: networks built in threads would share it


@dataclass(frozen=True)
class Shape:
    """What the networks look like."""

    hidden_sizes: tuple[int, ...]
    activation: Activation
    log_std_init: float = 0.0
    ortho_init: bool = True
    squash: bool = False


class Outputs(NamedTuple):
    """What the networks say of some rows."""

    log_probs: Any  # [rows] of the actions taken
    entropies: Any  # [rows]
    values: Any  # [rows]


class LossGradient(NamedTuple):
    """A loss, by what the networks say."""

    by_log_prob: Any  # [rows]
    by_entropy: float  # the same for every row
    by_value: Any  # [rows]
    parts: Any  # what is worth telling of the loss; None if nobody looks


Loss = Callable[[Any, Outputs, "Batch"], LossGradient]
"""(the array library, outputs, the rows) → its gradient."""


class Batch:
    """Rows to learn from: inputs, actions, and whatever columns the algorithm has for them."""

    def __init__(
        self, vector: Tensor, images: list[Tensor], actions: Tensor, masks: Tensor | None, **columns: Tensor
    ) -> None:
        self.vector, self.images, self.actions, self.masks, self.columns = vector, images, actions, masks, columns

    def __len__(self) -> int:
        return len(self.actions)

    def __getitem__(self, name: str) -> Any:
        return self.columns[name]

    def take(self, rows: Any) -> Batch:
        """Some of them: a slice, or indices where the batch lies."""
        masks = None if self.masks is None else self.masks[rows]
        images = [image[rows] for image in self.images]
        columns = {name: column[rows] for name, column in self.columns.items()}
        return Batch(self.vector[rows], images, self.actions[rows], masks, **columns)


class ActorCritic:
    """Separate networks for the policy and the value, all parameters in one tensor."""

    def __init__(
        self,
        size: int,
        images: Sequence[tuple[int, ...]],
        action_space: spaces.Space[Any],
        shape: Shape,
        optimizer: type[FlatAdam] | type[FlatRMSprop],
        learning_rate: float,
        seed: int,
        device: str,
    ) -> None:
        self.device = torch.device(device)
        self.distribution = distribution_for(action_space, shape)
        sizes = (size, images, shape.hidden_sizes)
        # One thread: with several the last bits of the first weights would depend on how many.
        with _ONE_AT_A_TIME, torch_threads(1), torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.actor = Network(*sizes, self.distribution.outputs, shape.activation, 0.01, shape.ortho_init)
            self.critic = Network(*sizes, 1, shape.activation, 1.0, shape.ortho_init)
        self.actor.to(self.device)
        self.critic.to(self.device)
        for parameter in self.distribution.parameters():
            parameter.data = parameter.data.to(self.device)
        parameters = [*self.actor.parameters(), *self.distribution.parameters(), *self.critic.parameters()]
        self.optimizer = optimizer(parameters, learning_rate)
        self._dense = None if images else (DensePass(self.actor), DensePass(self.critic))

    # -- looking -------------------------------------------------------------------------------------------------
    def batch(
        self, vector: Array, images: Sequence[Array], actions: Array, masks: Array | None, **columns: Array
    ) -> Batch:
        """These rows, where the networks are."""
        on_device = {name: self._tensor(column) for name, column in columns.items()}
        pictures = [self._tensor(image) for image in images]
        allowed = None if masks is None else self._tensor(masks)
        return Batch(self._tensor(vector), pictures, self._tensor(actions), allowed, **on_device)

    def values(self, vector: Array, images: Sequence[Array]) -> Array:
        """[rows]"""
        pieces = []
        with torch.no_grad():
            for rows in _pieces(len(vector)):
                pictures = [self._tensor(image[rows]) for image in images]
                pieces.append(array_of(self.critic(self._tensor(vector[rows]), pictures).squeeze(-1)))
        return np.concatenate(pieces) if pieces else np.zeros(0, np.float32)

    def log_probs(self, batch: Batch) -> Tensor:
        """[rows] of the actions in the batch."""
        pieces = []
        with torch.no_grad():
            for rows in _pieces(len(batch)):
                part = batch.take(rows)
                output = self.actor(part.vector, part.images)
                pieces.append(self.distribution.log_prob_and_entropy(output, part.actions, part.masks)[0])
        return torch.cat(pieces)

    # -- learning ------------------------------------------------------------------------------------------------
    def gradient(self, batch: Batch, loss: Loss) -> Any:
        """Put the gradient of this loss where the optimizer takes it; returns the loss's parts."""
        if self._dense is None:
            return self._recorded_gradient(batch, loss)
        actor, critic = self._dense
        with torch.no_grad():
            output, values = actor.forward(batch.vector), critic.forward(batch.vector).squeeze(-1)
            log_probs, entropies = self.distribution.log_prob_and_entropy(output, batch.actions, batch.masks)
            found = loss(torch, Outputs(log_probs, entropies, values), batch)
            actor.backward(
                self.distribution.gradient(output, batch.actions, batch.masks, found.by_log_prob, found.by_entropy)
            )
            critic.backward(found.by_value.unsqueeze(-1))
        return found.parts

    def _recorded_gradient(self, batch: Batch, loss: Loss) -> Any:
        output, values = self.actor(batch.vector, batch.images), self.critic(batch.vector, batch.images).squeeze(-1)
        log_probs, entropies = self.distribution.log_prob_and_entropy(output, batch.actions, batch.masks)
        with torch.no_grad():
            found = loss(torch, Outputs(log_probs, entropies, values), batch)
        self.optimizer.gradient.zero_()
        by_entropy = torch.full_like(entropies, found.by_entropy)
        torch.autograd.backward((log_probs, values, entropies), (found.by_log_prob, found.by_value, by_entropy))
        return found.parts

    def rows(self, indices: Array) -> Tensor:
        """Indices, where the networks are."""
        return self._tensor(indices)

    # -- its weights ---------------------------------------------------------------------------------------------
    def layers(self) -> list[tuple[Array, Array]]:
        """(weights [in, out], bias) of the policy's dense layers, copies."""
        return [(array_of(layer.weight).T.copy(), array_of(layer.bias).copy()) for layer in self.actor.linear_layers()]

    def std(self) -> Array | None:
        """[actions] of a Gaussian policy."""
        found = self.distribution
        return np.exp(array_of(found.log_std)) if isinstance(found, DiagonalGaussian) else None

    def weights(self) -> Array:
        """All parameters, a copy."""
        return np.asarray(self.optimizer.parameters())

    def load_weights(self, parameters: Any) -> None:
        self.optimizer.load_parameters(parameters)

    def state(self) -> dict[str, Any]:
        """The optimizer's, weights left out."""
        return self.optimizer.state()

    def load(self, state: Mapping[str, Any]) -> None:
        self.optimizer.load(state)

    def _tensor(self, array: Array) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.device)


def distribution_for(space: spaces.Space[Any], shape: Shape) -> Distribution:
    """Of actions in this space; refused where there is none."""
    if isinstance(space, spaces.Discrete):
        return Categorical(int(space.n))
    if isinstance(space, spaces.MultiDiscrete):
        return MultiCategorical(space.nvec.reshape(-1).tolist())
    if isinstance(space, spaces.MultiBinary):
        return Bernoulli(int(np.prod(space.shape)))
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating):
        kind = SquashedGaussian if shape.squash else DiagonalGaussian
        return kind(int(np.prod(space.shape)), shape.log_std_init)
    raise InvalidRequest(
        f"PPO and A2C act in Discrete, MultiDiscrete, MultiBinary and Box spaces of floats, not {space}"
    )


def array_of(tensor: Tensor) -> Array:
    return np.asarray(tensor.detach().cpu().numpy())


def _pieces(rows: int) -> list[slice]:
    return [slice(first, first + PIECE_ROWS) for first in range(0, rows, PIECE_ROWS)]

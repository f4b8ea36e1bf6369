"""A policy and a value network with one optimizer, in torch: what PPO and A2C learn with.

It knows no algorithm: a loss is a function of what the networks say, which also gives its gradient by them; this
backpropagates it, by hand through dense networks (half of what recording costs), by autograd through convolutions.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from multiverse.contracts.views import Array
from multiverse.learning.distributions import distribution_for
from multiverse.learning.flat_parameters import FlatAdam, FlatRMSprop
from multiverse.learning.loss import Batch, Loss, Outputs, Shape
from multiverse.learning.networks import DensePass, Network
from multiverse.learning.threads import torch_threads

PIECE_ROWS = 2048
"""Of a whole rollout, so many rows go through the networks at once: memory stays bounded for images too."""
_ONE_AT_A_TIME = threading.Lock()  # torch's generator is the process's: networks built in threads would share it


class ActorCritic:
    """Separate networks for the policy and the value, all parameters in one tensor."""

    def __init__(
        self,
        size: int,
        images: Sequence[tuple[int, ...]],
        action_space: spaces.Space[Any],
        shape: Shape,
        optimizer: Literal["adam", "rmsprop"],
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
        std: list[torch.nn.Parameter] = []
        if isinstance(action_space, spaces.Box):
            first = torch.full((self.distribution.outputs,), shape.log_std_init, device=self.device)
            self.distribution.log_std = torch.nn.Parameter(first)
            std = [self.distribution.log_std]
        kind = FlatAdam if optimizer == "adam" else FlatRMSprop
        self.optimizer = kind([*self.actor.parameters(), *std, *self.critic.parameters()], learning_rate)
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
                pieces.append(self.distribution.log_prob_and_entropy(torch, output, part.actions, part.masks)[0])
        return torch.cat(pieces)

    # -- learning ------------------------------------------------------------------------------------------------
    def gradient(self, batch: Batch, loss: Loss) -> Any:
        """Put the gradient of this loss where the optimizer takes it; returns the loss's parts."""
        if self._dense is None:
            return self._recorded_gradient(batch, loss)
        actor, critic = self._dense
        with torch.no_grad():
            output, values = actor.forward(batch.vector), critic.forward(batch.vector).squeeze(-1)
            log_probs, entropies = self.distribution.log_prob_and_entropy(torch, output, batch.actions, batch.masks)
            found = loss(torch, Outputs(log_probs, entropies, values), batch)
            by_output, by_log_std = self.distribution.gradient(
                torch, output, batch.actions, batch.masks, found.by_log_prob, found.by_entropy
            )
            if by_log_std is not None:
                self.distribution.log_std.grad.copy_(by_log_std)
            actor.backward(by_output)
            critic.backward(found.by_value.unsqueeze(-1))
        return found.parts

    def _recorded_gradient(self, batch: Batch, loss: Loss) -> Any:
        output, values = self.actor(batch.vector, batch.images), self.critic(batch.vector, batch.images).squeeze(-1)
        log_probs, entropies = self.distribution.log_prob_and_entropy(torch, output, batch.actions, batch.masks)
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
        log_std = self.distribution.log_std
        return None if log_std is None else np.asarray(np.exp(array_of(log_std)))

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


def array_of(tensor: Tensor) -> Array:
    return np.asarray(tensor.detach().cpu().numpy())


def _pieces(rows: int) -> list[slice]:
    return [slice(first, first + PIECE_ROWS) for first in range(0, rows, PIECE_ROWS)]

"""A policy and a value network with one optimizer, in torch, for PPO and A2C.

It is independent of the algorithm: a loss is a function of the outputs of the networks, which autograd differentiates.
Nothing here waits for a GPU, or copies to one, during the minibatches of an update.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from multiverse.core.errors import InvalidRequest
from multiverse.core.layout import Array
from multiverse.learning.batches import TEAM, Packing, RolloutBatch
from multiverse.learning.distributions import distribution_for
from multiverse.learning.loss import LossFunction, Outputs, as_numpy
from multiverse.learning.network_spec import NetworkSpec
from multiverse.learning.optimizers import Optimizer
from multiverse.networks.modules import (
    Network,
    backward,
    initial_weights,
    initialize_cell,
    initialize_dense,
    layers_of,
    share_storage,
    trained,
)

PIECE_ROWS = 2048
"""Number of rows of a rollout that go through the networks at once, which bounds the memory for images."""


class ActorCritic:
    """A policy network and a value network, with all parameters in one tensor."""

    xp = torch

    def __init__(
        self,
        spec: NetworkSpec,
        optimizer: type[Optimizer],
        seed: int,
        device: str,
        auxiliary: Iterable[nn.Parameter] = (),
        critic_outputs: int = 1,
        values_from: Callable[[Tensor], Tensor] = lambda outputs: outputs[:, 0],
    ) -> None:
        """`auxiliary`: further parameters that are trained with the loss. `values_from`: outputs of the value network
        [rows, critic_outputs] → values [rows]."""
        self.device, self.distribution = torch.device(device), distribution_for(spec)
        self._values_from = values_from
        with initial_weights(seed):
            self.actor = Network(replace(spec, critic_members=1), self.distribution.outputs)
            shared = self.actor.extract if spec.share_features else None
            memory = spec.memory if spec.recurrent_critic else None
            critic_spec = replace(spec, size=spec.critic_inputs, memory=memory)
            self.critic = Network(critic_spec, critic_outputs, shared)
        rng = np.random.default_rng((seed, 3))
        for network in (self.actor, self.critic):
            if network.cell is not None:
                initialize_cell(rng, network.cell, spec)
        for network, last_gain in ((self.actor, 0.01), (self.critic, 1.0)):
            initialize_dense(rng, [network.dense], last_gain, ortho_init=spec.ortho_init, convolution=spec.convolution)
            network.to(self.device)
        self._shares_features = spec.share_features
        std: list[nn.Parameter] = []
        if isinstance(spec.action_space, spaces.Box):
            log_std = torch.full((self.distribution.outputs,), spec.log_std_init, device=self.device)
            self.distribution.log_std = nn.Parameter(log_std)
            std = [self.distribution.log_std]
        self.parameters = list(dict.fromkeys([*trained(self.actor), *std, *trained(self.critic), *auxiliary]))
        self.optimizer = optimizer(torch, torch.cat([value.detach().reshape(-1) for value in self.parameters]))
        share_storage(self.parameters, self.optimizer)

    @property
    def modules(self) -> dict[str, nn.Module]:
        """The networks, by name."""
        return {"actor": self.actor, "critic": self.critic}

    # -- inference -----------------------------------------------------------------------------------------------
    def put(self, array: Any) -> Tensor:
        """Move an array to the device of the networks."""
        return torch.as_tensor(array, device=self.device)

    def values(self, vector: Any, images: Sequence[Any]) -> Array:
        """Return the values [rows] of arrays, or of tensors on the device of the networks."""
        pieces = [np.zeros(0, np.float32)]
        with torch.no_grad():
            for rows in _pieces(len(vector)):
                output = self.critic(self.put(vector[rows]), [self.put(image[rows]) for image in images])
                pieces.append(as_numpy(self._values(output)))
        return np.concatenate(pieces)

    def recurrent_values(self, vector: Any, images: Sequence[Any], packing: Packing) -> tuple[Array, Array]:
        """Return (values [rows] of recurrent networks, their memory [chunks, cells, parts, size] after each chunk)."""
        memory, after = self.put(packing.memory), []
        with torch.no_grad():
            inputs, image_inputs = self.put(vector), [self.put(image) for image in images]
            for i, network in enumerate((self.actor, self.critic)):
                features = self._features(network, inputs, image_inputs)
                hidden, last = network.recur(features, packing.counts, memory[:, i])
                after.append(as_numpy(last))
            return as_numpy(self._values(self.critic.dense(hidden))), np.stack(after, axis=1)

    def _values(self, outputs: Tensor) -> Tensor:
        """Return the values [rows] for outputs of the value network."""
        values = self._values_from(outputs)
        if values.shape != outputs.shape[:1]:
            raise InvalidRequest(
                f"values_from() returned shape {tuple(values.shape)} for outputs of shape {tuple(outputs.shape)}: "
                f"expected ({len(outputs)},), a value for every row"
            )
        return values

    def _features(self, network: Network, vector: Tensor, images: Sequence[Tensor]) -> Tensor:
        """Return the features of all rows, computed in pieces."""
        parts = [network.features(vector[rows], [image[rows] for image in images]) for rows in _pieces(len(vector))]
        return torch.cat(parts) if len(parts) != 1 else parts[0]

    def log_probs(self, batch: RolloutBatch) -> Tensor:
        """Return the log-probabilities [rows] of the actions in the batch."""
        pieces = []
        with torch.no_grad():
            if batch.packing is not None:
                features, (counts, memory) = self._features(self.actor, batch.vector, batch.images), batch.packing
                output = self.actor.dense(self.actor.recur(features, counts, memory[:, 0])[0])
                return self.distribution.log_prob_and_entropy(torch, output, batch.actions, batch.masks)[0]
            for rows in _pieces(len(batch)):
                part = batch.take(rows)
                output = self.actor(part.vector, part.images)
                pieces.append(self.distribution.log_prob_and_entropy(torch, output, part.actions, part.masks)[0])
        return torch.cat(pieces)

    # -- learning ------------------------------------------------------------------------------------------------
    def gradient(self, batch: RolloutBatch, loss: LossFunction, with_metrics: bool = True) -> dict[str, Tensor]:
        """Write the gradient of this loss into the optimizer's; return the metrics of the loss."""
        features = actor_features = critic_features = self.actor.features(batch.vector, batch.images)
        if not self._shares_features or TEAM in batch.columns:
            critic_features = self.critic.features(batch.columns.get(TEAM, batch.vector), batch.images)
        if batch.packing is not None:
            counts, memory = batch.packing
            actor_features, _ = self.actor.recur(actor_features, counts, memory[:, 0])
            if self.critic.cell is not None:
                critic_features, _ = self.critic.recur(critic_features, counts, memory[:, 1])
        hidden, critic_outputs = self.actor.dense[:-1](actor_features), self.critic.dense(critic_features)
        output = self.actor.dense[-1](hidden)
        log_probs, entropies = self.distribution.log_prob_and_entropy(torch, output, batch.actions, batch.masks)
        values, extra = self._values(critic_outputs), {"critic": critic_outputs}
        outputs = Outputs(log_probs, entropies, values, features, hidden, output, extra)
        metrics = backward(loss(outputs, batch), self.optimizer, self.parameters)
        for network in (self.actor, self.critic):
            network.tie()
        return metrics

    # -- acting --------------------------------------------------------------------------------------------------
    def layers(self) -> list[tuple[Array, Array]]:
        """Return copies of the (weights [in, out], bias) of the policy's dense layers."""
        return layers_of(self.actor.dense)

    def cells(self) -> list[list[Array]]:
        """Return copies of the weights of the recurrent cells: the policy's and, if there is one, the value
        network's."""
        cells = [network.cell for network in (self.actor, self.critic) if network.cell is not None]
        return [[as_numpy(value) for value in cell.parameters()] for cell in cells]


def _pieces(rows: int) -> list[slice]:
    return [slice(first, first + PIECE_ROWS) for first in range(0, rows, PIECE_ROWS)]

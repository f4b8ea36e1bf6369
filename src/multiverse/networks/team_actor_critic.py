"""Actor and critic of a team with one optimizer, in torch, for TAAC.

As in `actor_critic`, but a row of a batch is a team: features [B, N, F], actions [B, N], masks [B, N, A] and columns
[B, N]. Of these, `present` is a mask of the agents that were present, and `valid` of those to learn from; if they are
missing, all agents are.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from multiverse.core.layout import Array
from multiverse.core.policy import MASKED_LOGIT
from multiverse.learning.batches import RolloutBatch
from multiverse.learning.distributions import Categorical
from multiverse.learning.loss import LossFunction, Outputs, as_numpy
from multiverse.learning.optimizers import Optimizer
from multiverse.networks.attention import TeamActor, TeamCritic, TeamSpec, counterfactual_baseline
from multiverse.networks.modules import backward, initial_weights, share_storage

PIECE_TEAMS = 512
"""Number of teams of a rollout that go through the networks at once."""


class TeamActorCritic:
    """Actor and critic with all parameters in one tensor."""

    xp = torch

    def __init__(
        self, spec: TeamSpec, optimizer: type[Optimizer], seed: int, device: str, auxiliary: Iterable[nn.Parameter] = ()
    ) -> None:
        """`auxiliary`: further parameters that are trained with the loss."""
        self.device, self.distribution = torch.device(device), Categorical(spec.num_actions)
        with initial_weights(seed):
            self.actor, self.critic = TeamActor(spec).to(self.device), TeamCritic(spec).to(self.device)
        self.parameters = [*self.actor.parameters(), *self.critic.parameters(), *auxiliary]
        self.optimizer = optimizer(torch, torch.cat([value.detach().reshape(-1) for value in self.parameters]))
        share_storage(self.parameters, self.optimizer)

    @property
    def modules(self) -> dict[str, nn.Module]:
        """The networks, by name."""
        return {"actor": self.actor, "critic": self.critic}

    def put(self, array: Any) -> Tensor:
        """Move an array to the device of the networks."""
        return torch.as_tensor(array, device=self.device)

    # -- inference -----------------------------------------------------------------------------------------------
    def baselines(self, batch: RolloutBatch) -> Array:
        """Return the mean value [B, N] of each agent's actions, given the actions of the others."""
        pieces = [np.zeros((0, *batch.actions.shape[1:]), np.float32)]
        with torch.no_grad():
            for part in _pieces(batch):
                present = part.columns.get("present")
                probabilities = self._mask(self.actor(part.vector, present)[0], part.masks).softmax(-1)
                values = self.critic.every_action(part.vector, part.actions, present)
                pieces.append(as_numpy(counterfactual_baseline(probabilities, values)))
        return np.concatenate(pieces)

    def sample(self, vector: Tensor, masks: Tensor | None, present: Tensor | None, noise: Tensor) -> Tensor:
        """Return actions [B, N] drawn from the policy with Gumbel noise [B, N, A]."""
        with torch.no_grad():
            return (self._mask(self.actor(vector, present)[0], masks) + noise).argmax(-1)

    def log_probs(self, batch: RolloutBatch) -> Tensor:
        """Return the log-probabilities [B, N] of the actions in the batch."""
        with torch.no_grad():
            return torch.cat([self._evaluate(part)[0] for part in _pieces(batch)])

    def _evaluate(self, batch: RolloutBatch) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return log-probabilities and entropies [B, N], embeddings with attention [B, N, E], and logits [B, N, A]."""
        logits, attended = self.actor(batch.vector, batch.columns.get("present"))
        masks = None if batch.masks is None else batch.masks.flatten(0, 1)
        flat = self.distribution.log_prob_and_entropy(torch, logits.flatten(0, 1), batch.actions.flatten(), masks)
        log_probs, entropies = (column.reshape(batch.actions.shape) for column in flat)
        return log_probs, entropies, attended, logits

    @staticmethod
    def _mask(logits: Tensor, masks: Tensor | None) -> Tensor:
        return logits if masks is None else logits.masked_fill(~masks, MASKED_LOGIT)

    # -- learning ------------------------------------------------------------------------------------------------
    def gradient(self, batch: RolloutBatch, loss: LossFunction, with_metrics: bool = True) -> dict[str, Tensor]:
        """Write the gradient of this loss into the optimizer's; return the metrics of the loss.

        The loss gets the flat rows of valid agents, and as further outputs the `embeddings` [B, N, E] of whole teams
        and the mask `present` [B, N] or None."""
        present, valid = batch.columns.get("present"), batch.columns.get("valid")
        log_probs, entropies, attended, logits = self._evaluate(batch)
        values = self.critic(batch.vector, batch.actions, present)

        def flat(teams: Tensor) -> Tensor:
            return teams.flatten(0, 1) if valid is None else teams[valid]

        teams = {"embeddings": attended, "present": present}
        columns = {name: flat(column) for name, column in batch.columns.items()}
        masks = None if batch.masks is None else flat(batch.masks)
        rows = RolloutBatch(flat(batch.vector), [], flat(batch.actions), masks, **columns)
        rows.layout, rows.noise = batch.layout, [flat(noise) for noise in batch.noise]
        out = Outputs(flat(log_probs), flat(entropies), flat(values), flat(attended), None, flat(logits), teams)
        return backward(loss(out, rows), self.optimizer, self.parameters)

    # -- acting --------------------------------------------------------------------------------------------------
    def layers(self) -> dict[str, tuple[Array, Array]]:
        """Return copies of the (weights [in, out], bias) of the actor's dense layers, by name."""
        actor = self.actor
        parts = {"embed": actor.embed[0], "hidden": actor.head[0], "head": actor.head[2]}
        parts |= {name: getattr(actor.attend, name) for name in ("queries", "keys", "values", "out")}
        return {name: (as_numpy(layer.weight).T.copy(), as_numpy(layer.bias)) for name, layer in parts.items()}


def _pieces(batch: RolloutBatch) -> list[RolloutBatch]:
    return [batch.take(slice(first, first + PIECE_TEAMS)) for first in range(0, len(batch), PIECE_TEAMS)]

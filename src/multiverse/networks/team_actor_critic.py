"""A team's actor and critic with one optimizer, in torch: what TAAC learns with.

As `actor_critic`, but a row of a batch is a team: features [B, N, F], actions [B, N], masks [B, N, A], and columns
[B, N], of which `present` says who was there and `valid` which agents are learned from. Without these, all are.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from multiverse.core.policy import MASKED_LOGIT
from multiverse.core.views import Array
from multiverse.learning.batches import RolloutBatch
from multiverse.learning.distributions import Categorical
from multiverse.learning.loss import LossFunction, Outputs, as_numpy
from multiverse.learning.optimizers import Optimizer
from multiverse.networks.attention import TeamActor, TeamCritic, TeamSpec, counterfactual_baseline
from multiverse.networks.modules import backward, first_weights, share_storage

PIECE_TEAMS = 512
"""Of a whole rollout, so many teams go through the networks at once."""


class TeamActorCritic:
    """All parameters in one tensor."""

    xp = torch

    def __init__(
        self,
        spec: TeamSpec,
        optimizer: type[Optimizer],
        seed: int,
        device: str,
        auxiliary: Iterable[nn.Parameter] = (),
    ) -> None:
        """`auxiliary`: further parameters that are trained with the loss."""
        self.device, self.distribution = torch.device(device), Categorical(spec.num_actions)
        with first_weights(seed):
            self.actor, self.critic = TeamActor(spec).to(self.device), TeamCritic(spec).to(self.device)
        self.parameters = [*self.actor.parameters(), *self.critic.parameters(), *auxiliary]
        self.optimizer = optimizer(torch, torch.cat([one.detach().reshape(-1) for one in self.parameters]))
        share_storage(self.parameters, self.optimizer)

    @property
    def modules(self) -> dict[str, nn.Module]:
        """The networks, by name."""
        return {"actor": self.actor, "critic": self.critic}

    def put(self, array: Any) -> Tensor:
        """Where the networks are."""
        return torch.as_tensor(array, device=self.device)

    # -- looking -------------------------------------------------------------------------------------------------
    def baselines(self, batch: RolloutBatch) -> Array:
        """[B, N] what each agent would have been worth on average, given what the others did."""
        pieces = [np.zeros((0, *batch.actions.shape[1:]), np.float32)]
        with torch.no_grad():
            for part in _pieces(batch):
                probabilities = self._open(self.actor(part.vector, part.columns.get("present"))[0], part.masks).softmax(
                    -1
                )
                every = self.critic.every_action(part.vector, part.actions, part.columns.get("present"))
                pieces.append(as_numpy(counterfactual_baseline(probabilities, every)))
        return np.concatenate(pieces)

    def drawn(self, vector: Tensor, masks: Tensor | None, present: Tensor | None, noise: Tensor) -> Tensor:
        """[B, N] actions, by Gumbel noise [B, N, A]: for teams whose actions nobody has seen."""
        with torch.no_grad():
            return (self._open(self.actor(vector, present)[0], masks) + noise).argmax(-1)

    def log_probs(self, batch: RolloutBatch) -> Tensor:
        """[B, N] of the actions in the batch."""
        with torch.no_grad():
            return torch.cat([self._said(part)[0] for part in _pieces(batch)])

    def _said(self, batch: RolloutBatch) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Log-probabilities and entropies, [B, N] each, what the agents are to each other, [B, N, E], and logits."""
        logits, attended = self.actor(batch.vector, batch.columns.get("present"))
        masks = None if batch.masks is None else batch.masks.flatten(0, 1)
        found = self.distribution.log_prob_and_entropy(torch, logits.flatten(0, 1), batch.actions.flatten(), masks)
        log_probs, entropies = (one.reshape(batch.actions.shape) for one in found)
        return log_probs, entropies, attended, logits

    @staticmethod
    def _open(logits: Tensor, masks: Tensor | None) -> Tensor:
        return logits if masks is None else logits.masked_fill(~masks, MASKED_LOGIT)

    # -- learning ------------------------------------------------------------------------------------------------
    def gradient(self, batch: RolloutBatch, loss: LossFunction, with_metrics: bool = True) -> dict[str, Tensor]:
        """Put the gradient of this loss where the optimizer takes it; returns the metrics of the loss.

        The loss is given flat rows of agents that are learned from, and beside them the `embeddings` of whole teams,
        [B, N, E], and who was `present` in them, [B, N] or None."""
        present, valid = batch.columns.get("present"), batch.columns.get("valid")
        log_probs, entropies, attended, logits = self._said(batch)
        values = self.critic(batch.vector, batch.actions, present)

        def flat(teams: Tensor) -> Tensor:
            return teams.flatten(0, 1) if valid is None else teams[valid]

        teams = {"embeddings": attended, "present": present}
        columns = {name: flat(column) for name, column in batch.columns.items()}
        masks = None if batch.masks is None else flat(batch.masks)
        rows = RolloutBatch(flat(batch.vector), [], flat(batch.actions), masks, **columns)
        rows.layout, rows.noise = batch.layout, [flat(one) for one in batch.noise]
        out = Outputs(flat(log_probs), flat(entropies), flat(values), flat(attended), None, flat(logits), teams)
        found = loss(out, rows)
        metrics = backward(found, self.optimizer, self.parameters)
        return metrics

    # -- acting --------------------------------------------------------------------------------------------------
    def layers(self) -> dict[str, tuple[Array, Array]]:
        """(weights [in, out], bias) of the actor's dense layers by name, copies."""
        actor = self.actor
        parts = {"embed": actor.embed[0], "hidden": actor.head[0], "head": actor.head[2]}
        parts |= {name: getattr(actor.attend, name) for name in ("queries", "keys", "values", "out")}
        return {name: (as_numpy(layer.weight).T.copy(), as_numpy(layer.bias)) for name, layer in parts.items()}


def _pieces(batch: RolloutBatch) -> list[RolloutBatch]:
    return [batch.take(slice(first, first + PIECE_TEAMS)) for first in range(0, len(batch), PIECE_TEAMS)]

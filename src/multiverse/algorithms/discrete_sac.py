"""Soft actor-critic for Discrete actions (Christodoulou 2019): expectations over all actions instead of draws.

Sections, as in every algorithm: config; the losses and the update.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gymnasium import spaces

from multiverse.algorithms.sac import SoftActorCritic, first_temperature
from multiverse.algorithms.settings import OffPolicyConfig
from multiverse.core.settings import setting
from multiverse.learning.batches import ReplayBatch
from multiverse.learning.distributions import mask_logits
from multiverse.learning.loss import Loss
from multiverse.policies.heads import Head, head_for


# -- config ------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class DiscreteSACConfig(OffPolicyConfig):
    """Settings of discrete SAC."""

    entropy_coef: float | str = setting(
        "auto",
        "Weight of the entropy bonus (the temperature α). auto: learned, so that the entropy is its target, with an "
        "initial value of 1; auto_0.1: with an initial value of 0.1.",
    )
    target_entropy_ratio: float = setting(
        0.7,
        "Target of the entropy for a learned temperature, as a share of the maximum, log(number of open actions).",
        at_least=0,
        at_most=1,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        first_temperature(self.entropy_coef)


# -- the losses and the update -----------------------------------------------------------------------------------
class DiscreteSAC(SoftActorCritic):
    """Two critics with a value for every action, of which the smaller counts, and a categorical actor."""

    Config = DiscreteSACConfig
    actions = (spaces.Discrete,)

    def make_networks(self) -> None:
        self.actor = self.new_network("actor", target=False)
        self.critic = self.new_network("critic", copies=2)
        self._make_temperature()

    def outputs(self) -> Mapping[str, int]:
        """Logits of the actions, and a value for every action."""
        count = int(self.action_space.n)  # type: ignore[attr-defined]
        return {"actor": count, "critic": count}

    def head(self) -> Head:
        """A sample from the softmax of the logits."""
        return head_for(self.action_space)

    def critic_loss(self, batch: ReplayBatch) -> Loss:
        """½ Σ (Q_i(s, a) - (r + γ Σ π(a' | s') (min Q̄_i(s', a') - α log π(a' | s'))))², averaged over the batch."""
        import torch

        with torch.no_grad():
            log_probs = self.log_probs(batch.next_observations, batch.next_masks)
            values = self.target_critic(batch.next_observations).amin(0) - self.entropy_coef * log_probs
            targets = batch.rewards + batch.discounts * (log_probs.exp() * values).sum(-1)
        values = self.critic(batch.observations)
        taken = batch.actions.long()[None, :, None].expand(len(values), -1, 1)
        errors = values.gather(-1, taken)[..., 0] - targets
        loss = 0.5 * (errors**2).mean(-1).sum()
        return Loss(loss, critic_loss=loss)

    def actor_loss(self, batch: ReplayBatch) -> Loss:
        """Σ π(a | s) (α log π(a | s) - min Q_i(s, a)), averaged over the batch."""
        import torch

        with torch.no_grad():
            values = self.critic(batch.observations).amin(0)
        alpha, log_probs = self.entropy_coef, self.log_probs(batch.observations, batch.masks)
        probs = log_probs.exp()
        loss, entropy = (probs * (alpha * log_probs - values)).sum(-1).mean(), -(probs * log_probs).sum(-1).mean()
        value = (probs * values).sum(-1).mean()
        return Loss(loss, actor_loss=loss, entropy_coef=alpha, entropy=entropy, mean_value=value)

    def log_probs(self, observations: Any, masks: Any) -> Any:
        """Return the log-probabilities [N, actions] of the policy; those of actions that are not open are very
        small."""
        import torch

        return mask_logits(torch, self.actor(observations), masks).log_softmax(-1)

    def target_entropy(self, batch: ReplayBatch) -> Any:
        """Return a share of the largest entropy over open actions, averaged over the batch."""
        largest = self.largest_entropy if batch.masks is None else batch.masks.sum(-1).log().mean()
        return self.config.target_entropy_ratio * largest

    @property
    def largest_entropy(self) -> float:
        """Entropy of the uniform policy over all actions."""
        return math.log(self.action_space.n)  # type: ignore[attr-defined]

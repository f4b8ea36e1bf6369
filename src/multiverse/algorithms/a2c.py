"""Advantage actor-critic (Mnih et al. 2016), synchronous: one gradient step per rollout.

Sections, as in every algorithm: config; the loss.
"""

from __future__ import annotations

from dataclasses import dataclass

from multiverse.algorithms.on_policy import OnPolicy
from multiverse.algorithms.settings import OnPolicyConfig
from multiverse.core.settings import setting
from multiverse.learning.batches import RolloutBatch
from multiverse.learning.loss import Loss, Outputs, standardized
from multiverse.learning.optimizers import RMSprop


# -- config ------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class A2CConfig(OnPolicyConfig):
    """Settings of A2C."""

    steps_per_env: int = 5
    learning_rate: float = setting(7e-4, "Step size of RMSprop.")
    gae_lambda: float = 1.0
    normalize_advantages: bool = setting(
        False, "The advantages of a rollout are standardized to mean 0 and standard deviation 1."
    )


# -- the loss ----------------------------------------------------------------------------------------------------
class A2C(OnPolicy):
    """One step down the gradient of a whole rollout."""

    Config, optimizer = A2CConfig, RMSprop

    def loss(self, out: Outputs, batch: RolloutBatch) -> Loss:
        """-A log π + c_v (V - R)² - c_e H, averaged over the rows."""
        config = self.config
        advantages = standardized(batch.advantages) if config.normalize_advantages else batch.advantages
        policy_loss = -(advantages * out.log_prob).mean()
        value_loss, entropy = self.value_loss(out.values, batch), out.entropy.mean()
        total = policy_loss + config.value_coef * value_loss - config.entropy_coef * entropy
        return Loss(total, policy_loss=policy_loss, value_loss=value_loss, entropy=entropy)

"""Advantage actor-critic (Mnih et al. 2016), synchronous: one gradient step per rollout.

Sections, as in every algorithm: config, the loss, the update.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from multiverse.algorithms.algorithm import UpdateReport
from multiverse.algorithms.on_policy import OnPolicy, OnPolicyConfig
from multiverse.experience.rollout import Rollout
from multiverse.learning.loss import Batch, LossGradient, Outputs, as_numpy, normalized
from multiverse.learning.optimizers import RMSprop


# -- config ------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class A2CConfig(OnPolicyConfig):
    """Settings of A2C."""

    steps_per_env: int = 5
    learning_rate: float = 7e-4
    """Step size of RMSprop."""
    gae_lambda: float = 1.0
    normalize_advantages: bool = False
    """Advantages of a rollout with mean 0 and standard deviation 1."""


# -- the loss ----------------------------------------------------------------------------------------------------
def a2c_loss(xp: Any, outputs: Outputs, rows: Batch, *, config: A2CConfig) -> LossGradient:
    """-A log π + c_v (V - R)² - c_e H, in the mean over the rows."""
    count, advantages, errors = len(rows), rows["advantages"], outputs.values - rows["returns"]
    if config.normalize_advantages:
        advantages = normalized(xp, advantages)
    policy_loss = -(advantages * outputs.log_probs).mean()
    metrics = xp.stack([policy_loss, (errors * errors).mean(), outputs.entropies.mean()])
    by_value = errors * (2 * config.value_coef / count)
    return LossGradient(advantages / -count, -config.entropy_coef / count, by_value, metrics)


# -- the update --------------------------------------------------------------------------------------------------
class A2C(OnPolicy):
    """One step down the gradient of a whole rollout."""

    Config, optimizer = A2CConfig, RMSprop

    def update(self, rollouts: Sequence[Rollout], progress: float) -> UpdateReport:
        (rollout,) = rollouts
        self._refuse_older(rollout)
        config, networks = self.config, self._networks
        metrics = networks.gradient(self._batch(rollout), partial(a2c_loss, config=config))
        (took,) = self._count([networks.optimizer.step(config.learning_rate, config.max_grad_norm)])
        self._updated(rollout)
        report = dict(zip(("policy_loss", "value_loss", "entropy"), as_numpy(metrics).tolist()))
        return UpdateReport(report | self._lag, int(took), int(not took))

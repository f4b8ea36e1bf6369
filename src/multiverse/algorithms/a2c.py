"""Advantage actor-critic (Mnih et al. 2016), synchronous: one gradient step per rollout.

Sections, as in every algorithm: config, the loss, the update.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np

from multiverse.algorithms.algorithm import UpdateReport
from multiverse.algorithms.on_policy import OnPolicy, check_settings
from multiverse.experience.rollout import Rollout
from multiverse.learning.loss import Batch, LossGradient, Outputs, normalized


# -- config ------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class A2CConfig:
    """Settings of A2C."""

    steps_per_env: int = 5
    """Steps of every env in a rollout, from which one update learns."""
    learning_rate: float = 7e-4
    """Step size of RMSprop."""
    gamma: float = 0.99
    """Discount factor."""
    gae_lambda: float = 1.0
    """λ of generalized advantage estimation: 0 is the one-step TD error, 1 the whole return."""
    value_coef: float = 0.5
    """Weight of the value loss."""
    entropy_coef: float = 0.0
    """Weight of the entropy bonus, which keeps a policy exploring."""
    max_grad_norm: float = 0.5
    """Longer gradients are scaled down to this norm."""
    normalize_advantages: bool = False
    """Advantages of a rollout with mean 0 and standard deviation 1."""
    hidden_sizes: tuple[int, ...] = (64, 64)
    """Units of each hidden layer."""
    activation: Literal["tanh", "relu"] = "tanh"
    """Between the layers."""
    ortho_init: bool = True
    """Orthogonal first weights; else torch's own."""
    log_std_init: float = 0.0
    """Of Box actions: the logarithm of the standard deviation at first."""
    squash: bool = False
    """Of Box actions: into their bounds by a tanh, instead of clipping them."""
    normalize_observations: bool = False
    """Learn from observations with mean 0 and standard deviation 1, as seen so far."""
    normalize_rewards: bool = False
    """Learn from rewards on the scale of the returns seen so far."""

    def __post_init__(self) -> None:
        check_settings(
            self,
            at_least_1=("steps_per_env",),
            shares=("gamma", "gae_lambda"),
            above_0=("learning_rate", "max_grad_norm"),
            at_least_0=("value_coef", "entropy_coef"),
        )


# -- the loss ----------------------------------------------------------------------------------------------------
def a2c_loss(
    xp: Any, said: Outputs, rows: Batch, *, value_coef: float, entropy_coef: float, normalize: bool
) -> LossGradient:
    """-A log π + c_v (V - R)² - c_e H, in the mean over the rows."""
    count, advantages, errors = len(rows), rows["advantages"], said.values - rows["returns"]
    if normalize:
        advantages = normalized(xp, advantages)
    policy_loss = -(advantages * said.log_probs).mean()
    parts = [float(part) for part in (policy_loss, (errors * errors).mean(), said.entropies.mean())]
    return LossGradient(advantages / -count, -entropy_coef / count, errors * (2 * value_coef / count), parts)


# -- the update --------------------------------------------------------------------------------------------------
class A2C(OnPolicy):
    """One step down the gradient of a whole rollout."""

    Config, optimizer = A2CConfig, "rmsprop"

    def update(self, rollouts: Sequence[Rollout], progress: float) -> UpdateReport:
        (rollout,) = rollouts
        self._refuse_older(rollout)
        config, networks = self.config, self._networks
        networks.optimizer.learning_rate = config.learning_rate
        batch = self._batch(rollout).take(networks.rows(np.flatnonzero(rollout.valid.reshape(-1))))
        loss = partial(
            a2c_loss,
            value_coef=config.value_coef,
            entropy_coef=config.entropy_coef,
            normalize=config.normalize_advantages,
        )
        parts = networks.gradient(batch, loss)
        took = self._take_step()
        self._updated(rollout)
        return UpdateReport(dict(zip(("policy_loss", "value_loss", "entropy"), parts)), int(took), int(not took))

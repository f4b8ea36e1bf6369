"""Soft actor-critic for Discrete actions (Christodoulou 2019): expectations over all actions instead of draws.

Sections, as in every algorithm: config, the loss, the update.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

from multiverse.algorithms.off_policy import Minibatch, OffPolicy, OffPolicyConfig
from multiverse.algorithms.sac import Temperature, first_temperature
from multiverse.contracts.errors import InvalidRequest
from multiverse.experience.heads import Head, head_for
from multiverse.learning.distributions import log_softmax, open_logits
from multiverse.learning.optimizers import Optimizer


# -- config ------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class DiscreteSACConfig(OffPolicyConfig):
    """Settings of discrete SAC."""

    entropy_coef: float | str = "auto"
    """Weight of the entropy bonus (the temperature α). auto: learned, so that the entropy is its target, from 1 on;
    auto_0.1: from 0.1 on."""
    target_entropy_ratio: float = 0.7
    """Entropy that a learned temperature leads to, as a share of the largest there is, log(number of open actions)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check("between 0 and 1", lambda value: 0.0 <= value <= 1.0, "target_entropy_ratio")
        first_temperature(self.entropy_coef)


# -- the loss ----------------------------------------------------------------------------------------------------
def soft_values(xp: Any, probs: Any, log_probs: Any, values: Any, entropy_coef: Any) -> Any:
    """[N] Σ π(a) (Q(a) - α log π(a))"""
    return (probs * (values - entropy_coef * log_probs)).sum(-1)


def actor_gradient(xp: Any, probs: Any, log_probs: Any, values: Any, entropy_coef: Any) -> Any:
    """By the logits [N, actions], of the mean over rows of -Σ π(a) (Q(a) - α log π(a))."""
    worth = values - entropy_coef * log_probs
    return probs * ((probs * worth).sum(-1)[:, None] - worth) / len(probs)


# -- the update --------------------------------------------------------------------------------------------------
class DiscreteSAC(OffPolicy):
    """Two critics that value every action, of which the smaller counts, and an actor over them."""

    Config = DiscreteSACConfig
    metrics = ("critic_loss", "actor_loss", "entropy_coef", "entropy", "mean_value")

    def _make_networks(self) -> None:
        if not isinstance(self._action_space, spaces.Discrete):
            raise InvalidRequest(f"discrete_sac: actions must be Discrete, and these are {self._action_space}; sac and "
                                 "td3 are for a Box, ppo for all")  # fmt: skip
        count = int(self._action_space.n)
        self._actor = self._network("actor", count, follows=False)
        self._critic = self._network("critic", count, copies=2)
        self._temperature = Temperature(self.config, self._put, self._actor.xp)

    @property
    def _optimizers(self) -> dict[str, Optimizer]:
        return {**super()._optimizers, "temperature": self._temperature.optimizer}

    def _head(self) -> Head:
        return head_for(self._action_space)

    def _largest_entropy(self, batch: Minibatch) -> Any:
        """The mean over its rows, of open actions alone."""
        if batch.masks is None:
            return math.log(self._action_space.n)  # type: ignore[attr-defined]
        return self._actor.xp.log(batch.masks.sum(-1) * 1.0).mean()

    def _gradient_step(self, batch: Minibatch) -> tuple[Any, Any]:
        config, xp, actor, critic = self.config, self._actor.xp, self._actor, self._critic
        count, alpha = len(batch.rewards), self._temperature.value(config)

        log_probs = log_softmax(xp, open_logits(xp, actor.output(batch.after), batch.masks_after))
        values = xp.minimum(*self._targets["critic"].output(batch.after))
        following = soft_values(xp, xp.exp(log_probs), log_probs, values, alpha)
        target = batch.rewards + batch.discounts * following
        values = critic.forward(batch.seen)
        taken = batch.actions[:, None] == self._put(np.arange(values.shape[-1]))
        errors = (values * taken).sum(-1) - target
        critic.backward(errors[..., None] * taken / count)
        learned = critic.optimizer.step(config.learning_rate, math.inf)  # the actor learns from what they said before

        log_probs = log_softmax(xp, open_logits(xp, actor.forward(batch.seen), batch.masks))
        probs, values = xp.exp(log_probs), xp.minimum(*values)
        actor.backward(actor_gradient(xp, probs, log_probs, values, alpha))
        improved = actor.optimizer.step(config.learning_rate, math.inf)
        entropy = -(probs * log_probs).sum(-1).mean()
        tuned = self._temperature.step(config, entropy - config.target_entropy_ratio * self._largest_entropy(batch))

        self._steps += 1
        self._targets["critic"].follow(config.tau)
        actor_loss = -soft_values(xp, probs, log_probs, values, alpha).mean()
        value = (probs * values).sum(-1).mean()
        told = [0.5 * (errors * errors).mean(-1).sum(), actor_loss, alpha + 0 * value, entropy, value]
        return learned & improved & tuned, xp.stack(told)

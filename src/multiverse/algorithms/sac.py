"""Soft actor-critic (Haarnoja et al. 2018), with a temperature that is learned.

Sections, as in every algorithm: config; the losses and the update.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

from multiverse.algorithms.off_policy import OffPolicy
from multiverse.algorithms.settings import OffPolicyConfig, check_noise_steps
from multiverse.core.errors import InvalidRequest
from multiverse.core.settings import setting
from multiverse.learning.batches import ReplayBatch
from multiverse.learning.distributions import HALF_LOG_TAU
from multiverse.learning.loss import Loss
from multiverse.policies.heads import LOG_STD_RANGE, Head, bounded_head


# -- config ------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class SACConfig(OffPolicyConfig):
    """Settings of SAC."""

    entropy_coef: float | str = setting(
        "auto",
        "Weight of the entropy bonus (the temperature α). auto: learned, so that the entropy is `target_entropy`, "
        "with an initial value of 1; auto_0.1: with an initial value of 0.1, for small rewards.",
    )
    target_entropy: float | None = setting(
        None, "Target of the entropy for a learned temperature. Default: minus the number of actions."
    )
    target_update_interval: int = setting(
        1, "Number of gradient steps between two updates of the target critics.", at_least=1
    )
    noise_steps: int = setting(
        1,
        "Number of consecutive steps with the same exploration noise, at most `steps_per_env`: with distant rewards, "
        "noise that lasts explores further than noise that averages out.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_noise_steps(self)
        first_temperature(self.entropy_coef)


def first_temperature(entropy_coef: float | str) -> float:
    """Return the initial value of α for a number, `auto` or `auto_0.1`."""
    first: Any = entropy_coef
    if isinstance(entropy_coef, str):
        word, _, first = entropy_coef.partition("_")
        first = 1.0 if entropy_coef == "auto" else first if word == "auto" else "none"
    try:
        value = float(first)
    except ValueError:
        value = -1.0
    if not 0.0 <= value < math.inf or (value == 0.0 and isinstance(entropy_coef, str)):
        expected = "expected a number of at least 0, auto (learned), or auto_0.1 (learned, initially 0.1)"
        raise InvalidRequest(f"entropy_coef={entropy_coef}: {expected}")
    return value


# -- the losses and the update -----------------------------------------------------------------------------------
class SoftActorCritic(OffPolicy):
    """Base of SAC and discrete SAC: an actor, critics, and a temperature that can be learned."""

    losses = ("critic_loss", "actor_loss", "temperature_loss")
    actor: Any
    critic: Any

    def _make_temperature(self) -> None:
        first = first_temperature(self.config.entropy_coef) or 1.0  # a temperature of 0 is never learned
        self.log_temperature = self.new_parameters("temperature", np.log(np.full(1, first, np.float32)))
        self.target_critic = self.targets["critic"]

    @property
    def entropy_coef(self) -> Any:
        """The temperature α: fixed or learned. No gradient flows through it."""
        fixed = self.config.entropy_coef
        return self.log_temperature.exp() if isinstance(fixed, str) else fixed

    def critic_loss(self, batch: ReplayBatch) -> Loss:
        """Return the loss of the critics."""
        raise NotImplementedError

    def actor_loss(self, batch: ReplayBatch) -> Loss:
        """Return the loss of the actor. The temperature is learned from its metric `entropy`."""
        raise NotImplementedError

    def temperature_loss(self, batch: ReplayBatch, entropy: Any) -> Loss:
        """log α (H - H̄); H: the entropy of the policy, H̄: its target."""
        return Loss((self.log_temperature.values * (entropy - self.target_entropy(batch))).sum())

    def target_entropy(self, batch: ReplayBatch) -> Any:
        """Return the target of the entropy for a learned temperature."""
        raise NotImplementedError

    def gradient_step(self, batch: ReplayBatch) -> tuple[Any, dict[str, Any]]:
        # All gradients are computed before all steps, as in Haarnoja's code; recurrent critics compute their hidden
        # states once for both losses.
        metrics = self.gradient("critic_loss", self.critic, batch)
        metrics |= self.gradient("actor_loss", self.actor, batch)
        learning = [self.critic, self.actor]
        if isinstance(self.config.entropy_coef, str):
            if "entropy" not in metrics:
                raise InvalidRequest(
                    f"actor_loss() of {type(self).__name__} returned no metric `entropy`, which the temperature is "
                    "learned from: return Loss(total, entropy=...), or set entropy_coef to a number"
                )
            metrics |= self.gradient("temperature_loss", self.log_temperature, batch, metrics["entropy"])
            learning.append(self.log_temperature)
        taken = self.take_step(*learning)
        self._update_targets()
        return taken, metrics

    def _update_targets(self) -> None:
        self.target_critic.soft_update(self.config.tau)


class SAC(SoftActorCritic):
    """Two critics, of which the smaller value counts, and a stochastic actor with an entropy bonus."""

    Config = SACConfig
    actions, bounded_actions = (spaces.Box,), True
    noise_draws = 2
    log_std_range = float(LOG_STD_RANGE[0]), float(LOG_STD_RANGE[1])

    def make_networks(self) -> None:
        self.actor = self.new_network("actor", target=False)
        self.critic = self.new_network("critic", copies=2, more=self.action[0][0])
        self._make_temperature()

    def outputs(self) -> Mapping[str, int]:
        """Mean and logarithm of the standard deviation of each action, and a value."""
        return {"actor": 2 * self.action[0][0], "critic": 1}

    def head(self) -> Head:
        """A squashed Gaussian."""
        return bounded_head(self.action_space, noise_steps=self.config.noise_steps)

    def critic_loss(self, batch: ReplayBatch) -> Loss:
        """½ Σ (Q_i(s, a) - (r + γ (min Q̄_i(s', a') - α log π(a' | s'))))², averaged over the batch."""
        import torch

        with torch.no_grad():
            actions, log_probs = self.sample_actions(batch.next_observations, batch.noise[0])
            values = self.target_critic(batch.next_observations, actions)[..., 0].amin(0)
            targets = batch.rewards + batch.discounts * (values - self.entropy_coef * log_probs)
        errors = self.critic(batch.observations, batch.actions)[..., 0] - targets
        loss = 0.5 * (errors**2).mean(-1).sum()
        return Loss(loss, critic_loss=loss)

    def actor_loss(self, batch: ReplayBatch) -> Loss:
        """α log π(a | s) - min Q_i(s, a), averaged over the batch."""
        alpha, (actions, log_probs) = self.entropy_coef, self.sample_actions(batch.observations, batch.noise[1])
        values = self.critic(batch.observations, actions)[..., 0].min(0).values
        loss = (alpha * log_probs - values).mean()
        return Loss(loss, actor_loss=loss, entropy_coef=alpha, entropy=-log_probs.mean(), mean_value=values.mean())

    def sample_actions(self, observations: Any, noise: Any) -> tuple[Any, Any]:
        """(actions [N, actions], log-probabilities [N]) of the policy, a squashed Gaussian: a = tanh(u), u = μ + σ ε,
        log π(a) = Σ log N(u; μ, σ) - log(1 - tanh(u)²)."""
        mean, log_std = self.actor(observations).chunk(2, -1)
        log_std = log_std.clamp(min=self.log_std_range[0], max=self.log_std_range[1])
        u = mean + log_std.exp() * noise
        squash = 2.0 * (math.log(2.0) - u - (-2.0 * u).logaddexp(u * 0))  # stable for large values
        return u.tanh(), (-0.5 * noise**2 - log_std - HALF_LOG_TAU - squash).sum(-1)

    def target_entropy(self, batch: ReplayBatch) -> Any:
        """Return `target_entropy`; by default minus the number of actions."""
        target = self.config.target_entropy
        return -float(self.action[0][0]) if target is None else target

    def _update_targets(self) -> None:
        if self.steps % self.config.target_update_interval == 0:
            super()._update_targets()

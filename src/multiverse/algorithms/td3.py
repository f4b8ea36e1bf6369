"""Twin delayed deep deterministic policy gradient (Fujimoto et al. 2018).

Sections, as in every algorithm: config; the losses and the update.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gymnasium import spaces

from multiverse.algorithms.off_policy import OffPolicy
from multiverse.algorithms.settings import OffPolicyConfig, check_noise_steps
from multiverse.core.settings import setting
from multiverse.learning.batches import ReplayBatch
from multiverse.learning.loss import Loss
from multiverse.policies.heads import Head, bounded_head


# -- config ------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class TD3Config(OffPolicyConfig):
    """Settings of TD3."""

    learning_rate: float = setting(1e-3, "Step size of Adam.")
    action_noise: float = setting(
        0.1, "Standard deviation of the exploration noise; actions are from -1 to 1.", at_least=0
    )
    noise_steps: int = setting(
        1,
        "Number of consecutive steps with the same exploration noise, at most `steps_per_env`: with distant rewards, "
        "noise that lasts explores further than noise that averages out.",
    )
    policy_delay: int = setting(
        2, "Number of gradient steps of the critics for one of the actor and one update of all targets.", at_least=1
    )
    target_policy_noise: float = setting(
        0.2, "Standard deviation of the noise on actions of the target actor (target policy smoothing).", at_least=0
    )
    target_noise_clip: float = setting(0.5, "That noise is clipped to ± this.", at_least=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_noise_steps(self)


# -- the losses and the update -----------------------------------------------------------------------------------
class TD3(OffPolicy):
    """Two critics, of which the smaller value counts, and a deterministic actor that is updated half as often."""

    Config = TD3Config
    actions, bounded_actions = (spaces.Box,), True
    losses = ("critic_loss", "actor_loss")
    noise_draws = 1

    def make_networks(self) -> None:
        self.actor = self.new_network("actor")
        self.critic = self.new_network("critic", copies=2, more=self.action[0][0])
        self.first_critic = self.critic.first()
        self.target_actor, self.target_critic = self.targets["actor"], self.targets["critic"]

    def outputs(self) -> Mapping[str, int]:
        """The action before its tanh, and a value."""
        return {"actor": self.action[0][0], "critic": 1}

    def head(self) -> Head:
        """A tanh, with Gaussian exploration noise."""
        return bounded_head(self.action_space, self.config.action_noise, noise_steps=self.config.noise_steps)

    def critic_loss(self, batch: ReplayBatch) -> Loss:
        """Σ (Q_i(s, a) - (r + γ min Q̄_i(s', a')))², averaged over the batch; a' = clip(π̄(s') + clip(ε))."""
        import torch

        limit, noise = self.config.target_noise_clip, self.config.target_policy_noise * batch.noise[0]
        with torch.no_grad():
            actions = self.target_actor(batch.next_observations).tanh() + noise.clamp(-limit, limit)
            values = self.target_critic(batch.next_observations, actions.clamp(-1.0, 1.0))[..., 0].amin(0)
            targets = batch.rewards + batch.discounts * values
        values = self.critic(batch.observations, batch.actions)[..., 0]
        loss = ((values - targets) ** 2).mean(-1).sum()
        return Loss(loss, critic_loss=loss, mean_value=values[0].mean())

    def actor_loss(self, batch: ReplayBatch) -> Loss:
        """-Q_1(s, π(s)), averaged over the batch."""
        actions = self.actor(batch.observations).tanh()
        return Loss(-self.first_critic(batch.observations, actions).mean())

    def gradient_step(self, batch: ReplayBatch) -> tuple[Any, dict[str, Any]]:
        metrics, learning = self.gradient("critic_loss", self.critic, batch), [self.critic]
        due = self.steps % self.config.policy_delay == 0
        if due:  # gradients are computed before steps, as in SAC
            metrics |= self.gradient("actor_loss", self.actor, batch)
            learning.append(self.actor)
        taken = self.take_step(*learning)
        if due:
            for target in self.targets.values():
                target.soft_update(self.config.tau)
        return taken, metrics

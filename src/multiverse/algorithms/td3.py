"""Twin delayed deep deterministic policy gradient (Fujimoto et al. 2018).

Sections, as in every algorithm: config, the loss, the update.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from multiverse.algorithms.off_policy import Minibatch, OffPolicy, OffPolicyConfig
from multiverse.contracts.errors import InvalidRequest
from multiverse.experience.heads import Head, bounded_head
from multiverse.learning.loss import Shown


# -- config ------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class TD3Config(OffPolicyConfig):
    """Settings of TD3."""

    learning_rate: float = 1e-3
    """Step size of Adam."""
    action_noise: float = 0.1
    """Standard deviation of the noise that it explores with; actions are from -1 to 1."""
    noise_steps: int = 1
    """Steps in a row, of one update's `steps_per_env`, in which that noise stays the same: where rewards are far away,
    pushes that last lead further than ones that cancel out."""
    policy_delay: int = 2
    """Gradient steps of the critics for one of the actor, after which all targets follow."""
    target_policy_noise: float = 0.2
    """Standard deviation of the noise on what the target actor would do: near actions should be worth the same."""
    target_noise_clip: float = 0.5
    """The largest of that noise."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check("at least 1", lambda value: value >= 1, "policy_delay")
        self._check(
            "at least 1, and at most steps_per_env", lambda held: 1 <= held <= self.steps_per_env, "noise_steps"
        )
        self._check("0 or more", lambda value: value >= 0, "action_noise", "target_policy_noise", "target_noise_clip")


# -- the loss ----------------------------------------------------------------------------------------------------
def smoothed(xp: Any, actions: Any, noise: Any, config: TD3Config) -> Any:
    """Actions of the target policy with clipped noise, from -1 to 1 again."""
    limit = config.target_noise_clip
    return xp.clip(actions + xp.clip(config.target_policy_noise * noise, -limit, limit), -1.0, 1.0)


# -- the update --------------------------------------------------------------------------------------------------
class TD3(OffPolicy):
    """Two critics of which the smaller counts, and an actor that follows the first of them, half as often."""

    Config = TD3Config
    metrics = ("critic_loss", "mean_value")

    def _make_networks(self) -> None:
        self._head()  # refuses other actions
        size = self.action[0][0]
        self._actor = self._network("actor", size)
        self._critic = self._network("critic", 1, copies=2, more=size)
        self._first_critic = self._critic.first()

    def _head(self) -> Head:
        try:
            return bounded_head(self._action_space, self.config.action_noise, noise_steps=self.config.noise_steps)
        except InvalidRequest as error:
            raise InvalidRequest(f"td3: {error}. For Discrete ones there are discrete_sac and dqn") from None

    def _gradient_step(self, batch: Minibatch) -> tuple[Any, Any]:
        config, xp, critic = self.config, self._actor.xp, self._critic
        noise, count = self._normal(*batch.actions.shape), len(batch.rewards)
        following = smoothed(xp, xp.tanh(self._targets["actor"].output(batch.after)), noise, config)
        values = self._targets["critic"].output(batch.after, following)[..., 0]
        target = batch.rewards + batch.discounts * xp.minimum(*values)
        values = critic.forward(batch.seen, batch.actions)[..., 0]
        errors = values - target
        critic.backward(errors[..., None] * (2.0 / count))
        self._steps += 1
        due = self._steps % config.policy_delay == 0
        improved = self._improve_actor(batch.seen, count) if due else True  # before the critics change: see SAC
        taken = critic.optimizer.step(config.learning_rate, math.inf) & improved
        if due:
            for target in self._targets.values():
                target.follow(config.tau)
        return taken, xp.stack([(errors * errors).mean(-1).sum(), values[0].mean()])

    def _improve_actor(self, seen: Shown, count: int) -> Any:
        """Up the first critic's value of what the actor does."""
        xp, actor, critic = self._actor.xp, self._actor, self._first_critic
        actions = xp.tanh(actor.forward(seen))
        values = critic.forward(seen, actions)
        by_action = critic.by_vector(values * 0 + 1, slice(-actions.shape[-1], None))
        actor.backward(by_action * (1.0 - actions * actions) / -count)
        return actor.optimizer.step(self.config.learning_rate, math.inf)

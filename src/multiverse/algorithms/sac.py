"""Soft actor-critic (Haarnoja et al. 2018), with a temperature that is learned.

Sections, as in every algorithm: config, the loss, the update.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from multiverse.algorithms.off_policy import Minibatch, OffPolicy, OffPolicyConfig
from multiverse.contracts.errors import InvalidRequest
from multiverse.experience.heads import LOG_STD_RANGE, Head, bounded_head
from multiverse.learning.distributions import HALF_LOG_TAU
from multiverse.learning.optimizers import Adam, Optimizer


# -- config ------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class SACConfig(OffPolicyConfig):
    """Settings of SAC."""

    entropy_coef: float | str = "auto"
    """Weight of the entropy bonus (the temperature α). auto: learned, so that the entropy is `target_entropy`, from 1
    on; auto_0.1: from 0.1 on, where rewards are small and should count from the beginning."""
    target_entropy: float | None = None
    """Entropy that a learned temperature leads to. Default: minus the number of actions."""
    target_update_interval: int = 1
    """Gradient steps between those after which the target critics follow."""
    noise_steps: int = 1
    """Steps in a row, of one update's `steps_per_env`, in which what it explores with stays the same: where rewards are
    far away, pushes that last lead further than ones that cancel out."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check("at least 1", lambda value: value >= 1, "target_update_interval")
        self._check(
            "at least 1, and at most steps_per_env", lambda held: 1 <= held <= self.steps_per_env, "noise_steps"
        )
        first_temperature(self.entropy_coef)


def first_temperature(entropy_coef: float | str) -> float:
    """What α begins with, of a number, `auto`, and `auto_0.1`."""
    first: Any = entropy_coef
    if isinstance(entropy_coef, str):
        word, _, first = entropy_coef.partition("_")
        first = 1.0 if entropy_coef == "auto" else first if word == "auto" else "none"
    try:
        found = float(first)
    except ValueError:
        found = -1.0
    if not 0.0 <= found < math.inf or (found == 0.0 and isinstance(entropy_coef, str)):
        expected = "expected a number from 0 on, auto (learned), or auto_0.1 (learned from 0.1 on)"
        raise InvalidRequest(f"entropy_coef={entropy_coef}: {expected}")
    return found


# -- the loss ----------------------------------------------------------------------------------------------------
class Drawn(NamedTuple):
    """Actions tanh(μ + σ ε) of a squashed Gaussian, and what it takes to know how they change with μ and log σ."""

    actions: Any  # [N, actions]
    log_probs: Any  # [N]
    moved: Any  # [N, actions] σ ε
    free: Any  # [N, actions] bool: log σ was not clipped


def squashed_gaussian(xp: Any, output: Any, noise: Any) -> Drawn:
    """log π(a) = Σ log N(u; μ, σ) - log(1 - tanh(u)²), with a = tanh(u)."""
    size = output.shape[-1] // 2
    mean, raw = output[:, :size], output[:, size:]
    log_std = xp.clip(raw, *map(float, LOG_STD_RANGE))
    moved = xp.exp(log_std) * noise
    before = mean + moved
    squash = 2.0 * (math.log(2.0) - before - xp.logaddexp(before * 0, -2.0 * before))  # for large ones too
    log_probs = (-0.5 * noise * noise - log_std - HALF_LOG_TAU - squash).sum(-1)
    return Drawn(xp.tanh(before), log_probs, moved, raw == log_std)


def actor_gradient(xp: Any, drawn: Drawn, by_action: Any, entropy_coef: Any) -> Any:
    """By the outputs [N, 2 × actions], of the mean over rows of α log π(a) - Q(a); `by_action` is ∂Q/∂a."""
    count, actions = len(drawn.actions), drawn.actions
    by_mean = (2.0 * entropy_coef * actions - by_action * (1.0 - actions * actions)) / count
    by_log_std = (by_mean * drawn.moved - entropy_coef / count) * drawn.free
    return xp.concatenate((by_mean, by_log_std), -1)


# -- the update --------------------------------------------------------------------------------------------------
class SAC(OffPolicy):
    """Two critics of which the smaller counts, and an actor that is as random as its temperature makes worth while."""

    Config = SACConfig
    metrics = ("critic_loss", "actor_loss", "entropy_coef", "entropy", "mean_value")

    def _make_networks(self) -> None:
        self._head()  # refuses other actions
        size = self.action[0][0]
        self._actor = self._network("actor", 2 * size, follows=False)
        self._critic = self._network("critic", 1, copies=2, more=size)
        self._temperature = Temperature(self.config, self._put, self._actor.xp)

    @property
    def _optimizers(self) -> dict[str, Optimizer]:
        return {**super()._optimizers, "temperature": self._temperature.optimizer}

    def _head(self) -> Head:
        try:
            return bounded_head(self._action_space, noise_steps=self.config.noise_steps)
        except InvalidRequest as error:
            raise InvalidRequest(f"sac: {error}. For Discrete ones there are discrete_sac and dqn") from None

    def _gradient_step(self, batch: Minibatch) -> tuple[Any, Any]:
        config, xp, actor, critic = self.config, self._actor.xp, self._actor, self._critic
        count, size = batch.actions.shape
        alpha = self._temperature.value(config)
        following = squashed_gaussian(xp, actor.output(batch.after), self._normal(count, size))
        values = self._targets["critic"].output(batch.after, following.actions)[..., 0]
        target = batch.rewards + batch.discounts * (xp.minimum(*values) - alpha * following.log_probs)
        errors = critic.forward(batch.seen, batch.actions)[..., 0] - target
        critic.backward(errors[..., None] / count)

        drawn = squashed_gaussian(xp, actor.forward(batch.seen), self._normal(count, size))
        values = critic.forward(batch.seen, drawn.actions)[..., 0]
        smaller = xp.stack((values[0] <= values[1], values[0] > values[1])) * (values * 0 + 1)
        by_action = critic.by_vector(smaller[..., None], slice(-size, None))
        actor.backward(actor_gradient(xp, drawn, by_action, alpha))
        # Both learn from what the other was, as Haarnoja's do: where they remember, the critics do so once for both.
        learned = critic.optimizer.step(config.learning_rate, math.inf)
        improved = actor.optimizer.step(config.learning_rate, math.inf)
        wanted = -float(size) if config.target_entropy is None else config.target_entropy
        tuned = self._temperature.step(config, -drawn.log_probs.mean() - wanted)

        self._steps += 1
        if self._steps % config.target_update_interval == 0:
            self._targets["critic"].follow(config.tau)
        value, log_prob = xp.minimum(*values).mean(), drawn.log_probs.mean()
        told = [0.5 * (errors * errors).mean(-1).sum(), alpha * log_prob - value, alpha + 0 * value, -log_prob, value]
        return learned & improved & tuned, xp.stack(told)


class Temperature:
    """α: fixed, or learned so that the entropy is what it should be."""

    def __init__(self, config: Any, put: Any, xp: Any) -> None:
        first, self._xp = first_temperature(config.entropy_coef) or 1.0, xp  # of 0 none could be learned from
        self.optimizer: Optimizer = Adam(xp, put(np.log(np.full(1, first, np.float32))), 1e-8)

    def value(self, config: Any) -> Any:
        fixed = config.entropy_coef
        return self._xp.exp(self.optimizer.parameters[0]) if isinstance(fixed, str) else fixed

    def step(self, config: Any, surplus: Any) -> Any:
        """`surplus`: of entropy over what it should be. Down the gradient of log α · surplus."""
        if not isinstance(config.entropy_coef, str):
            return True
        self.optimizer.gradient[0] = surplus
        return self.optimizer.step(config.learning_rate, math.inf)

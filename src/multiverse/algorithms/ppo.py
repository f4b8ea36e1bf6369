"""Proximal policy optimisation (Schulman et al. 2017).

Sections, as in every algorithm: config, the loss, the update.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np

from multiverse.algorithms.algorithm import UpdateReport
from multiverse.algorithms.on_policy import OnPolicy, check_settings, explained_variance
from multiverse.experience.rollout import Rollout
from multiverse.learning.loss import Batch, LossGradient, Outputs, normalized

Schedule = Literal["constant", "linear"]
METRICS = ("policy_loss", "value_loss", "entropy", "kl", "clip_fraction")


# -- config ------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class PPOConfig:
    """Settings of PPO."""

    steps_per_env: int = 128
    """Steps of every env in a rollout, from which one update learns."""
    epochs: int = 4
    """Passes over a rollout in one update."""
    batch_size: int = 256
    """Rows of a minibatch: one gradient step."""
    learning_rate: float = 3e-4
    """Step size of Adam."""
    learning_rate_schedule: Schedule = "constant"
    """`linear`: down to 0 at the end of the budget."""
    gamma: float = 0.99
    """Discount factor."""
    gae_lambda: float = 0.95
    """λ of generalized advantage estimation: 0 is the one-step TD error, 1 the whole return."""
    clip_range: float = 0.2
    """Of the probability ratio: beyond 1 ± this, an update gains nothing."""
    clip_range_schedule: Schedule = "constant"
    """`linear`: down to 0 at the end of the budget."""
    value_clip_range: float | None = None
    """Clip range of the value function, as Stable-Baselines3 clips it; None: not clipped."""
    value_coef: float = 0.5
    """Weight of the value loss."""
    entropy_coef: float = 0.0
    """Weight of the entropy bonus, which keeps a policy exploring."""
    max_grad_norm: float = 0.5
    """Longer gradients are scaled down to this norm."""
    normalize_advantages: bool = True
    """Advantages of a minibatch with mean 0 and standard deviation 1."""
    target_kl: float | None = None
    """Stop the update once the approximate KL divergence exceeds 1.5 times this."""
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
            at_least_1=("steps_per_env", "epochs", "batch_size"),
            shares=("gamma", "gae_lambda"),
            above_0=("learning_rate", "clip_range", "max_grad_norm", "target_kl", "value_clip_range"),
            at_least_0=("value_coef", "entropy_coef"),
        )


# -- the loss ----------------------------------------------------------------------------------------------------
def ppo_loss(
    xp: Any,
    said: Outputs,
    rows: Batch,
    *,
    clip: float,
    value_clip: float | None,
    value_coef: float,
    entropy_coef: float,
    normalize: bool,
    looks: bool,
) -> LossGradient:
    """-min(r A, clip(r, 1 ± ε) A) + c_v (V - R)² - c_e H, in the mean over the rows; r = π / π_old.

    `xp`: numpy or torch. `looks`: tell what it consists of.
    """
    count, advantages, returns = len(rows), rows["advantages"], rows["returns"]
    if normalize:
        advantages = normalized(xp, advantages)
    log_ratios = said.log_probs - rows["log_probs"]
    ratios = xp.exp(log_ratios)
    # A row counts until its ratio has gone as far as it may in the direction its advantage pulls.
    counts = xp.where(advantages > 0, ratios <= 1 + clip, ratios >= 1 - clip)
    by_log_prob = ratios * advantages * counts / -count
    values = said.values
    if value_clip is not None:
        values = rows["values"] + xp.clip(said.values - rows["values"], -value_clip, value_clip)
    errors = values - returns
    by_value = errors * (2 * value_coef / count)
    if value_clip is not None:
        by_value = by_value * (xp.abs(said.values - rows["values"]) <= value_clip)
    if not looks:
        return LossGradient(by_log_prob, -entropy_coef / count, by_value, None)
    moved, clipped = xp.expm1(log_ratios), xp.clip(ratios, 1 - clip, 1 + clip)
    policy_loss = -xp.minimum(ratios * advantages, clipped * advantages).mean()
    kl, beyond = (moved - log_ratios).mean(), (1.0 * (xp.abs(moved) > clip)).mean()
    parts = [policy_loss, (errors * errors).mean(), said.entropies.mean(), kl, beyond]
    return LossGradient(by_log_prob, -entropy_coef / count, by_value, [float(part) for part in parts])


# -- the update --------------------------------------------------------------------------------------------------
class PPO(OnPolicy):
    """Several passes over each rollout in minibatches, each moving the policy only so far."""

    Config = PPOConfig

    def update(self, rollouts: Sequence[Rollout], progress: float) -> UpdateReport:
        (rollout,) = rollouts
        self._refuse_older(rollout)
        config, networks = self.config, self._networks
        batch = self._batch(rollout)
        batch.columns["log_probs"] = networks.log_probs(batch)
        networks.optimizer.learning_rate = config.learning_rate * _left(config.learning_rate_schedule, progress)
        loss = partial(
            ppo_loss,
            clip=config.clip_range * _left(config.clip_range_schedule, progress),
            value_clip=config.value_clip_range,
            value_coef=config.value_coef,
            entropy_coef=config.entropy_coef,
            normalize=config.normalize_advantages,
        )
        rows = np.flatnonzero(rollout.valid.reshape(-1))
        losses: list[list[float]] = []
        steps = skipped = 0
        for epoch in range(config.epochs):
            self._rng.shuffle(rows)
            looks = epoch == config.epochs - 1 or config.target_kl is not None  # the last pass tells what became of it
            shuffled = batch.take(networks.rows(rows))
            for first in range(0, len(rows), config.batch_size):
                minibatch = shuffled.take(slice(first, first + config.batch_size))
                parts = networks.gradient(minibatch, partial(loss, looks=looks))
                if config.target_kl is not None and parts[3] > 1.5 * config.target_kl:
                    break
                took = self._take_step()
                steps, skipped = steps + took, skipped + (not took)
                losses += [parts] if took and looks else []
            else:
                continue
            break
        self._updated(rollout)
        metrics = dict(zip(METRICS, np.mean(losses, axis=0).tolist())) if losses else {}
        if losses:
            metrics["explained_variance"] = explained_variance(
                *(_array(batch[name])[rows] for name in ("values", "returns"))
            )
        return UpdateReport(metrics, steps, skipped)


def _left(schedule: Schedule, progress: float) -> float:
    """Of a scheduled value, how much of it is used now."""
    return 1.0 - progress if schedule == "linear" else 1.0


def _array(column: Any) -> Any:
    return np.asarray(column.cpu() if hasattr(column, "cpu") else column)

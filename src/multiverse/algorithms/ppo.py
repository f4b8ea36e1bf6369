"""Proximal policy optimisation (Schulman et al. 2017).

Sections, as in every algorithm: config, the loss, the update.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np

from multiverse.algorithms.algorithm import UpdateReport
from multiverse.algorithms.on_policy import LagCorrection, OnPolicy, OnPolicyConfig, explained_variance
from multiverse.experience.rollout import Rollout
from multiverse.learning.loss import Batch, LossGradient, Outputs, as_numpy, normalized

Schedule = Literal["constant", "linear"]
METRICS = ("policy_loss", "value_loss", "entropy", "kl", "clip_fraction")


# -- config ------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class PPOConfig(OnPolicyConfig):
    """Settings of PPO."""

    epochs: int = 4
    """Passes over a rollout in one update."""
    batch_size: int = 256
    """Rows of a minibatch: one gradient step."""
    learning_rate_schedule: Schedule = "constant"
    """`linear`: down to 0 at the end of the budget."""
    clip_range: float = 0.2
    """Of the probability ratio: beyond 1 ± this, an update gains nothing."""
    clip_range_schedule: Schedule = "constant"
    """`linear`: down to 0 at the end of the budget."""
    value_clip_range: float | None = None
    """Clip range of the value function, as in OpenAI's and CleanRL's PPO: the larger of the clipped and the unclipped
    squared error counts (Stable-Baselines3 takes the clipped one alone). None: not clipped."""
    normalize_advantages: bool = True
    """Advantages of a minibatch with mean 0 and standard deviation 1."""
    lag_correction: LagCorrection = "ratio"
    target_kl: float | None = None
    """Stop the update once the approximate KL divergence exceeds 1.5 times this."""

    def scheduled(self, progress: float) -> dict[str, float]:
        names = [name for name in ("learning_rate", "clip_range") if getattr(self, f"{name}_schedule") == "linear"]
        return {name: float(getattr(self, name) * (1.0 - progress)) for name in names}

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check("at least 1", lambda value: value >= 1, "epochs", "batch_size")
        self._check("above 0", lambda value: value > 0.0, "clip_range", "target_kl", "value_clip_range")


# -- the loss ----------------------------------------------------------------------------------------------------
def ppo_loss(
    xp: Any, outputs: Outputs, rows: Batch, *, config: PPOConfig, clip: float, with_metrics: bool
) -> LossGradient:
    """-min(r A, clip(r, 1 ± ε) A) + c_v (V - R)² - c_e H, in the mean over the rows; r = π / π_old.

    `xp`: numpy or torch, which may be on a GPU: nothing here waits for it.
    """
    count, advantages = len(rows), rows["advantages"]
    if config.normalize_advantages:
        advantages = normalized(xp, advantages)
    log_ratios = outputs.log_probs - rows["log_probs"]
    ratios = xp.exp(log_ratios)
    # A row counts until its ratio has gone as far as it may in the direction its advantage pulls.
    counts = xp.where(advantages > 0, ratios <= 1 + clip, ratios >= 1 - clip)
    by_log_prob = ratios * advantages * counts / -count

    errors = outputs.values - rows["returns"]
    by_value, value_losses = errors * (2 * config.value_coef / count), errors * errors
    if config.value_clip_range is not None:
        limit, moved = config.value_clip_range, outputs.values - rows["values"]
        clipped = rows["values"] + xp.clip(moved, -limit, limit) - rows["returns"]
        # As above: until its value has gone as far as it may, if that was towards its return.
        by_value = by_value * ((xp.abs(moved) <= limit) | (value_losses > clipped * clipped))
        value_losses = xp.maximum(value_losses, clipped * clipped)

    metrics = None
    if with_metrics:
        policy_losses = -xp.minimum(ratios * advantages, xp.clip(ratios, 1 - clip, 1 + clip) * advantages)
        moved = xp.expm1(log_ratios)
        kl, clipped_away = moved - log_ratios, 1.0 * (xp.abs(moved) > clip)
        metrics = xp.stack([policy_losses, value_losses, outputs.entropies, kl, clipped_away]).mean(-1)
    return LossGradient(by_log_prob, -config.entropy_coef / count, by_value, metrics)


# -- the update --------------------------------------------------------------------------------------------------
class PPO(OnPolicy):
    """Several passes over each rollout in minibatches, each moving the policy only so far."""

    Config: type[PPOConfig] = PPOConfig
    metrics: tuple[str, ...] = METRICS
    has_ratio = True

    def update(self, rollouts: Sequence[Rollout], progress: float) -> UpdateReport:
        (rollout,) = rollouts
        self._refuse_older(rollout)
        config, networks = self.config, self._networks
        batch = self._batch(rollout)
        if "log_probs" not in batch.columns:
            batch.columns["log_probs"] = networks.log_probs(batch)
        scheduled = config.scheduled(progress)
        learning_rate = scheduled.get("learning_rate", float(config.learning_rate))
        clip = scheduled.get("clip_range", config.clip_range)
        found: list[Any] = []  # metrics of every gradient step, and
        taken: list[Any] = []  # whether it was taken
        for epoch, minibatch in self._minibatches(batch):
            asked = epoch == config.epochs - 1 or config.target_kl is not None  # the last pass tells what became of it
            loss = partial(ppo_loss, config=config, clip=clip, with_metrics=asked)
            metrics = networks.gradient(minibatch, loss)
            if config.target_kl is not None and float(metrics[METRICS.index("kl")]) > 1.5 * config.target_kl:
                break
            taken.append(networks.optimizer.step(learning_rate, config.max_grad_norm))
            found.append(metrics)
        steps = self._count(taken)
        self._updated(rollout)
        told = [metrics for metrics, took in zip(found, steps) if took and metrics is not None]
        report = dict(zip(self.metrics, as_numpy(networks.xp.stack(told)).mean(axis=0).tolist())) if told else {}
        if told:
            report |= {"explained_variance": self._explained(batch), "learning_rate": learning_rate}
        return UpdateReport(report | self._lag, sum(steps), len(steps) - sum(steps))

    def _explained(self, batch: Batch) -> float:
        return explained_variance(*(as_numpy(batch[name]) for name in ("values", "returns")))

    def _minibatch_rows(self) -> int:
        return int(self.config.batch_size)

    def _minibatches(self, batch: Batch) -> Iterator[tuple[int, Batch]]:
        """(epoch, minibatch), in another order in every epoch."""
        order = np.arange(batch.units)
        for epoch in range(self.config.epochs):
            self._rng.shuffle(order)
            for minibatch in batch.minibatches(order, self._minibatch_rows(), self._networks.put):
                yield epoch, minibatch

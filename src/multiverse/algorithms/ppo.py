"""Proximal policy optimisation (Schulman et al. 2017).

Sections, as in every algorithm: config; the loss and the update.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from multiverse.algorithms.algorithm import UpdateReport
from multiverse.algorithms.on_policy import OnPolicy
from multiverse.algorithms.settings import LagCorrection, OnPolicyConfig
from multiverse.core.settings import setting
from multiverse.learning.batches import RolloutBatch
from multiverse.learning.loss import Loss, Outputs, approximate_kl, as_numpy, standardized
from multiverse.learning.returns import explained_variance
from multiverse.rollouts.rollout import Rollout

Schedule = Literal["constant", "linear"]


# -- config ------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class PPOConfig(OnPolicyConfig):
    """Settings of PPO."""

    epochs: int = setting(4, "Passes over a rollout in one update.", at_least=1)
    batch_size: int = setting(256, "Number of rows of a minibatch, which gives one gradient step.", at_least=1)
    learning_rate_schedule: Schedule = setting("constant", "`linear`: decreases to 0 at the end of the budget.")
    clip_range: float = setting(0.2, "The probability ratio is clipped to 1 ± this.", above=0)
    clip_range_schedule: Schedule = setting("constant", "`linear`: decreases to 0 at the end of the budget.")
    value_clip_range: float | None = setting(
        None,
        "Clip range of the value function, as in OpenAI's and CleanRL's PPO: the larger of the clipped and the "
        "unclipped squared error counts (Stable-Baselines3 takes the clipped one alone). None: not clipped.",
        above=0,
    )
    normalize_advantages: bool = setting(
        True, "The advantages of a minibatch are standardized to mean 0 and standard deviation 1."
    )
    lag_correction: LagCorrection = "ratio"
    target_kl: float | None = setting(
        None, "Stop the update once the approximate KL divergence exceeds 1.5 times this.", above=0
    )

    def scheduled(self, progress: float) -> dict[str, float]:
        names = [name for name in ("learning_rate", "clip_range") if getattr(self, f"{name}_schedule") == "linear"]
        return {name: float(getattr(self, name) * (1.0 - progress)) for name in names}


# -- the loss and the update -------------------------------------------------------------------------------------
class PPO(OnPolicy):
    """Several epochs of minibatches of each rollout, with a clipped objective that limits the change of the policy."""

    Config: type[PPOConfig] = PPOConfig
    has_ratio = True

    @property
    def clip_range(self) -> float:
        """The clip range at this point of the budget."""
        return float(self.config.scheduled(self.progress).get("clip_range", self.config.clip_range))

    def loss(self, out: Outputs, batch: RolloutBatch) -> Loss:
        """-min(r A, clip(r, 1 ± ε) A) + c_v (V - R)² - c_e H, averaged over the rows; r = π / π_old."""
        config, clip = self.config, self.clip_range
        advantages = standardized(batch.advantages) if config.normalize_advantages else batch.advantages
        log_ratio = out.log_prob - batch.log_probs
        ratio, entropy = log_ratio.exp(), out.entropy.mean()
        policy_loss, value_loss = self.policy_loss(ratio, advantages), self.value_loss(out.values, batch)
        return Loss(
            policy_loss + config.value_coef * value_loss - config.entropy_coef * entropy,
            policy_loss=policy_loss,
            value_loss=value_loss,
            entropy=entropy,
            kl=approximate_kl(log_ratio.detach()),
            clip_fraction=((ratio.detach() - 1).abs() > clip).float().mean(),
        )

    def policy_loss(self, ratio: Any, advantages: Any) -> Any:
        """Return the clipped objective, from the probability ratios and the (standardized) advantages [rows]."""
        clipped = ratio.clamp(1 - self.clip_range, 1 + self.clip_range)
        return -(ratio * advantages).minimum(clipped * advantages).mean()

    def value_loss(self, values: Any, batch: RolloutBatch) -> Any:
        """Return the squared error of the values [rows], clipped if `value_clip_range` is set."""
        limit = self.config.value_clip_range
        if limit is None:
            return super().value_loss(values, batch)
        clipped = batch.values + (values - batch.values).clamp(-limit, limit)
        return ((values - batch.returns) ** 2).maximum((clipped - batch.returns) ** 2).mean()

    def update(self, rollouts: Sequence[Rollout], progress: float) -> UpdateReport:
        (rollout,) = rollouts
        self._refuse_older(rollout)
        self.progress = progress
        config, networks = self.config, self._networks
        batch = self._batch(rollout)
        learning_rate = config.scheduled(progress).get("learning_rate", float(config.learning_rate))
        metrics: list[Mapping[str, Any]] = []  # of gradient steps
        taken: list[Any] = []  # whether each was taken
        for epoch, minibatch in self._minibatches(batch):
            reported = epoch == config.epochs - 1 or config.target_kl is not None  # metrics are those of the last epoch
            step_metrics = self._gradient(minibatch, reported)
            if config.target_kl is not None and float(step_metrics["kl"]) > 1.5 * config.target_kl:
                break
            taken.append(networks.optimizer.step(learning_rate, config.max_grad_norm))
            metrics.append(step_metrics if reported else {})
        steps = self._count(taken)
        self._updated(rollout)
        report = self._means([metric for metric, step_taken in zip(metrics, steps) if step_taken and metric])
        if report:
            report |= {"explained_variance": self._explained(batch), "learning_rate": learning_rate}
        return UpdateReport(report | self._batches.lag_metrics, sum(steps), len(steps) - sum(steps))

    def _explained(self, batch: RolloutBatch) -> float:
        return explained_variance(values=as_numpy(batch["values"]), returns=as_numpy(batch["returns"]))

    def _minibatch_rows(self) -> int:
        return int(self.config.batch_size)

    def _minibatches(self, batch: RolloutBatch) -> Iterator[tuple[int, RolloutBatch]]:
        """Yield (epoch, minibatch), in another order in every epoch."""
        order = np.arange(batch.units)
        for epoch in range(self.config.epochs):
            self._rng.shuffle(order)
            for minibatch in batch.minibatches(order, self._minibatch_rows(), self._networks.put):
                yield epoch, minibatch

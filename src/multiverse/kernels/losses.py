"""Gradients of stock losses by the outputs of the networks, in numpy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from multiverse.core.layout import Array
from multiverse.learning.batches import RolloutBatch
from multiverse.learning.loss import Outputs


class LossGradient(NamedTuple):
    """Gradient of a loss by the outputs of the networks."""

    log_prob: Array  # [rows]
    entropy: float  # the same for every row
    value: Array  # [rows]
    metrics: Mapping[str, Any] | None  # None unless `with_metrics`


def ppo_gradient(algorithm: Any, out: Outputs, batch: RolloutBatch, with_metrics: bool = True) -> LossGradient:
    """Gradient of `PPO.loss`."""
    config, clip = algorithm.config, algorithm.clip_range
    count, advantages = len(batch), batch.advantages
    if config.normalize_advantages:
        advantages = _standardized(advantages)
    log_ratios = out.log_prob - batch.log_probs
    ratios = np.exp(log_ratios)
    # The gradient of a row is 0 once its ratio is beyond the clip range in the direction of its advantage.
    unclipped = np.where(advantages > 0, ratios <= 1 + clip, ratios >= 1 - clip)
    grad_log_prob = ratios * advantages * unclipped / -count

    errors = out.values - batch.returns
    grad_value, value_losses = errors * (2 * config.value_coef / count), errors * errors
    if config.value_clip_range is not None:
        limit, value_change = config.value_clip_range, out.values - batch.values
        clipped = batch.values + np.clip(value_change, -limit, limit) - batch.returns
        # Likewise once its value is beyond the clip range, if it moved towards the return.
        grad_value = grad_value * ((np.abs(value_change) <= limit) | (value_losses > clipped * clipped))
        value_losses = np.maximum(value_losses, clipped * clipped)

    metrics = None
    if with_metrics:
        policy_losses = -np.minimum(ratios * advantages, np.clip(ratios, 1 - clip, 1 + clip) * advantages)
        ratio_minus_one = np.expm1(log_ratios)
        kl, clipped_rows = ratio_minus_one - log_ratios, 1.0 * (np.abs(ratio_minus_one) > clip)
        means = np.stack([policy_losses, value_losses, out.entropy, kl, clipped_rows]).mean(-1)
        metrics = dict(zip(("policy_loss", "value_loss", "entropy", "kl", "clip_fraction"), means))
    return LossGradient(grad_log_prob, -config.entropy_coef / count, grad_value, metrics)


def a2c_gradient(algorithm: Any, out: Outputs, batch: RolloutBatch, with_metrics: bool = True) -> LossGradient:
    """Gradient of `A2C.loss`."""
    config = algorithm.config
    count, advantages, errors = len(batch), batch.advantages, out.values - batch.returns
    if config.normalize_advantages:
        advantages = _standardized(advantages)
    metrics = {
        "policy_loss": -(advantages * out.log_prob).mean(),
        "value_loss": (errors * errors).mean(),
        "entropy": out.entropy.mean(),
    }
    grad_value = errors * (2 * config.value_coef / count)
    return LossGradient(advantages / -count, -config.entropy_coef / count, grad_value, metrics)


def _standardized(values: Array) -> Array:
    if len(values) < 2:
        return values
    centered = values - values.sum() / len(values)
    return np.asarray(centered / (np.sqrt(centered @ centered / (len(values) - 1)) + 1e-8))

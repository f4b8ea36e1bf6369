"""Gradients of the stock losses of SAC, TD3, discrete SAC and DQN, in numpy.

Each writes the gradient into that of the network's optimizer and returns the metrics of the loss.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from multiverse.core.layout import Array
from multiverse.learning.batches import ReplayBatch
from multiverse.learning.distributions import HALF_LOG_TAU, log_softmax, mask_logits

Metrics = dict[str, Any]


# -- SAC ---------------------------------------------------------------------------------------------------------
class SquashedSample(NamedTuple):
    """Actions tanh(μ + σ ε) of a squashed Gaussian, and what their derivatives by μ and log σ consist of."""

    actions: Array  # [N, actions]
    log_probs: Array  # [N]
    scaled_noise: Array  # [N, actions] σ ε
    unclipped: Array  # [N, actions] bool: log σ was not clipped


def squashed_sample(output: Array, noise: Array, log_std_range: tuple[float, float]) -> SquashedSample:
    """log π(a) = Σ log N(u; μ, σ) - log(1 - tanh(u)²), with a = tanh(u)."""
    size = output.shape[-1] // 2
    mean, raw = output[:, :size], output[:, size:]
    log_std = np.clip(raw, log_std_range[0], log_std_range[1])
    scaled_noise = np.exp(log_std) * noise
    before = mean + scaled_noise
    squash = 2.0 * (math.log(2.0) - before - np.logaddexp(before * 0, -2.0 * before))  # stable for large values
    log_probs = (-0.5 * noise * noise - log_std - HALF_LOG_TAU - squash).sum(-1)
    return SquashedSample(np.tanh(before), log_probs, scaled_noise, raw == log_std)


def sac_critic_gradient(algorithm: Any, batch: ReplayBatch) -> Metrics:
    """Gradient of `SAC.critic_loss`."""
    critic, alpha = algorithm.critic, algorithm.entropy_coef
    output = algorithm.actor.output(batch.next_observations)
    following = squashed_sample(output, batch.noise[0], algorithm.log_std_range)
    values = algorithm.target_critic.output(batch.next_observations, following.actions)[..., 0]
    target = batch.rewards + batch.discounts * (np.minimum(*values) - alpha * following.log_probs)
    errors = critic.forward(batch.observations, batch.actions)[..., 0] - target
    critic.backward(errors[..., None] / len(batch.actions))
    return {"critic_loss": 0.5 * (errors * errors).mean(-1).sum()}


def sac_actor_gradient(algorithm: Any, batch: ReplayBatch) -> Metrics:
    """Gradient of `SAC.actor_loss`."""
    actor, critic, alpha, (count, size) = algorithm.actor, algorithm.critic, algorithm.entropy_coef, batch.actions.shape
    sample = squashed_sample(actor.forward(batch.observations), batch.noise[1], algorithm.log_std_range)
    values = critic.forward(batch.observations, sample.actions)[..., 0]
    smaller = np.stack((values[0] <= values[1], values[0] > values[1])) * (values * 0 + 1)
    grad_action = critic.vector_grad(smaller[..., None], slice(-size, None))
    grad_mean = (2.0 * alpha * sample.actions - grad_action * (1.0 - sample.actions * sample.actions)) / count
    grad_log_std = (grad_mean * sample.scaled_noise - alpha / count) * sample.unclipped
    actor.backward(np.concatenate((grad_mean, grad_log_std), -1))
    value, log_prob = np.minimum(*values).mean(), sample.log_probs.mean()
    actor_loss = alpha * log_prob - value
    return {"actor_loss": actor_loss, "entropy_coef": alpha + 0 * value, "entropy": -log_prob, "mean_value": value}


def sac_temperature_gradient(algorithm: Any, batch: ReplayBatch, entropy: Any) -> Metrics:
    """Gradient of `SAC.temperature_loss`."""
    algorithm.log_temperature.optimizer.gradient[0] = entropy - algorithm.target_entropy(batch)
    return {}


# -- discrete SAC ------------------------------------------------------------------------------------------------
def discrete_sac_critic_gradient(algorithm: Any, batch: ReplayBatch) -> Metrics:
    """Gradient of `DiscreteSAC.critic_loss`."""
    critic, alpha = algorithm.critic, algorithm.entropy_coef
    log_probs = log_softmax(np, mask_logits(np, algorithm.actor.output(batch.next_observations), batch.next_masks))
    values = np.minimum(*algorithm.target_critic.output(batch.next_observations))
    target = batch.rewards + batch.discounts * _soft_values(np.exp(log_probs), log_probs, values, alpha)
    batch.kept["values"] = values = critic.forward(batch.observations)
    taken = batch.actions[:, None] == np.arange(values.shape[-1])
    errors = (values * taken).sum(-1) - target
    critic.backward(errors[..., None] * taken / len(batch.rewards))
    return {"critic_loss": 0.5 * (errors * errors).mean(-1).sum()}


def discrete_sac_actor_gradient(algorithm: Any, batch: ReplayBatch) -> Metrics:
    """Gradient of `DiscreteSAC.actor_loss`."""
    actor, alpha, values = algorithm.actor, algorithm.entropy_coef, batch.kept.get("values")
    if values is None:
        values = algorithm.critic.output(batch.observations)
    log_probs = log_softmax(np, mask_logits(np, actor.forward(batch.observations), batch.masks))
    probs, values = np.exp(log_probs), np.minimum(*values)
    soft = values - alpha * log_probs
    actor.backward(probs * ((probs * soft).sum(-1)[:, None] - soft) / len(probs))
    value, actor_loss = (probs * values).sum(-1).mean(), -_soft_values(probs, log_probs, values, alpha).mean()
    entropy = -(probs * log_probs).sum(-1).mean()
    return {"actor_loss": actor_loss, "entropy_coef": alpha + 0 * value, "entropy": entropy, "mean_value": value}


def discrete_sac_temperature_gradient(algorithm: Any, batch: ReplayBatch, entropy: Any) -> Metrics:
    """Gradient of `DiscreteSAC.temperature_loss`."""
    largest = algorithm.largest_entropy if batch.masks is None else np.log(batch.masks.sum(-1) * 1.0).mean()
    target = algorithm.config.target_entropy_ratio * largest
    algorithm.log_temperature.optimizer.gradient[0] = entropy - target
    return {}


def _soft_values(probs: Array, log_probs: Array, values: Array, entropy_coef: Any) -> Array:
    """[N] Σ π(a) (Q(a) - α log π(a))"""
    return np.asarray((probs * (values - entropy_coef * log_probs)).sum(-1))


# -- TD3 ---------------------------------------------------------------------------------------------------------
def td3_critic_gradient(algorithm: Any, batch: ReplayBatch) -> Metrics:
    """Gradient of `TD3.critic_loss`."""
    config, critic = algorithm.config, algorithm.critic
    limit, proposed = config.target_noise_clip, np.tanh(algorithm.target_actor.output(batch.next_observations))
    noise = np.clip(config.target_policy_noise * batch.noise[0], -limit, limit)
    following = np.clip(proposed + noise, -1.0, 1.0)
    values = algorithm.target_critic.output(batch.next_observations, following)[..., 0]
    target = batch.rewards + batch.discounts * np.minimum(*values)
    values = critic.forward(batch.observations, batch.actions)[..., 0]
    errors = values - target
    critic.backward(errors[..., None] * (2.0 / len(batch.rewards)))
    return {"critic_loss": (errors * errors).mean(-1).sum(), "mean_value": values[0].mean()}


def td3_actor_gradient(algorithm: Any, batch: ReplayBatch) -> Metrics:
    """Gradient of `TD3.actor_loss`."""
    actor, critic = algorithm.actor, algorithm.first_critic
    actions = np.tanh(actor.forward(batch.observations))
    values = critic.forward(batch.observations, actions)
    grad_action = critic.vector_grad(values * 0 + 1, slice(-actions.shape[-1], None))
    actor.backward(grad_action * (1.0 - actions * actions) / -len(actions))
    return {}


# -- DQN ---------------------------------------------------------------------------------------------------------
def dqn_gradient(algorithm: Any, batch: ReplayBatch) -> Metrics:
    """Gradient of `DQN.loss`."""
    network = algorithm.values
    following = mask_logits(np, algorithm.target_values.output(batch.next_observations), batch.next_masks)
    target = batch.rewards + batch.discounts * np.amax(following, -1)
    values = network.forward(batch.observations)
    taken = batch.actions[:, None] == np.arange(values.shape[-1])
    chosen = (values * taken).sum(-1)
    errors = chosen - target
    grad_error = np.clip(errors, -1.0, 1.0)
    network.backward(grad_error[:, None] * taken / len(batch.rewards))
    return {"loss": (grad_error * (errors - 0.5 * grad_error)).mean(), "mean_value": chosen.mean()}

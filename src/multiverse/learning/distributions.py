"""Distributions over actions: log-probabilities and entropies for a policy's output, and their gradients.

Written once for numpy and torch (`xp`); gradients are for numpy only, since torch has autograd. Actions count from 0,
as in policies and rollouts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from gymnasium import spaces

from multiverse.core.errors import InvalidRequest
from multiverse.core.layout import Array
from multiverse.core.policy import MASKED_LOGIT
from multiverse.learning.network_spec import NetworkSpec

HALF_LOG_TAU = 0.5 * math.log(2 * math.pi)


class Distribution(Protocol):
    """A distribution over actions, given a network's output [rows, outputs]."""

    outputs: int
    log_std: Any  # [outputs] of a Gaussian, a parameter of the networks; None for other distributions

    def log_prob_and_entropy(self, xp: Any, output: Any, actions: Any, masks: Any) -> tuple[Any, Any]:
        """Return the log-probabilities of the actions and the entropies, [rows] each."""

    def gradient(
        self, output: Array, actions: Array, masks: Array | None, grad_log_prob: Array, grad_entropy: float
    ) -> tuple[Array, Array | None]:
        """Return the gradients of a loss by the output [rows, outputs] and by `log_std` (or None), from its gradients
        by the log-probability of each row and by the entropies."""


class Categorical:
    """One of `count` actions; `masks` [rows, outputs] is False for actions that are not open."""

    log_std = None

    def __init__(self, count: int) -> None:
        self.outputs = count

    def log_prob_and_entropy(self, xp: Any, output: Any, actions: Any, masks: Any) -> tuple[Any, Any]:
        return _categorical(xp, mask_logits(xp, output, masks), actions)

    def gradient(
        self, output: Array, actions: Array, masks: Array | None, grad_log_prob: Array, grad_entropy: float
    ) -> tuple[Array, Array | None]:
        return _categorical_gradient(mask_logits(np, output, masks), actions, grad_log_prob, grad_entropy), None


class MultiCategorical:
    """One of counts[i] actions for every i, independently."""

    log_std = None

    def __init__(self, counts: Sequence[int]) -> None:
        ends = np.cumsum(counts).tolist()
        self.outputs, self._parts = ends[-1], [slice(end - count, end) for end, count in zip(ends, counts)]

    def log_prob_and_entropy(self, xp: Any, output: Any, actions: Any, masks: Any) -> tuple[Any, Any]:
        output = mask_logits(xp, output, masks)
        each = [_categorical(xp, output[:, part], actions[:, i]) for i, part in enumerate(self._parts)]
        return sum(log_prob for log_prob, _ in each), sum(entropy for _, entropy in each)

    def gradient(
        self, output: Array, actions: Array, masks: Array | None, grad_log_prob: Array, grad_entropy: float
    ) -> tuple[Array, Array | None]:
        output = mask_logits(np, output, masks)
        parts = [
            _categorical_gradient(output[:, part], actions[:, i], grad_log_prob, grad_entropy)
            for i, part in enumerate(self._parts)
        ]
        return np.concatenate(parts, -1), None


class Bernoulli:
    """`count` independent binary actions."""

    log_std = None

    def __init__(self, count: int) -> None:
        self.outputs = count

    def log_prob_and_entropy(self, xp: Any, output: Any, actions: Any, masks: Any) -> tuple[Any, Any]:
        softplus = xp.logaddexp(output * 0, output)
        log_prob, entropy = actions * output - softplus, softplus - output / (1 + xp.exp(-output))
        return log_prob.sum(-1), entropy.sum(-1)

    def gradient(
        self, output: Array, actions: Array, masks: Array | None, grad_log_prob: Array, grad_entropy: float
    ) -> tuple[Array, Array | None]:
        prob = 1 / (1 + np.exp(-output))
        grad = grad_log_prob[:, None] * (actions - prob)
        return (grad - grad_entropy * output * prob * (1 - prob) if grad_entropy else grad), None


class DiagonalGaussian:
    """A Gaussian with the mean from the network and a learned standard deviation that does not depend on
    observations."""

    def __init__(self, size: int) -> None:
        self.outputs = size
        self.log_std: Any = None  # set by the networks

    def log_prob_and_entropy(self, xp: Any, output: Any, actions: Any, masks: Any) -> tuple[Any, Any]:
        z, log_std = (actions - output) * xp.exp(-self.log_std), self.log_std.sum()
        squares = (z * z) @ xp.ones_like(self.log_std)  # three times as fast as numpy's sum over short rows
        log_prob = -0.5 * squares - (log_std + HALF_LOG_TAU * self.outputs)
        return log_prob, log_prob * 0 + (log_std + (0.5 + HALF_LOG_TAU) * self.outputs)

    def gradient(
        self, output: Array, actions: Array, masks: Array | None, grad_log_prob: Array, grad_entropy: float
    ) -> tuple[Array, Array | None]:
        inverse = np.exp(-self.log_std)
        z = (actions - output) * inverse
        grad_log_std = grad_log_prob @ (z * z - 1.0) + grad_entropy * len(output)
        return grad_log_prob[:, None] * z * inverse, grad_log_std


class SquashedGaussian(DiagonalGaussian):
    """A Gaussian squashed by a tanh to (-1, 1); heads scale actions to the env's bounds. `actions` are the values
    before the tanh, which need no inversion; the entropy is that of the Gaussian."""

    def log_prob_and_entropy(self, xp: Any, output: Any, actions: Any, masks: Any) -> tuple[Any, Any]:
        log_prob, entropy = super().log_prob_and_entropy(xp, output, actions, masks)
        # log(1 - tanh(x)²), stable for large x; it does not depend on the output.
        squash = 2.0 * (math.log(2.0) - actions - xp.logaddexp(actions * 0, -2.0 * actions))
        return log_prob - squash.sum(-1), entropy


def distribution_for(spec: NetworkSpec) -> Distribution:
    """Return the distribution over actions of this space; refuse other spaces."""
    space = spec.action_space
    if isinstance(space, spaces.Discrete):
        return Categorical(int(space.n))
    if isinstance(space, spaces.MultiDiscrete):
        return MultiCategorical(space.nvec.reshape(-1).tolist())
    if isinstance(space, spaces.MultiBinary):
        return Bernoulli(int(np.prod(space.shape)))
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating):
        return (SquashedGaussian if spec.squash else DiagonalGaussian)(int(np.prod(space.shape)))
    raise InvalidRequest(f"actions must be Discrete, MultiDiscrete, MultiBinary or a Box of floats, not {space}")


# -- categorical --------------------------------------------------------------------------------------------------
def mask_logits(xp: Any, output: Any, masks: Any) -> Any:
    """Return the logits, with those of actions that are not open far below all others."""
    return output if masks is None else xp.where(masks, output, output * 0 + MASKED_LOGIT)


def log_softmax(xp: Any, logits: Any) -> Any:
    """Return log-probabilities [rows, actions]."""
    return _log_probs(xp, logits).T


def _log_probs(xp: Any, logits: Any) -> Any:
    """Return log-probabilities [actions, rows]: numpy reduces long rows five times as fast as many short ones."""
    logits = np.ascontiguousarray(logits.T) if xp is np else logits.T
    shifted = logits - (logits.max(axis=0) if xp is np else logits.amax(0))
    return shifted - xp.log(xp.exp(shifted).sum(0))


def _categorical(xp: Any, logits: Any, actions: Any) -> tuple[Any, Any]:
    logs = _log_probs(xp, logits)
    rows = np.arange(len(actions)) if xp is np else xp.arange(len(actions), device=actions.device)
    return logs[actions, rows], -(xp.exp(logs) * logs).sum(0)


def _categorical_gradient(logits: Array, actions: Array, grad_log_prob: Array, grad_entropy: float) -> Array:
    """Return the gradient by the logits, from those by the log-probability of the action and by the entropy."""
    logs = _log_probs(np, logits)
    probs = np.exp(logs)
    grad = -grad_log_prob * probs
    grad[actions, np.arange(len(actions))] += grad_log_prob
    if grad_entropy:
        terms = probs * logs
        grad -= grad_entropy * (terms - probs * terms.sum(0))
    return np.asarray(grad.T)

"""What a policy's output means: log-probabilities and entropies of actions, and how they change with the output.

Written once for numpy and torch (`xp`), the gradient for numpy only: torch finds it itself. Actions are as policies and
rollouts have them, from 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from gymnasium import spaces

from multiverse.core.errors import InvalidRequest
from multiverse.core.policy import MASKED_LOGIT
from multiverse.core.views import Array
from multiverse.learning.network_spec import NetworkSpec

HALF_LOG_TAU = 0.5 * math.log(2 * math.pi)


class Distribution(Protocol):
    """Of actions, given a network's output [rows, outputs]."""

    outputs: int
    log_std: Any  # [outputs] of a Gaussian, where the networks' other parameters are; None: it has none

    def log_prob_and_entropy(self, xp: Any, output: Any, actions: Any, masks: Any) -> tuple[Any, Any]:
        """[rows] each."""

    def gradient(
        self, output: Array, actions: Array, masks: Array | None, grad_log_prob: Array, grad_entropy: float
    ) -> tuple[Array, Array | None]:
        """([rows, outputs] the gradient of a loss by the output, and by `log_std` if it has one), from its gradient by
        each row's log-probability and entropy."""


class Categorical:
    """One of so many; `masks` [rows, outputs] is False where an action is not open."""

    log_std = None

    def __init__(self, count: int) -> None:
        self.outputs = count

    def log_prob_and_entropy(self, xp: Any, output: Any, actions: Any, masks: Any) -> tuple[Any, Any]:
        return _choice(xp, mask_logits(xp, output, masks), actions)

    def gradient(
        self, output: Array, actions: Array, masks: Array | None, grad_log_prob: Array, grad_entropy: float
    ) -> tuple[Array, Array | None]:
        return _choice_gradient(mask_logits(np, output, masks), actions, grad_log_prob, grad_entropy), None


class MultiCategorical:
    """One of counts[i] for every i, independently."""

    log_std = None

    def __init__(self, counts: Sequence[int]) -> None:
        ends = np.cumsum(counts).tolist()
        self.outputs, self._parts = ends[-1], [slice(end - count, end) for end, count in zip(ends, counts)]

    def log_prob_and_entropy(self, xp: Any, output: Any, actions: Any, masks: Any) -> tuple[Any, Any]:
        output = mask_logits(xp, output, masks)
        each = [_choice(xp, output[:, part], actions[:, i]) for i, part in enumerate(self._parts)]
        return sum(log_prob for log_prob, _ in each), sum(entropy for _, entropy in each)

    def gradient(
        self, output: Array, actions: Array, masks: Array | None, grad_log_prob: Array, grad_entropy: float
    ) -> tuple[Array, Array | None]:
        output = mask_logits(np, output, masks)
        parts = [
            _choice_gradient(output[:, part], actions[:, i], grad_log_prob, grad_entropy)
            for i, part in enumerate(self._parts)
        ]
        return np.concatenate(parts, -1), None


class Bernoulli:
    """Yes or no, `count` times, independently."""

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
        share = 1 / (1 + np.exp(-output))
        found = grad_log_prob[:, None] * (actions - share)
        return (found - grad_entropy * output * share * (1 - share) if grad_entropy else found), None


class DiagonalGaussian:
    """A mean from the network, and a standard deviation that is learned and the same for all observations."""

    def __init__(self, size: int) -> None:
        self.outputs = size
        self.log_std: Any = None  # given by the networks

    def log_prob_and_entropy(self, xp: Any, output: Any, actions: Any, masks: Any) -> tuple[Any, Any]:
        apart, log_std = (actions - output) * xp.exp(-self.log_std), self.log_std.sum()
        squares = (apart * apart) @ xp.ones_like(self.log_std)  # numpy adds up short rows a third as fast
        log_prob = -0.5 * squares - (log_std + HALF_LOG_TAU * self.outputs)
        return log_prob, log_prob * 0 + (log_std + (0.5 + HALF_LOG_TAU) * self.outputs)

    def gradient(
        self, output: Array, actions: Array, masks: Array | None, grad_log_prob: Array, grad_entropy: float
    ) -> tuple[Array, Array | None]:
        inverse = np.exp(-self.log_std)
        apart = (actions - output) * inverse
        grad_log_std = grad_log_prob @ (apart * apart - 1.0) + grad_entropy * len(output)
        return grad_log_prob[:, None] * apart * inverse, grad_log_std


class SquashedGaussian(DiagonalGaussian):
    """A Gaussian behind a tanh: actions are in (-1, 1), and scaled to the env's bounds outside. Actions are given as
    they were before the tanh, so that nothing must be undone; the entropy is that of the Gaussian."""

    def log_prob_and_entropy(self, xp: Any, output: Any, actions: Any, masks: Any) -> tuple[Any, Any]:
        log_prob, entropy = super().log_prob_and_entropy(xp, output, actions, masks)
        # log(1 - tanh(x)²), for large x too; it does not depend on the output.
        squash = 2.0 * (math.log(2.0) - actions - xp.logaddexp(actions * 0, -2.0 * actions))
        return log_prob - squash.sum(-1), entropy


def distribution_for(spec: NetworkSpec) -> Distribution:
    """Of actions in its space; refused where there is none."""
    space = spec.action_space
    if isinstance(space, spaces.Discrete):
        return Categorical(int(space.n))
    if isinstance(space, spaces.MultiDiscrete):
        return MultiCategorical(space.nvec.reshape(-1).tolist())
    if isinstance(space, spaces.MultiBinary):
        return Bernoulli(int(np.prod(space.shape)))
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating):
        return (SquashedGaussian if spec.squash else DiagonalGaussian)(int(np.prod(space.shape)))
    raise InvalidRequest(f"actions can be Discrete, MultiDiscrete, MultiBinary or a Box of floats, not {space}")


# -- one choice --------------------------------------------------------------------------------------------------
def mask_logits(xp: Any, output: Any, masks: Any) -> Any:
    """Those of actions that are not open far below all others."""
    return output if masks is None else xp.where(masks, output, output * 0 + MASKED_LOGIT)


def log_softmax(xp: Any, logits: Any) -> Any:
    """[rows, actions] log-probabilities."""
    return _log_shares(xp, logits).T


def _log_shares(xp: Any, logits: Any) -> Any:
    """[actions, rows]: numpy goes along a few long rows in a fifth of the time of many short ones."""
    logits = np.ascontiguousarray(logits.T) if xp is np else logits.T
    shifted = logits - (logits.max(axis=0) if xp is np else logits.amax(0))
    return shifted - xp.log(xp.exp(shifted).sum(0))


def _choice(xp: Any, logits: Any, actions: Any) -> tuple[Any, Any]:
    logs = _log_shares(xp, logits)
    rows = np.arange(len(actions)) if xp is np else xp.arange(len(actions), device=actions.device)
    return logs[actions, rows], -(xp.exp(logs) * logs).sum(0)


def _choice_gradient(logits: Array, actions: Array, grad_log_prob: Array, grad_entropy: float) -> Array:
    """How the log-probability of what was chosen, and the entropy, change with the logits."""
    logs = _log_shares(np, logits)
    shares = np.exp(logs)
    found = -grad_log_prob * shares
    found[actions, np.arange(len(actions))] += grad_log_prob
    if grad_entropy:
        plain = shares * logs
        found -= grad_entropy * (plain - shares * plain.sum(0))
    return np.asarray(found.T)

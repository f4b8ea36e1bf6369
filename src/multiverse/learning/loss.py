"""Arguments and result of a loss: outputs of the networks, and a scalar to minimise. Batches: `learning/batches.py`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from multiverse.core.errors import InvalidRequest
from multiverse.core.layout import Array
from multiverse.learning.batches import RolloutBatch


@dataclass(frozen=True)
class Outputs:
    """Outputs of the networks for the rows of a batch."""

    log_prob: Any
    """[rows] log-probabilities of the actions in the batch."""
    entropy: Any
    """[rows] entropy of the distribution over actions."""
    values: Any
    """[rows] estimates of the value function."""
    features: Any = None
    """[rows, features] inputs of the policy's dense layers, or of its recurrent cell: the features that a `network` of
    yours or convolutions compute, or else the inputs. In torch only, as `hidden` and `logits`."""
    hidden: Any = None
    """[rows, units] of the policy's last hidden layer."""
    logits: Any = None
    """[rows, outputs] of the policy: logits, or the means of Box actions."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Further outputs of the networks, by name: `out["critic"]`, [rows, outputs] of the value network, from which
    `values` are computed."""

    def __getitem__(self, name: str) -> Any:
        return self.extra[name]


class Loss:
    """A loss to minimise, and the numbers to log with it: `Loss(total, policy_loss=policy_loss, entropy=entropy)`."""

    def __init__(self, total: Any, **metrics: Any) -> None:
        self.total, self.metrics = total, metrics

    def plus(self, **terms: Any) -> Loss:
        """Return the same loss with further terms, each of which is logged under its name."""
        if taken := sorted(self.metrics.keys() & terms.keys()):
            raise InvalidRequest(
                f"plus({taken[0]}=...): the loss has a metric {taken[0]!r} already; choose another name"
            )
        return Loss(self.total + sum(terms.values()), **self.metrics, **terms)


LossFunction = Callable[[Outputs, RolloutBatch], Loss]
"""(outputs, rows) → a loss, which torch differentiates."""


def approximate_kl(log_ratio: Any) -> Any:
    """KL(π_old ‖ π), estimated from log(π / π_old) of actions of π_old: the mean of (r - 1) - log r (Schulman 2020)."""
    return (log_ratio.expm1() - log_ratio).mean()


def standardized(values: Any) -> Any:
    """Return values [rows], an array or a tensor, shifted and scaled to mean 0 and standard deviation 1."""
    if len(values) < 2:
        return values
    centered = values - values.sum() / len(values)
    return centered / ((centered @ centered / (len(values) - 1)) ** 0.5 + 1e-8)


def as_numpy(values: Any) -> Array:
    """Return a copy of an array, or of a tensor on any device."""
    return np.array(values.detach().cpu().numpy() if hasattr(values, "detach") else values)

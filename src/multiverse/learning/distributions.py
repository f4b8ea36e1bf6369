"""What a policy's output means: log-probabilities and entropies of actions, as lean as they can be in torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from multiverse.contracts.policy import MASKED_LOGIT

HALF_LOG_TAU = 0.5 * math.log(2 * math.pi)


class Distribution(Protocol):
    """Of actions, given a network's output [rows, outputs]."""

    outputs: int

    def log_prob_and_entropy(self, output: Tensor, actions: Tensor, masks: Tensor | None) -> tuple[Tensor, Tensor]:
        """[rows] each."""

    def gradient(
        self, output: Tensor, actions: Tensor, masks: Tensor | None, by_log_prob: Tensor, by_entropy: float
    ) -> Tensor:
        """[rows, outputs] the gradient of a loss with respect to the output, from those with respect to each row's
        log-probability and entropy. Parameters of its own get theirs."""

    def parameters(self) -> Sequence[torch.nn.Parameter]:
        """Those beside the network's."""


class Categorical:
    """One of so many; `masks` [rows, outputs] is False where an action is not open."""

    def __init__(self, count: int) -> None:
        self.outputs = count

    def parameters(self) -> Sequence[torch.nn.Parameter]:
        return ()

    def log_prob_and_entropy(self, output: Tensor, actions: Tensor, masks: Tensor | None) -> tuple[Tensor, Tensor]:
        logs = torch.log_softmax(output if masks is None else output.masked_fill(~masks, MASKED_LOGIT), dim=-1)
        chosen = logs.gather(-1, actions.unsqueeze(-1)).squeeze(-1)
        return chosen, -(logs.exp() * logs).sum(-1)

    def gradient(
        self, output: Tensor, actions: Tensor, masks: Tensor | None, by_log_prob: Tensor, by_entropy: float
    ) -> Tensor:
        if masks is not None:
            output = output.masked_fill(~masks, MASKED_LOGIT)
        return _softmax_gradient(output, actions.unsqueeze(-1), by_log_prob.unsqueeze(-1), by_entropy)


class MultiCategorical:
    """One of counts[i] for every i, independently."""

    def __init__(self, counts: Sequence[int]) -> None:
        self.outputs, self._counts = sum(counts), list(counts)

    def parameters(self) -> Sequence[torch.nn.Parameter]:
        return ()

    def log_prob_and_entropy(self, output: Tensor, actions: Tensor, masks: Tensor | None) -> tuple[Tensor, Tensor]:
        if masks is not None:
            output = output.masked_fill(~masks, MASKED_LOGIT)
        log_prob = entropy = torch.zeros(())
        for i, part in enumerate(output.split(self._counts, dim=-1)):
            logs = torch.log_softmax(part, dim=-1)
            log_prob = log_prob + logs.gather(-1, actions[:, i : i + 1]).squeeze(-1)
            entropy = entropy - (logs.exp() * logs).sum(-1)
        return log_prob, entropy

    def gradient(
        self, output: Tensor, actions: Tensor, masks: Tensor | None, by_log_prob: Tensor, by_entropy: float
    ) -> Tensor:
        if masks is not None:
            output = output.masked_fill(~masks, MASKED_LOGIT)
        by_row = by_log_prob.unsqueeze(-1)
        parts = [
            _softmax_gradient(part, actions[:, i : i + 1], by_row, by_entropy)
            for i, part in enumerate(output.split(self._counts, dim=-1))
        ]
        return torch.cat(parts, dim=-1)


class DiagonalGaussian:
    """A mean from the network, and a standard deviation that is learned and the same for all observations."""

    def __init__(self, size: int, log_std: float) -> None:
        self.outputs = size
        self.log_std = torch.nn.Parameter(torch.full((size,), log_std))

    def parameters(self) -> Sequence[torch.nn.Parameter]:
        return (self.log_std,)

    def log_prob_and_entropy(self, output: Tensor, actions: Tensor, masks: Tensor | None) -> tuple[Tensor, Tensor]:
        apart = (actions - output) * torch.exp(-self.log_std)
        log_std = self.log_std.sum()
        log_prob = -0.5 * (apart * apart).sum(-1) - log_std - HALF_LOG_TAU * self.outputs
        entropy = log_std + (0.5 + HALF_LOG_TAU) * self.outputs
        return log_prob, entropy.expand(len(output))

    def gradient(
        self, output: Tensor, actions: Tensor, masks: Tensor | None, by_log_prob: Tensor, by_entropy: float
    ) -> Tensor:
        inverse = torch.exp(-self.log_std)
        apart, by_row = (actions - output) * inverse, by_log_prob.unsqueeze(-1)
        torch.sum(by_row * (apart * apart - 1.0), 0, out=self.log_std.grad)
        self.log_std.grad.add_(by_entropy * len(output))
        return by_row * apart * inverse


class SquashedGaussian(DiagonalGaussian):
    """A Gaussian behind a tanh: actions are in (-1, 1), and scaled to the env's bounds outside. Actions are given as
    they were before the tanh, so that nothing must be undone; the entropy is that of the Gaussian."""

    def log_prob_and_entropy(self, output: Tensor, actions: Tensor, masks: Tensor | None) -> tuple[Tensor, Tensor]:
        log_prob, entropy = super().log_prob_and_entropy(output, actions, masks)
        # log(1 - tanh(x)²), for large x too; it does not depend on the output.
        squash = 2.0 * (math.log(2.0) - actions - torch.nn.functional.softplus(-2.0 * actions))
        return log_prob - squash.sum(-1), entropy


class Bernoulli:
    """Yes or no, `count` times, independently."""

    def __init__(self, count: int) -> None:
        self.outputs = count

    def parameters(self) -> Sequence[torch.nn.Parameter]:
        return ()

    def log_prob_and_entropy(self, output: Tensor, actions: Tensor, masks: Tensor | None) -> tuple[Tensor, Tensor]:
        softplus = torch.nn.functional.softplus
        log_prob = actions * output - softplus(output)
        entropy = softplus(output) - output * torch.sigmoid(output)
        return log_prob.sum(-1), entropy.sum(-1)

    def gradient(
        self, output: Tensor, actions: Tensor, masks: Tensor | None, by_log_prob: Tensor, by_entropy: float
    ) -> Tensor:
        share = torch.sigmoid(output)
        found = by_log_prob.unsqueeze(-1) * (actions - share)
        return found - by_entropy * output * share * (1.0 - share) if by_entropy else found


def _softmax_gradient(logits: Tensor, actions: Tensor, by_log_prob: Tensor, by_entropy: float) -> Tensor:
    """For one choice: how the log-probability of what was chosen, and the entropy, change with the logits."""
    logs = torch.log_softmax(logits, dim=-1)
    shares = logs.exp()
    found = -by_log_prob * shares
    found.scatter_add_(-1, actions, by_log_prob)
    if by_entropy:
        plain = shares * logs
        found -= by_entropy * (plain - shares * plain.sum(-1, keepdim=True))
    return found

"""What a policy's output means: log-probabilities and entropies of actions, as lean as they can be in torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

NEVER = -1e9
HALF_LOG_TAU = 0.5 * math.log(2 * math.pi)


class Distribution(Protocol):
    """Of actions, given a network's output [rows, outputs]."""

    outputs: int

    def log_prob_and_entropy(self, output: Tensor, actions: Tensor, masks: Tensor | None) -> tuple[Tensor, Tensor]:
        """[rows] each."""

    def parameters(self) -> Sequence[torch.nn.Parameter]:
        """Those beside the network's."""


class Categorical:
    """One of so many; `masks` [rows, outputs] is False where an action is not open."""

    def __init__(self, count: int) -> None:
        self.outputs = count

    def parameters(self) -> Sequence[torch.nn.Parameter]:
        return ()

    def log_prob_and_entropy(self, output: Tensor, actions: Tensor, masks: Tensor | None) -> tuple[Tensor, Tensor]:
        logs = torch.log_softmax(output if masks is None else output.masked_fill(~masks, NEVER), dim=-1)
        chosen = logs.gather(-1, actions.unsqueeze(-1)).squeeze(-1)
        return chosen, -(logs.exp() * logs).sum(-1)


class MultiCategorical:
    """One of counts[i] for every i, independently."""

    def __init__(self, counts: Sequence[int]) -> None:
        self.outputs, self._counts = sum(counts), list(counts)

    def parameters(self) -> Sequence[torch.nn.Parameter]:
        return ()

    def log_prob_and_entropy(self, output: Tensor, actions: Tensor, masks: Tensor | None) -> tuple[Tensor, Tensor]:
        if masks is not None:
            output = output.masked_fill(~masks, NEVER)
        log_prob = entropy = torch.zeros(())
        for i, part in enumerate(output.split(self._counts, dim=-1)):
            logs = torch.log_softmax(part, dim=-1)
            log_prob = log_prob + logs.gather(-1, actions[:, i : i + 1]).squeeze(-1)
            entropy = entropy - (logs.exp() * logs).sum(-1)
        return log_prob, entropy


class DiagonalGaussian:
    """A mean from the network, and a spread that is learned but does not depend on what is seen."""

    def __init__(self, size: int, log_std: float) -> None:
        self.outputs = size
        self.log_std = torch.nn.Parameter(torch.full((size,), log_std))

    def parameters(self) -> Sequence[torch.nn.Parameter]:
        return (self.log_std,)

    def log_prob_and_entropy(self, output: Tensor, actions: Tensor, masks: Tensor | None) -> tuple[Tensor, Tensor]:
        apart = (actions - output) * torch.exp(-self.log_std)
        spread = self.log_std.sum()
        log_prob = -0.5 * (apart * apart).sum(-1) - spread - HALF_LOG_TAU * self.outputs
        entropy = spread + (0.5 + HALF_LOG_TAU) * self.outputs
        return log_prob, entropy.expand(len(output))

"""All parameters of an algorithm as one tensor: one call instead of one per layer clips, steps and checks them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from multiverse.contracts.errors import InvalidRequest

FIRST_DECAY, SECOND_DECAY = 0.9, 0.999


class FlatParameters:
    """Parameters moved into one tensor, as their gradients are; the modules go on using them as before."""

    def __init__(self, parameters: Sequence[nn.Parameter], learning_rate: float) -> None:
        self.learning_rate = learning_rate
        self._flat = torch.cat([p.detach().reshape(-1) for p in parameters])
        self.gradient = torch.zeros_like(self._flat)
        start = 0
        for part in parameters:
            stop = start + part.numel()
            part.data = self._flat[start:stop].view_as(part)
            part.grad = self.gradient[start:stop].view_as(part)
            start = stop

    def step(self, max_norm: float) -> float:
        """One step down the gradient, which is clipped to that norm; returns its norm before.

        A gradient that is not finite changes nothing.
        """
        norm = float(torch.linalg.vector_norm(self.gradient))
        if not np.isfinite(norm):  # guard: gradients-are-finite
            return norm
        with torch.no_grad():
            if norm > max_norm:
                self.gradient.mul_(max_norm / (norm + 1e-6))
            self._descend()
        return norm

    def _descend(self) -> None:
        raise NotImplementedError

    def parameters(self) -> Any:
        return _array(self._flat)

    def load_parameters(self, saved: Any) -> None:
        parameters = torch.from_numpy(np.array(saved))
        if parameters.shape != self._flat.shape:  # guard: sizes-are-compared
            raise InvalidRequest(
                f"the saved algorithm has {len(parameters)} parameters and this one {self._flat.numel()}: "
                "its networks have other sizes"
            )
        self._flat.copy_(parameters)


class FlatAdam(FlatParameters):
    """Adam (Kingma and Ba 2015)."""

    def __init__(self, parameters: Sequence[nn.Parameter], learning_rate: float, epsilon: float = 1e-5) -> None:
        super().__init__(parameters, learning_rate)
        self._epsilon = epsilon
        self._first, self._second, self._steps = torch.zeros_like(self._flat), torch.zeros_like(self._flat), 0

    def _descend(self) -> None:
        self._steps += 1
        self._first.lerp_(self.gradient, 1 - FIRST_DECAY)
        self._second.mul_(SECOND_DECAY).addcmul_(self.gradient, self.gradient, value=1 - SECOND_DECAY)
        root = (self._second / (1 - SECOND_DECAY**self._steps)).sqrt_().add_(self._epsilon)
        rate = self.learning_rate / (1 - FIRST_DECAY**self._steps)
        self._flat.addcdiv_(self._first, root, value=-rate)

    def state(self) -> dict[str, Any]:
        return {"first": _array(self._first), "second": _array(self._second), "steps": self._steps}

    def load(self, state: Mapping[str, Any]) -> None:
        first, second = (torch.from_numpy(np.array(state[name])) for name in ("first", "second"))
        if not first.shape == second.shape == self._flat.shape or int(state["steps"]) < 0:
            raise ValueError("the moments do not belong to the parameters")
        self._first.copy_(first)
        self._second.copy_(second)
        self._steps = int(state["steps"])


class FlatRMSprop(FlatParameters):
    """RMSprop (Hinton 2012), without momentum."""

    def __init__(
        self, parameters: Sequence[nn.Parameter], learning_rate: float, decay: float = 0.99, epsilon: float = 1e-5
    ) -> None:
        super().__init__(parameters, learning_rate)
        self._decay, self._epsilon, self._squares = decay, epsilon, torch.zeros_like(self._flat)

    def _descend(self) -> None:
        self._squares.mul_(self._decay).addcmul_(self.gradient, self.gradient, value=1 - self._decay)
        self._flat.addcdiv_(self.gradient, self._squares.sqrt().add_(self._epsilon), value=-self.learning_rate)

    def state(self) -> dict[str, Any]:
        return {"squares": _array(self._squares)}

    def load(self, state: Mapping[str, Any]) -> None:
        self._squares.copy_(torch.from_numpy(np.array(state["squares"])))


def _array(tensor: Tensor) -> Any:
    return tensor.detach().cpu().numpy().copy()

"""All parameters of an agent as one tensor: one call instead of one per layer clips, steps and checks them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from multiverse.contracts.errors import InvalidRequest


class FlatAdam:
    """Adam over parameters that are moved into one tensor; the modules go on using them as before."""

    def __init__(self, parameters: Sequence[nn.Parameter], learning_rate: float, epsilon: float = 1e-5) -> None:
        self._parts = list(parameters)
        flat = torch.cat([p.detach().reshape(-1) for p in self._parts])
        self._flat = nn.Parameter(flat)
        self._flat.grad = torch.zeros_like(flat)
        start = 0
        for part in self._parts:
            stop = start + part.numel()
            part.data = self._flat.data[start:stop].view_as(part)
            part.grad = self._flat.grad[start:stop].view_as(part)
            start = stop
        self._adam = torch.optim.Adam([self._flat], lr=learning_rate, eps=epsilon, fused=True)

    def set_learning_rate(self, rate: float) -> None:
        self._adam.param_groups[0]["lr"] = rate

    def step(self, loss: Tensor, max_norm: float) -> float:
        """One step down the gradient, which is clipped to that norm; returns its norm before.

        A gradient that is not finite changes nothing.
        """
        assert self._flat.grad is not None
        self._flat.grad.zero_()
        loss.backward()
        norm = float(torch.linalg.vector_norm(self._flat.grad))
        if not np.isfinite(norm):
            return norm
        if norm > max_norm:
            self._flat.grad.mul_(max_norm / (norm + 1e-6))
        self._adam.step()
        return norm

    def all_finite(self) -> bool:
        return bool(torch.isfinite(self._flat.data).all())

    # -- saving --------------------------------------------------------------------------------------------------
    def state(self) -> dict[str, Any]:
        """Parameters and moments, as numpy arrays of their own."""
        moments = self._adam.state.get(self._flat, {})
        saved: dict[str, Any] = {"parameters": self._flat.detach().cpu().numpy().copy(), "steps": 0}
        if moments:
            saved["steps"] = int(moments["step"])
            saved["first"] = moments["exp_avg"].cpu().numpy().copy()
            saved["second"] = moments["exp_avg_sq"].cpu().numpy().copy()
        return saved

    def load(self, state: dict[str, Any]) -> None:
        parameters = torch.from_numpy(np.array(state["parameters"]))
        if parameters.shape != self._flat.shape:
            raise InvalidRequest(
                f"the saved agent has {len(parameters)} parameters and this one {self._flat.numel()}: "
                "its networks have other sizes"
            )
        self._flat.data.copy_(parameters)
        self._adam.state.clear()
        if state["steps"]:
            self._adam.state[self._flat] = {
                "step": torch.tensor(float(state["steps"])),
                "exp_avg": torch.from_numpy(np.array(state["first"])).to(self._flat.device),
                "exp_avg_sq": torch.from_numpy(np.array(state["second"])).to(self._flat.device),
            }

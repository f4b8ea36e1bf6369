"""What `NumpyNetwork` is, in torch: for images, GPUs and large layers. Autograd goes back through the layers."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from multiverse.contracts.views import Array
from multiverse.learning.loss import Shape
from multiverse.learning.networks import Network, first_weights, in_one_tensor, layers_of
from multiverse.learning.optimizers import Adam, Optimizer


class TorchNetwork:
    """(vector [rows, size], images) → [rows, outputs], or [copies, rows, outputs]."""

    xp = torch

    def __init__(
        self, shape: Shape, outputs: int, copies: int, seed: Sequence[int], device: str, epsilon: float = 1e-8
    ) -> None:
        self.device, self._copies = torch.device(device), copies
        with first_weights(seed):
            alike = [Network(shape, outputs, 1.0) for _ in range(max(1, copies))]
        self.modules = nn.ModuleList(alike).to(self.device)
        parameters = list(self.modules.parameters())
        self.optimizer: Optimizer = Adam(torch, torch.cat([one.detach().reshape(-1) for one in parameters]), epsilon)
        in_one_tensor(parameters, self.optimizer)

    def put(self, array: Array) -> Tensor:
        """Where the network is."""
        return torch.as_tensor(array, device=self.device)

    def output(self, vector: Tensor, images: Sequence[Tensor] = ()) -> Tensor:
        with torch.no_grad():
            return self._said(self.modules, vector, images)

    def forward(self, vector: Tensor, images: Sequence[Tensor] = ()) -> Tensor:
        self._given = vector.detach().requires_grad_()
        self._answer = self._said(self.modules, self._given, images)
        return self._answer.detach()

    def _said(self, modules: Any, vector: Tensor, images: Sequence[Tensor]) -> Tensor:
        if not self._copies:
            found: Tensor = modules[0](vector, images)
            return found
        return torch.stack([one(vector, images) for one in modules])

    def backward(self, by_output: Tensor) -> None:
        self.optimizer.gradient.zero_()
        self._answer.backward(by_output)

    def by_vector(self, by_output: Tensor, columns: slice) -> Tensor:
        (found,) = torch.autograd.grad(self._answer, self._given, by_output)
        return found[:, columns]

    def target(self) -> TorchTarget:
        return TorchTarget(self)

    def layers(self) -> list[tuple[Array, Array]]:
        return layers_of(self.modules[0].dense)


class TorchTarget:
    """Parameters that follow another network's."""

    def __init__(self, network: TorchNetwork) -> None:
        self._network, self._modules = network, deepcopy(network.modules).requires_grad_(False)
        self.parameters = network.optimizer.parameters.clone()
        start = 0
        for one in self._modules.parameters():
            one.data = self.parameters[start : start + one.numel()].view_as(one)
            start += one.numel()

    def output(self, vector: Tensor, images: Sequence[Tensor] = ()) -> Tensor:
        with torch.no_grad():
            return self._network._said(self._modules, vector, images)

    def follow(self, tau: float) -> None:
        self.parameters.lerp_(self._network.optimizer.parameters, tau)

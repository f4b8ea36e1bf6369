"""What `NumpyNetwork` is, in torch: for images, GPUs and large layers. Autograd goes back through the layers."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy

import torch
from torch import Tensor, nn

from multiverse.contracts.views import Array
from multiverse.learning.loss import Shape, Shown
from multiverse.learning.networks import Network, first_weights, in_one_tensor, layers_of
from multiverse.learning.optimizers import Adam, Optimizer


class TorchLayers:
    """What is shown, and `more` numbers of each row → [rows, outputs], or, of several copies, [copies, rows, …]."""

    xp = torch

    def __init__(self, modules: Sequence[nn.Module], copies: int, device: torch.device) -> None:
        self._modules, self._copies, self.device = modules, copies, device

    def put(self, array: Array) -> Tensor:
        """Where the network is."""
        return torch.as_tensor(array, device=self.device)

    def output(self, shown: Shown, more: Tensor | None = None) -> Tensor:
        with torch.no_grad():
            return self._said(self._joined(shown, more), shown.images)

    def forward(self, shown: Shown, more: Tensor | None = None) -> Tensor:
        self._given = self._joined(shown, more).detach().requires_grad_()
        self._answer = self._said(self._given, shown.images)
        return self._answer.detach()

    def _joined(self, shown: Shown, more: Tensor | None) -> Tensor:
        vector: Tensor = shown.vector
        return vector if more is None else torch.cat((vector, more), -1)

    def _said(self, vector: Tensor, images: Sequence[Tensor]) -> Tensor:
        said = [one(vector, images) for one in self._modules]
        return torch.stack(said) if self._copies else said[0]

    def by_vector(self, by_output: Tensor, columns: slice) -> Tensor:
        (found,) = torch.autograd.grad(self._answer, self._given, by_output)
        return found[:, columns]


class TorchNetwork(TorchLayers):
    """Layers that learn."""

    def __init__(
        self, shape: Shape, outputs: int, copies: int, seed: Sequence[int], device: str, epsilon: float = 1e-8
    ) -> None:
        with first_weights(seed):
            self.networks = [Network(shape, outputs, 1.0).to(device) for _ in range(max(1, copies))]
        super().__init__(self.networks, copies, torch.device(device))
        parameters = [one for network in self.networks for one in network.parameters()]
        self.optimizer: Optimizer = Adam(torch, torch.cat([one.detach().reshape(-1) for one in parameters]), epsilon)
        in_one_tensor(parameters, self.optimizer)

    def backward(self, by_output: Tensor) -> None:
        self.optimizer.gradient.zero_()
        self._answer.backward(by_output)

    def first(self) -> TorchLayers:
        return TorchLayers(self._modules[:1], 0, self.device)

    def target(self) -> TorchTarget:
        return TorchTarget(self, self._copies)

    def layers(self) -> list[tuple[Array, Array]]:
        return layers_of(self.networks[0].dense)


class TorchTarget(TorchLayers):
    """Layers whose parameters follow another network's."""

    def __init__(self, network: TorchNetwork, copies: int) -> None:
        modules = [deepcopy(one).requires_grad_(False) for one in network.networks]
        super().__init__(modules, copies, network.device)
        self._network, self.parameters, start = network, network.optimizer.parameters.clone(), 0
        for one in [parameter for module in modules for parameter in module.parameters()]:
            one.data = self.parameters[start : start + one.numel()].view_as(one)
            start += one.numel()

    def follow(self, tau: float) -> None:
        self.parameters.lerp_(self._network.optimizer.parameters, tau)

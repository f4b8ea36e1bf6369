"""Gradients of small dense networks by hand: half of what recording and playing back every operation costs."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from multiverse.learning.networks import Network

_tanh_backward = torch.ops.aten.tanh_backward
_relu_backward = torch.ops.aten.threshold_backward


class DensePass:
    """Forward and backward through a network without images. Gradients go where the parameters keep them."""

    def __init__(self, network: Network) -> None:
        self._layers = network.linear_layers()
        self._tanh = any(isinstance(module, nn.Tanh) for module in network.dense)
        self._inputs: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        """[rows, outputs]; what each layer was given is kept for `backward`."""
        self._inputs, last = [], len(self._layers) - 1
        for i, layer in enumerate(self._layers):
            self._inputs.append(x)
            x = torch.addmm(layer.bias, x, layer.weight.t())
            if i != last:
                x = x.tanh_() if self._tanh else x.relu_()
        return x

    def backward(self, gradient: Tensor) -> None:
        """From the gradient with respect to the outputs to that of every weight and bias."""
        for i in range(len(self._layers) - 1, -1, -1):
            layer, given = self._layers[i], self._inputs[i]
            torch.mm(gradient.t(), given, out=layer.weight.grad)
            torch.sum(gradient, 0, out=layer.bias.grad)
            if i:
                gradient = gradient.mm(layer.weight)
                if self._tanh:
                    gradient = _tanh_backward(gradient, given)
                else:
                    gradient = _relu_backward(gradient, given, 0)

"""Networks: dense layers over a vector of features, convolutions over images, or both; and dense gradients by hand."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from multiverse.learning.loss import Activation, check_size

_ACTIVATIONS: dict[str, type[nn.Module]] = {"tanh": nn.Tanh, "relu": nn.ReLU}
_CONVOLUTIONS = ((32, 8, 4), (64, 4, 2), (64, 3, 1))  # channels, kernel, stride
_IMAGE_FEATURES = 512


class Network(nn.Module):
    """(vector [rows, size], images) → [rows, outputs]. Weights are orthogonal and biases zero (`ortho_init`), or
    torch's own.

    The last layer's gain is small for a policy, so that at first all actions are about as likely, and 1 for a value.
    """

    def __init__(
        self,
        size: int,
        images: Sequence[tuple[int, ...]],
        hidden: Sequence[int],
        outputs: int,
        activation: Activation,
        last_gain: float,
        ortho_init: bool = True,
    ) -> None:
        super().__init__()
        first = _orthogonal if ortho_init else _as_it_is
        self.looks = nn.ModuleList([Convolutions(shape) for shape in images])
        widths = [size + _IMAGE_FEATURES * len(images), *hidden]
        check_size([*widths, outputs])
        layers: list[nn.Module] = []
        for inward, outward in itertools.pairwise(widths):
            layers += [first(nn.Linear(inward, outward), math.sqrt(2)), _ACTIVATIONS[activation]()]
        layers.append(first(nn.Linear(widths[-1], outputs), last_gain))
        self.dense = nn.Sequential(*layers)

    def forward(self, vector: Tensor, images: Sequence[Tensor] = ()) -> Tensor:
        if self.looks:
            vector = torch.cat([vector, *(look(image) for look, image in zip(self.looks, images))], dim=-1)
        found: Tensor = self.dense(vector)
        return found

    def linear_layers(self) -> list[nn.Linear]:
        """Of a network without images, in order."""
        return [layer for layer in self.dense if isinstance(layer, nn.Linear)]


class Convolutions(nn.Module):
    """Three of them and a dense layer: an image of bytes, channels first or last, to features."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self._channels_last = shape[2] < shape[0]
        channels, *size = (shape[2], *shape[:2]) if self._channels_last else shape
        layers: list[nn.Module] = []
        for outward, kernel, stride in _CONVOLUTIONS:
            layers += [_orthogonal(nn.Conv2d(channels, outward, kernel, stride), math.sqrt(2)), nn.ReLU()]
            channels, size = outward, [(one - kernel) // stride + 1 for one in size]
        flat = channels * size[0] * size[1]
        self.layers = nn.Sequential(
            *layers, nn.Flatten(), _orthogonal(nn.Linear(flat, _IMAGE_FEATURES), math.sqrt(2)), nn.ReLU()
        )

    def forward(self, image: Tensor) -> Tensor:
        image = image.float() / 255.0
        found: Tensor = self.layers(image.permute(0, 3, 1, 2) if self._channels_last else image)
        return found


def _as_it_is(layer: nn.Module, gain: float) -> nn.Module:
    return layer


def _orthogonal(layer: nn.Module, gain: float) -> nn.Module:
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


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

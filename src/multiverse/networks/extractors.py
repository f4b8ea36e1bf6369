"""Feature extractors: built-in networks from observations to features, for `network=` and as parts of your own; and the
construction and validation of networks of the user.

    mv.train(env, network=SmallCNN, network_kwargs={"features_dim": 128})
"""

from __future__ import annotations

import itertools
import logging
import math
import traceback
from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from multiverse.core.errors import InvalidRequest
from multiverse.core.layout import leaves
from multiverse.core.wording import short_error
from multiverse.learning.convolution import channels_last
from multiverse.learning.network_spec import CustomNetwork, count_parameters

log = logging.getLogger("multiverse")

VALIDATION_ROWS = 2
_TORCH_FOLDER = str(Path(torch.__file__).parent)


def orthogonal(layer: nn.Module, gain: float) -> nn.Module:
    """Initialise a layer with orthogonal weights and zero biases, and return it."""
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


# -- built in ----------------------------------------------------------------------------------------------------
class MLP(nn.Module):
    """Dense layers over all numbers of the observation, of any space: nested ones are flattened and concatenated."""

    def __init__(self, observation_space: spaces.Space[Any], hidden_sizes: Sequence[int] = (64,)) -> None:
        super().__init__()
        widths = [sum(spaces.flatdim(leaf.space) for leaf in leaves(observation_space)), *hidden_sizes]
        _ = count_parameters(widths)  # refuses too many
        layers: list[nn.Module] = []
        for inward, outward in itertools.pairwise(widths):
            layers += [orthogonal(nn.Linear(inward, outward), math.sqrt(2)), nn.ReLU()]
        self.features_dim, self.layers = widths[-1], nn.Sequential(*layers)

    def forward(self, observations: Any) -> Tensor:
        features: Tensor = self.layers(torch.cat([leaf.flatten(1) for leaf in _tensors(observations)], dim=-1))
        return features


class NatureCNN(nn.Module):
    """Three convolutions and a dense layer over one image (Mnih et al. 2015), at least 36 pixels high and wide.

    The observation is a Box of three axes, or a Dict or Tuple with only such a Box. Images have their channels first;
    other boards may have them last."""

    convolutions: Sequence[tuple[int, int, int]] = ((32, 8, 4), (64, 4, 2), (64, 3, 1))
    """Channels, kernel size and stride of each convolution."""
    padding = 0

    def __init__(self, observation_space: spaces.Space[Any], features_dim: int = 512) -> None:
        super().__init__()
        shapes = [leaf.space.shape or () for leaf in leaves(observation_space)]
        if len(shapes) != 1 or len(shapes[0]) != 3:
            raise InvalidRequest(
                f"{type(self).__name__} needs one image or board as observation, a Box of three axes, and not "
                f"{observation_space}"
            )
        ((first, *size),), layers = shapes, list[nn.Module]()
        self._channels_last, channels = channels_last((first, *size)), first
        if self._channels_last:
            channels, size = size[1], [first, size[0]]
        whole = f"{size[0]} × {size[1]}"
        for outward, kernel, stride in self.convolutions:
            size = [(length + 2 * self.padding - kernel) // stride + 1 for length in size]
            if min(size) < 1:
                raise InvalidRequest(
                    f"{type(self).__name__}: an image of {whole} is too small for its convolutions; "
                    "SmallCNN is for such images"
                )
            convolution = nn.Conv2d(channels, outward, kernel, stride, self.padding)
            layers += [orthogonal(convolution, math.sqrt(2)), nn.ReLU()]
            channels = outward
        dense = orthogonal(nn.Linear(channels * size[0] * size[1], features_dim), math.sqrt(2))
        self.features_dim, self.layers = features_dim, nn.Sequential(*layers, nn.Flatten(), dense, nn.ReLU())

    def forward(self, observations: Any) -> Tensor:
        (image,) = _tensors(observations)
        features: Tensor = self.layers(image.permute(0, 3, 1, 2) if self._channels_last else image)
        return features


class SmallCNN(NatureCNN):
    """Two convolutions of 3 × 3 and a dense layer, for boards, grids and small images of any size."""

    convolutions = ((32, 3, 1), (64, 3, 1))
    padding = 1

    def __init__(self, observation_space: spaces.Space[Any], features_dim: int = 128) -> None:
        super().__init__(observation_space, features_dim)


def _tensors(observations: Any) -> list[Tensor]:
    """Return all tensors of a nested observation, in the order of its space."""
    if isinstance(observations, Tensor):
        return [observations]
    inner = observations.values() if isinstance(observations, Mapping) else observations
    return [tensor for value in inner for tensor in _tensors(value)]


# -- networks of the user ----------------------------------------------------------------------------------------
def create_network(choice: CustomNetwork) -> tuple[nn.Module, int]:
    """Return (network, number of its features); refuse a network that fails for two observations of zeros."""
    space = choice.layout.space
    module = _call(choice, f" cannot be created for {space}", choice.make, space)
    if not isinstance(module, nn.Module):
        raise InvalidRequest(
            f"network={choice.name} returned {type(module).__name__}: {choice.name}(observation_space, "
            "**network_kwargs) must return a torch.nn.Module"
        )
    module = copied(module).float().eval()  # a function may return the same pretrained module each time
    vector, images = choice.layout.inputs(torch.zeros, VALIDATION_ROWS)
    observation, failure = choice.layout.observation(vector, images), f": forward() failed for observations of {space}"
    features, size = _call(choice, failure, module, observation), getattr(module, "features_dim", None)
    forward = f"network={choice.name}: forward() returned"
    validate_features(choice.name, features, VALIDATION_ROWS)
    if not features.is_floating_point():
        raise InvalidRequest(f"{forward} {features.dtype}: expected floats")
    if size is not None and size != features.shape[1]:
        raise InvalidRequest(f"{forward} {features.shape[1]} features, and features_dim is {size}: make them equal")
    if lazy := [name for name, value in module.named_parameters() if isinstance(value, UninitializedParameter)]:
        raise InvalidRequest(
            f"network={choice.name}: layer {lazy[0].rpartition('.')[0]!r} is lazy, and forward() does not use it, so "
            "that its size is unknown: use the layer or remove it"
        )
    if vector._version:
        raise InvalidRequest(
            f"network={choice.name}: forward() changed its observations in place, which other networks use too: "
            "write x = x - 0.5 instead of x -= 0.5"
        )
    if not features.requires_grad and any(value.requires_grad for value in module.parameters()):
        raise InvalidRequest(
            f"{forward} features without a gradient, so that its parameters would not be trained: remove detach() "
            "and no_grad(), or freeze the parameters with requires_grad_(False)"
        )
    second = _call(choice, failure, module, observation)
    if not torch.equal(features.nan_to_num(), second.nan_to_num()):
        log.warning(
            "network=%s is random in evaluation mode: it computed different features for the same observations. This "
            "run cannot be reproduced, and its evaluations vary",
            choice.name,
        )
    return module, features.shape[1]


def validate_features(name: str, features: Any, rows: int) -> None:
    """Refuse features that are not [rows, features_dim]. `name`: of the network."""
    if not isinstance(features, Tensor) or features.dim() != 2 or len(features) != rows or not features.shape[1]:
        kind = f"shape {tuple(features.shape)}" if isinstance(features, Tensor) else type(features).__name__
        raise InvalidRequest(
            f"network={name}: forward() returned {kind} for {rows} observations: expected a tensor of shape "
            f"({rows}, features_dim)"
        )


def _call(choice: CustomNetwork, failure: str, function: Any, *arguments: Any) -> Any:
    """Call code of the user and return the result; an error has the failure and the line of the user's code."""
    try:
        return function(*arguments)
    except InvalidRequest as error:  # from a built-in network
        raise InvalidRequest(f"network={choice.name}: {error}") from error
    except Exception as error:
        own = [
            frame
            for frame in traceback.extract_tb(error.__traceback__)
            if not frame.filename.startswith((_TORCH_FOLDER, __file__))
        ]
        where = f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""
        raise InvalidRequest(f"network={choice.name}{failure}: {short_error(error)}{where}") from error


def copied(module: Any) -> Any:
    """Return a copy of a module, which stays the same while the module learns."""
    try:
        return deepcopy(module)
    except Exception as error:  # raised by attributes of the user's modules
        hint = ". A module must not keep tensors of its last forward pass in attributes: return them, or detach() them"
        raise InvalidRequest(
            f"the network cannot be copied: {short_error(error)}{hint if 'deepcopy protocol' in str(error) else ''}"
        ) from error

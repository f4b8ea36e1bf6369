"""Networks as users write them: small, and each with one property that a training must support."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import torch
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from torch import Tensor, nn


class Wide(nn.Module):
    """One dense layer over a vector."""

    def __init__(self, observation_space: gym.spaces.Box, features_dim: int = 8) -> None:
        super().__init__()
        self.features_dim = features_dim
        self.layer = nn.Linear(observation_space.shape[0], features_dim)

    def forward(self, observations: Tensor) -> Tensor:
        return self.layer(observations).tanh()


class FromSB3(BaseFeaturesExtractor):
    """A feature extractor as in the documentation of Stable-Baselines3."""

    def __init__(self, observation_space: gym.Space[Any], features_dim: int = 6) -> None:
        super().__init__(observation_space, features_dim)
        channels = observation_space.shape[0]  # type: ignore[index]
        self.cnn = nn.Sequential(nn.Conv2d(channels, 4, 3), nn.ReLU(), nn.Flatten())
        with torch.no_grad():
            flat = self.cnn(torch.as_tensor(observation_space.sample()[None]).float()).shape[1]
        self.linear = nn.Sequential(nn.Linear(flat, features_dim), nn.ReLU())

    def forward(self, observations: Tensor) -> Tensor:
        return self.linear(self.cnn(observations))


class Stateful(Wide):
    """A network with a frozen layer, running statistics and dropout."""

    def __init__(self, observation_space: gym.spaces.Box) -> None:
        super().__init__(observation_space)
        self.frozen = nn.Linear(8, 8).requires_grad_(False)
        self.norm, self.dropout = nn.BatchNorm1d(8), nn.Dropout(0.3)

    def forward(self, observations: Tensor) -> Tensor:
        return self.dropout(self.norm(self.frozen(super().forward(observations))))


class Parts(nn.Module):
    """Sum of each leaf of nested observations, in the order of their names."""

    def __init__(self, observation_space: gym.spaces.Dict) -> None:
        super().__init__()
        self.space, self.scale = observation_space, nn.Parameter(torch.ones(1))

    def forward(self, observations: dict[str, Any]) -> Tensor:
        def sums(one: Any) -> list[Tensor]:
            inner = one.values() if isinstance(one, dict) else one
            return [one.flatten(1).sum(1)] if isinstance(one, Tensor) else [s for part in inner for s in sums(part)]

        return torch.stack(sums(observations), dim=1) * self.scale


class Pooled(nn.Module):
    """Filters, pooled over all places of the image."""

    def __init__(self, observation_space: gym.spaces.Box, features_dim: int = 8) -> None:
        super().__init__()
        self.features_dim = features_dim
        self.layers = nn.Sequential(
            nn.Conv2d(observation_space.shape[0], features_dim, 3), nn.ReLU(), nn.AdaptiveMaxPool2d(1), nn.Flatten()
        )

    def forward(self, observations: Tensor) -> Tensor:
        return self.layers(observations)

"""A policy that acts in torch: what is too large, or looks at images, is not worth a copy in numpy."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import numpy as np
import torch

from multiverse.contracts.policy import Leaves
from multiverse.contracts.views import Array
from multiverse.experience.features import Features
from multiverse.experience.numpy_policies import Head


class TorchPolicy:
    """A copy of the network as it is now, so that it stays while the algorithm learns."""

    def __init__(
        self,
        features: Features,
        network: torch.nn.Module,
        head: Head,
        version: int,
        device: torch.device,
        shift_and_scale: tuple[Array, Array] | None,
        clip: float,
    ) -> None:
        self._features, self._network, self._head, self.version = features, deepcopy(network), head, version
        self._device, self._shift_and_scale, self._clip = device, shift_and_scale, clip

    def noise(self, rng: np.random.Generator, steps: int, rows: int) -> Array:
        return self._head.noise(rng, steps, rows)

    def act(self, observations: Leaves, noise: Array | None, starts: Array, masks: Array | None) -> Array:
        vector = self._features.vector(observations)
        if self._shift_and_scale is not None:
            shift, scale = self._shift_and_scale
            vector = np.clip((vector - shift) * scale, -self._clip, self._clip)
        images = [self._tensor(observations[leaf.path]) for leaf in self._features.images]
        with torch.inference_mode():
            output = self._network(self._tensor(vector), images).cpu().numpy()
        return self._head.choose(output, noise, masks)

    def for_env(self, actions: Array) -> Any:
        return self._head.for_env(actions)

    def _tensor(self, array: Array) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self._device)

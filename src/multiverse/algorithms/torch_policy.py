"""A policy that acts in torch: what is too large, or looks at images, is not worth a copy in numpy."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import numpy as np
import torch

from multiverse.algorithms.on_policy import inputs
from multiverse.contracts.policy import Memory, Seen
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
    ) -> None:
        self._features, self._network, self._head, self.version = features, deepcopy(network), head, version
        self._device, self._shift_and_scale = device, shift_and_scale

    def noise(self, rng: np.random.Generator, steps: int, rows: int) -> Array:
        return self._head.noise(rng, steps, rows)

    def first_memory(self, rows: int) -> Memory:
        return {}

    def act(self, seen: Seen, noise: Array | None, memory: Memory) -> tuple[Array, Memory]:
        vector, images = inputs(self._features, seen.observations, self._shift_and_scale)
        with torch.inference_mode():
            output = self._network(self._tensor(vector), [self._tensor(one) for one in images]).cpu().numpy()
        return self._head.choose(output, noise, seen.masks), memory

    def for_env(self, actions: Array) -> Any:
        return self._head.for_env(actions)

    def portable(self) -> None:
        return None

    def _tensor(self, array: Array) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self._device)

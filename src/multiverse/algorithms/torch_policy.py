"""A policy that acts in torch: with large layers, convolutions over images, or a network of the user."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from multiverse.algorithms.algorithm import network_inputs
from multiverse.core.layout import Array
from multiverse.core.policy import Memory, Seen
from multiverse.learning.loss import as_numpy
from multiverse.networks.extractors import copied
from multiverse.networks.modules import dense_layers
from multiverse.policies.features import Features, previous_of
from multiverse.policies.heads import Head


class TorchPolicy:
    """A copy of the present network, which stays the same while the algorithm learns."""

    def __init__(
        self,
        features: Features,
        actor: Any,
        head: Head,
        version: int,
        shift_and_scale: tuple[Array, Array] | None = None,
        recurrent: tuple[Memory, Any] | None = None,
        dense: tuple[Sequence[tuple[Array, Array]], str] | None = None,
    ) -> None:
        """`recurrent`: memory at an episode's start, [1, …], and the critic if it is recurrent too. `dense`: (weights
        [in, out], bias) of layers that replace the network's dense layers, and their activation."""
        self._first_memory, critic = ({}, None) if recurrent is None else recurrent
        self._actor, self._critic = copied(actor).eval(), None if critic is None else copied(critic).eval()
        self._device = next(self._actor.parameters()).device
        self._dense = self._actor.dense
        if dense is not None:
            layers, activation = dense
            self._dense = dense_layers(layers, activation).to(self._device)
        self._features, self._head, self.version = features, head, version
        self._shift_and_scale = shift_and_scale

    def noise(self, rng: np.random.Generator, steps: int, rows: int) -> Array:
        return self._head.noise(rng, steps, rows)

    def first_memory(self, rows: int) -> Memory:
        return {name: np.repeat(first, rows, axis=0) for name, first in self._first_memory.items()}

    def act(self, seen: Seen, noise: Array | None, memory: Memory) -> tuple[Array, Memory]:
        vector, images = network_inputs(self._features, seen.observations, self._shift_and_scale, previous_of(seen))
        inputs, image_inputs = self._tensor(vector), [self._tensor(image) for image in images]
        with torch.inference_mode():
            features = self._actor.features(inputs, image_inputs)
            if not self._first_memory:
                output = self._dense(features)
            else:
                before, counts = self._tensor(memory["cells"]), [len(vector)]
                hidden, after = self._actor.recur(features, counts, before[:, 0])
                output, states = self._dense(hidden), [after]
                if self._critic is not None:  # rollouts hold the critic's memory for the update
                    features = self._critic.features(inputs, image_inputs)
                    states.append(self._critic.recur(features, counts, before[:, 1])[1])
                memory = {"cells": as_numpy(torch.stack(states, dim=1))}
        return self._head.choose(output.cpu().numpy(), noise, seen.masks), memory

    def for_env(self, actions: Array) -> Any:
        return self._head.for_env(actions)

    def portable(self) -> None:
        return None

    def _tensor(self, array: Array) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self._device)

"""A policy that acts in torch: one that is large, looks at images, or has a network of the user."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from multiverse.algorithms.inputs import inputs
from multiverse.core.policy import Memory, Seen
from multiverse.core.views import Array
from multiverse.learning.loss import as_numpy
from multiverse.networks.extractors import copied
from multiverse.networks.modules import dense_layers
from multiverse.policies.features import Features, previous_of
from multiverse.policies.heads import Head


class TorchPolicy:
    """A copy of the network as it is now, so that it stays while the algorithm learns."""

    def __init__(
        self,
        features: Features,
        actor: Any,
        head: Head,
        version: int,
        device: torch.device,
        shift_and_scale: tuple[Array, Array] | None = None,
        remembers: tuple[Memory, Any] | None = None,
        dense: tuple[Sequence[tuple[Array, Array]], str] | None = None,
    ) -> None:
        """`remembers`: what one row remembers at an episode's start, [1, …], and the critic, if it remembers too.
        `dense`: (weights [in, out], bias) of layers that act in the place of the network's, and their activation."""
        self._first, critic = ({}, None) if remembers is None else remembers
        self._actor, self._critic = copied(actor).eval(), None if critic is None else copied(critic).eval()
        self._dense = self._actor.dense if dense is None else dense_layers(*dense).to(device)
        self._features, self._head, self.version = features, head, version
        self._device, self._shift_and_scale = device, shift_and_scale

    def noise(self, rng: np.random.Generator, steps: int, rows: int) -> Array:
        return self._head.noise(rng, steps, rows)

    def first_memory(self, rows: int) -> Memory:
        return {name: np.repeat(first, rows, axis=0) for name, first in self._first.items()}

    def act(self, seen: Seen, noise: Array | None, memory: Memory) -> tuple[Array, Memory]:
        vector, images = inputs(self._features, seen.observations, self._shift_and_scale, previous_of(seen))
        given = self._tensor(vector), [self._tensor(one) for one in images]
        with torch.inference_mode():
            if not self._first:
                output = self._dense(self._actor.features(*given))
            else:
                before, counts = self._tensor(memory["cells"]), [len(vector)]
                hidden, after = self._actor.remember(self._actor.features(*given), counts, before[:, 0])
                output, known = self._dense(hidden), [after]
                if self._critic is not None:  # the value's memory goes on too: the rollout holds it for the update
                    known.append(self._critic.remember(self._critic.features(*given), counts, before[:, 1])[1])
                memory = {"cells": as_numpy(torch.stack(known, dim=1))}
        return self._head.choose(output.cpu().numpy(), noise, seen.masks), memory

    def for_env(self, actions: Array) -> Any:
        return self._head.for_env(actions)

    def portable(self) -> None:
        return None

    def _tensor(self, array: Array) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self._device)

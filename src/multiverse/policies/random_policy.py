"""A policy without weights: every action as likely. What fills a replay before anything is learned."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from multiverse.core.errors import InvalidRequest
from multiverse.core.policy import Memory, Policy, Seen
from multiverse.core.views import Array
from multiverse.policies.heads import Head, head_for, outputs_of


class RandomPolicy:
    """Box actions from -1 to 1, which are the env's bounds; of others, among those that are open."""

    version = 0

    def __init__(self, action_space: spaces.Space[Any]) -> None:
        self._count, self._space, self._head = outputs_of(action_space), action_space, _head_for(action_space)

    def noise(self, rng: np.random.Generator, steps: int, rows: int) -> Array:
        if self._head is not None:
            return self._head.noise(rng, steps, rows)
        return rng.uniform(-1.0, 1.0, (steps, rows, self._count)).astype(np.float32)

    def first_memory(self, rows: int) -> Memory:
        return {}

    def act(self, seen: Seen, noise: Array | None, memory: Memory) -> tuple[Array, Memory]:
        if noise is None:
            raise InvalidRequest("a random policy has no most likely action: give it noise (explore=True)")
        if self._head is None:
            return noise, memory
        return self._head.choose(np.zeros((len(seen.starts), self._count), np.float32), noise, seen.masks), memory

    def for_env(self, actions: Array) -> Any:
        if self._head is not None:
            return self._head.for_env(actions)
        assert isinstance(self._space, spaces.Box)
        low, high = self._space.low.reshape(-1), self._space.high.reshape(-1)
        found = np.minimum(low + (actions + 1) * 0.5 * (high - low), high)  # rounding may pass it
        return found.reshape(len(actions), *self._space.shape)

    def portable(self) -> Policy:
        return self


def _head_for(space: spaces.Space[Any]) -> Head | None:
    """None: a Box, which needs none."""
    if not isinstance(space, spaces.Box):
        return head_for(space)
    if not space.is_bounded():
        raise InvalidRequest(f"random actions need bounds on every side, and {space} has not")
    return None

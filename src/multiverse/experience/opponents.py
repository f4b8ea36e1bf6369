"""A function of the user's as a policy: somebody to play against."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import spaces

from multiverse.contracts.errors import InvalidActions
from multiverse.contracts.layout import from_leaves
from multiverse.contracts.policy import Memory, Seen
from multiverse.contracts.views import Array
from multiverse.experience.features import num_logits
from multiverse.experience.heads import action_of

Player = Callable[[Any, Array | None, np.random.Generator], Any]
"""(observation, open actions or None, generator) → an action, as the env takes it."""


class FunctionPolicy:
    """A function of the user's, asked for every row."""

    version = 0

    def __init__(self, player: Player, observation_space: spaces.Space[Any], action_space: spaces.Space[Any]) -> None:
        self._player, self._observation_space, self._space = player, observation_space, action_space
        self._shape, self._dtype = action_of(action_space)
        self._start = int(action_space.start) if isinstance(action_space, spaces.Discrete) else 0
        self._count = (
            num_logits(action_space) if isinstance(action_space, spaces.Discrete | spaces.MultiDiscrete) else 0
        )

    def noise(self, rng: np.random.Generator, steps: int, rows: int) -> Array:
        return rng.integers(0, 2**63, (steps, rows))

    def first_memory(self, rows: int) -> Memory:
        return {}

    def act(self, seen: Seen, noise: Array | None, memory: Memory) -> tuple[Array, Memory]:
        chosen = np.zeros((len(seen.starts), *self._shape), self._dtype)
        for row in range(len(chosen)):
            values = {path: rows[row] for path, rows in seen.observations.items()}
            shown = from_leaves(self._observation_space, values)
            mask = None if seen.masks is None else seen.masks[row]
            rng = np.random.default_rng(0 if noise is None else int(noise[row]))
            action = np.asarray(self._player(shown, mask, rng)).reshape(self._shape)
            if self._count and (mask is not None) and not self._shape and not mask[int(action) - self._start]:
                name = getattr(self._player, "__name__", self._player)
                raise InvalidActions(f"the opponent {name} chose {int(action)}, which is not open: {mask.tolist()}")
            chosen[row] = action - self._start
        return chosen, memory

    def for_env(self, actions: Array) -> Any:
        return actions + self._start if self._start else actions

    def portable(self) -> None:
        return None

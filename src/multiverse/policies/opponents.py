"""A function of the user's as a policy: somebody to play against."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import spaces

from multiverse.core.errors import InvalidActions
from multiverse.core.layout import from_leaves
from multiverse.core.policy import Memory, Seen
from multiverse.core.views import Array
from multiverse.policies.heads import action_of

Player = Callable[[Any, Array | None, np.random.Generator], Any]
"""(observation, open actions or None, generator) → an action, as the env takes it."""


class FunctionPolicy:
    """A function of the user's, asked for every row."""

    version = 0

    def __init__(self, player: Player, observation_space: spaces.Space[Any], action_space: spaces.Space[Any]) -> None:
        self._player, self._observation_space, self._space = player, observation_space, action_space
        self._shape, self._dtype = action_of(action_space)
        self._start = int(action_space.start) if isinstance(action_space, spaces.Discrete) else 0

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
            chosen[row] = self._asked(shown, mask, np.random.default_rng(0 if noise is None else int(noise[row])))
        return chosen, memory

    def _asked(self, shown: Any, mask: Array | None, rng: np.random.Generator) -> Array:
        """An action, as policies have them; refused, with the opponent's name, if it is none."""
        name = getattr(self._player, "__name__", self._player)
        try:
            said = self._player(shown, mask, rng)
            action = np.asarray(said).reshape(self._shape)
        except Exception as error:  # whatever it does
            raise InvalidActions(f"the opponent {name} failed: {type(error).__name__}: {error}") from error
        if isinstance(self._space, spaces.Box):
            return np.asarray(action, np.float32)
        if action.dtype.kind not in "iub" or not self._space.contains(action.astype(self._space.dtype)):
            raise InvalidActions(f"the opponent {name} chose {said!r}, which is none of {self._space}")
        found = np.asarray(action - self._start)
        if mask is not None and not self._shape and not mask[int(found)]:
            raise InvalidActions(f"the opponent {name} chose {said!r}, which is not open: {mask.tolist()}")
        return found

    def for_env(self, actions: Array) -> Any:
        return actions + self._start if self._start else actions

    def portable(self) -> None:
        return None

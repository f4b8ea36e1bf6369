"""Policies without weights: random actions, and functions of the user."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import spaces

from multiverse.core.errors import InvalidActions, InvalidRequest
from multiverse.core.layout import Array, from_leaves
from multiverse.core.policy import Memory, Policy, Seen
from multiverse.policies.heads import Head, action_of, head_for, outputs_of


class RandomPolicy:
    """Draws actions uniformly: between the bounds of a Box, else among the open ones."""

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
            raise InvalidRequest("a random policy has no most likely action: pass noise (explore=True)")
        if self._head is None:
            return noise, memory
        return self._head.choose(np.zeros((len(seen.starts), self._count), np.float32), noise, seen.masks), memory

    def for_env(self, actions: Array) -> Any:
        if self._head is not None:
            return self._head.for_env(actions)
        assert isinstance(self._space, spaces.Box)
        low, high = self._space.low.reshape(-1), self._space.high.reshape(-1)
        scaled = np.minimum(low + (actions + 1) * 0.5 * (high - low), high)  # rounding may exceed it
        return scaled.reshape(len(actions), *self._space.shape)

    def portable(self) -> Policy:
        return self


def _head_for(space: spaces.Space[Any]) -> Head | None:
    """Head of the space; None for a Box, which does not need one."""
    if not isinstance(space, spaces.Box):
        return head_for(space)
    if not space.is_bounded():
        raise InvalidRequest(f"random actions need finite bounds, and those of {space} are not")
    return None


Player = Callable[[Any, Array | None, np.random.Generator], Any]
"""(observation, action mask or None, generator) → an action for the env."""


class FunctionPolicy:
    """Calls a function of the user for every row, for example as an opponent."""

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
            observation = from_leaves(self._observation_space, values)
            mask = None if seen.masks is None else seen.masks[row]
            rng = np.random.default_rng(0 if noise is None else int(noise[row]))
            chosen[row] = self._action(observation, mask, rng)
        return chosen, memory

    def _action(self, observation: Any, mask: Array | None, rng: np.random.Generator) -> Array:
        """The function's action, counted from 0; InvalidActions, with its name, if it is not valid."""
        name = getattr(self._player, "__name__", self._player)
        try:
            answer = self._player(observation, mask, rng)
            action = np.asarray(answer).reshape(self._shape)
        except Exception as error:  # any error of the user's function
            raise InvalidActions(f"the opponent {name} failed: {type(error).__name__}: {error}") from error
        if isinstance(self._space, spaces.Box):
            return np.asarray(action, np.float32)
        if action.dtype.kind not in "iub" or not self._space.contains(action.astype(self._space.dtype)):
            raise InvalidActions(f"the opponent {name} chose {answer!r}, which is not an action of {self._space}")
        index = np.asarray(action - self._start)
        if mask is not None and not self._shape and not mask[int(index)]:
            raise InvalidActions(
                f"the opponent {name} chose {answer!r}, which its action mask forbids: {mask.tolist()}"
            )
        return index

    def for_env(self, actions: Array) -> Any:
        return actions + self._start if self._start else actions

    def portable(self) -> None:
        return None

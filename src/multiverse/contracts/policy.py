"""What acts: the part of an algorithm that chooses actions, as the collector and an evaluation use it."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from multiverse.contracts.layout import Path
from multiverse.contracts.views import Array

MASKED_LOGIT = -1e9
"""Of an action that is not open."""

Leaves = dict[Path, Array]
"""A batch of observations taken apart: one array [rows, …] per leaf of the space; a plain `Box` is `{(): array}`."""


class ActingPolicy(Protocol):
    """Frozen weights, used for a whole rollout.

    Whatever is random comes in as `noise`, drawn beforehand by the trainer: equal observations and equal noise give
    equal actions, wherever the envs run. `starts` tells whose episode has just begun.
    """

    version: int
    """How many updates its weights have seen."""

    def noise(self, rng: np.random.Generator, steps: int, rows: int) -> Array:
        """[steps, rows, …] for as many steps."""

    def act(self, observations: Leaves, noise: Array | None, starts: Array, masks: Array | None) -> Array:
        """[rows, …] an action for every row; without noise the best one."""

    def for_env(self, actions: Array) -> Any:
        """The same actions as an env takes them: clipped to its bounds, in its dtype."""

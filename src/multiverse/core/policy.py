"""What acts: frozen weights that choose actions, as collectors, evaluations and loaded runs use them.

Noise is an input and memory is data that the caller owns: equal observations, noise and memory give equal actions,
wherever the envs run.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np

from multiverse.core.layout import Path
from multiverse.core.views import Array

MASKED_LOGIT = -1e9
"""Of an action that is not open."""

Leaves = dict[Path, Array]
"""A batch of observations taken apart: one array [rows, …] per leaf of the space; a plain `Box` is `{(): array}`."""

Memory = dict[str, Array]
"""What a policy remembers of every row, [rows, …] each; `{}` remembers nothing."""


class Seen(NamedTuple):
    """What a policy is shown, one row per slot."""

    observations: Leaves
    starts: Array  # [rows] bool: the row is its episode's first
    masks: Array | None = None  # [rows, actions] bool: what is open
    previous_actions: Array | None = None  # [rows, …] the policy's own, zeros where an episode starts
    previous_rewards: Array | None = None  # [rows] likewise
    teams: Array | None = None  # [rows] in which env each agent is, -1: it does not act now; None: each by itself


class Policy(Protocol):
    """Frozen weights, used for a whole rollout."""

    version: int
    """How many updates its weights have seen."""

    def noise(self, rng: np.random.Generator, steps: int, rows: int) -> Array:
        """[steps, rows, …] for as many steps: whatever is random about acting."""

    def first_memory(self, rows: int) -> Memory:
        """What is remembered at an episode's start."""

    def act(self, seen: Seen, noise: Array | None, memory: Memory) -> tuple[Array, Memory]:
        """([rows, …] an action for every row; without noise the most likely one, what is remembered then)."""

    def for_env(self, actions: Array) -> Any:
        """The same actions as an env takes them: clipped to its bounds, in its dtype."""

    def portable(self) -> Policy | None:
        """Itself without torch, for workers and for `mv.load`; None: it acts where the algorithm is."""

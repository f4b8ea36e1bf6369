"""The interface of policies: frozen weights that choose actions, for collectors, evaluations and loaded runs.

Noise is an input, and memory is data that the caller owns: equal observations, noise and memory give equal actions,
wherever the envs run.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np

from multiverse.core.layout import Array, Path

MASKED_LOGIT = -1e9
"""Logit of an action that is not allowed."""

Leaves = dict[Path, Array]
"""A batch of observations by leaf: one array [rows, …] per leaf of the space; a plain `Box` is `{(): array}`."""

Memory = dict[str, Array]
"""The recurrent state of a policy for every row, [rows, …] each; `{}` for policies without memory."""


class Seen(NamedTuple):
    """Input of a policy, one row per slot."""

    observations: Leaves
    starts: Array  # [rows] bool: the row is the first of its episode
    masks: Array | None = None  # [rows, actions] bool: allowed actions
    previous_actions: Array | None = None  # [rows, …] the policy's last actions, zeros where an episode starts
    previous_rewards: Array | None = None  # [rows] likewise
    teams: Array | None = None  # [rows] env of each agent, -1 if it does not act now; None: every agent is alone


class Policy(Protocol):
    """Frozen weights, used for a whole rollout."""

    version: int
    """Number of updates that the weights have had."""

    def noise(self, rng: np.random.Generator, steps: int, rows: int) -> Array:
        """[steps, rows, …] all random numbers that acting for this many steps needs."""

    def first_memory(self, rows: int) -> Memory:
        """The memory at the start of an episode."""

    def act(self, seen: Seen, noise: Array | None, memory: Memory) -> tuple[Array, Memory]:
        """([rows, …] an action for every row, the most likely one without noise; the memory after it)."""

    def for_env(self, actions: Array) -> Any:
        """The actions as an env takes them: clipped to its bounds, in its dtype."""

    def portable(self) -> Policy | None:
        """The policy without torch, for workers and `mv.load`; None if it can only act in the learner's process."""

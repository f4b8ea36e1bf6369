"""Collecting rollouts of fixed length with a policy for each group of agents.

How they are collected is a strategy: in lock-step, filled by workers or here (`lock_step`), or asynchronously
(`asynchronous`). Whole episodes of any number and length are collected by `episode_collector` instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from multiverse.core.layout import Array, Path
from multiverse.core.policy import Policy
from multiverse.core.reset_plan import ResetPlan
from multiverse.rollouts.episodes import Collected, RunningEpisodes
from multiverse.rollouts.lock_step import LockStep
from multiverse.rollouts.rollout import Rollout, RolloutShape
from multiverse.rollouts.rollout_arrays import RolloutArrays, RolloutRequest
from multiverse.rollouts.self_play import Opponents
from multiverse.vector.base import BaseVectorEnv


class CollectionStrategy(Protocol):
    """Fills the rollouts of a collector."""

    @property
    def rollouts(self) -> Sequence[Rollout]:
        """Latest collected rollout of each group."""

    @property
    def env_steps(self) -> int:
        """Number of env steps in the latest rollout."""

    def collect(self, request: RolloutRequest) -> Collected | None:
        """Collect the next rollouts, or return None if `should_stop` ended that early."""


NewStrategy = Callable[[RolloutArrays, RunningEpisodes], CollectionStrategy]


class Collector:
    """Collects rollout after rollout from a vector env; episodes continue from one to the next.

    Workers fill the rollouts if the block was bound with `rollout_fields`; else they are filled here, which also works
    for single agents with autoreset `next_step`. Rollouts with one whole episode of every env need workers.
    """

    def __init__(
        self,
        envs: BaseVectorEnv,
        shapes: Sequence[RolloutShape],
        mask: Path | None,
        reset_plan: ResetPlan,
        *,
        self_play: bool = False,
        strategy: NewStrategy = LockStep,
    ) -> None:
        """`shapes`: one for each group, in the order of the envs' groups. `mask`: the leaf of a single agent's
        observations that has its action masks."""
        self._arrays = RolloutArrays(envs, shapes, mask, reset_plan, self_play)
        self._episodes = RunningEpisodes(self._arrays)
        self.strategy = strategy(self._arrays, self._episodes)
        self.actions = self._episodes.actions
        """Actions of the current episode of every env."""

    def begin(self) -> None:
        """Begin with the envs as they are: reset, or restored."""
        self._episodes.begin()
        self._arrays.note_starts()

    def begin_again(self, env_ids: Sequence[int]) -> None:
        """Note that these envs have begun another episode between two rollouts."""
        self._episodes.begin_again(env_ids)

    def collect(
        self,
        policies: Sequence[Policy],
        rng: np.random.Generator,
        should_stop: Callable[[], bool] = lambda: False,
        opponents: Opponents | None = None,
    ) -> Collected | None:
        """Fill the rollouts with the actions of each group's policy, or of past versions where `opponents` draws them.

        None if `should_stop` ended it before they were full; they hold nothing to learn from then.
        """
        return self.strategy.collect(RolloutRequest(policies, rng, should_stop, opponents))

    @property
    def rollouts(self) -> Sequence[Rollout]:
        """Latest collected rollout of each group."""
        return self.strategy.rollouts

    @property
    def env_steps(self) -> int:
        """Number of env steps in the latest rollout."""
        return self.strategy.env_steps

    @property
    def starts(self) -> Array:
        """[envs] bool: the next step is the first of an episode."""
        return self._arrays.starts

    @property
    def playing(self) -> set[int]:
        """Past versions of the policies that are in the middle of an episode."""
        return self._arrays.playing

    def memory(self) -> dict[str, Any]:
        """Memory of the policies, and their last actions and rewards, by group: the next rollout begins with them."""
        return self._arrays.memory()

    def load_memory(self, state: Mapping[str, Any]) -> None:
        """Restore what `memory` returned."""
        self._arrays.load_memory(state)

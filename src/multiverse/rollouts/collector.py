"""Collecting rollouts of fixed length with a policy for each group of agents.

How they are collected is a strategy: in lock-step (`LockStep`, filled by workers or here), or asynchronously
(`asynchronous`). Whole episodes of any number and length are collected by `episode_collector` instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from time import perf_counter
from typing import Any, Protocol

import numpy as np
from gymnasium.vector import AutoresetMode

from multiverse.core.failures import BAD_VALUE, RESTARTED
from multiverse.core.infos import Infos
from multiverse.core.layout import Array, Path
from multiverse.core.policy import Policy
from multiverse.core.reset_plan import ResetPlan
from multiverse.rollouts.episodes import Collected, RunningEpisodes
from multiverse.rollouts.host_rows import HostRows, fill_rows
from multiverse.rollouts.rollout import LOST, SECONDS, Rollout, RolloutShape
from multiverse.rollouts.rollout_arrays import RolloutArrays, RolloutRequest
from multiverse.rollouts.self_play import Opponents
from multiverse.vector.base import BaseVectorEnv
from multiverse.vector.host_calls import RowRequest


# -- collecting in lock-step ---------------------------------------------------------------------------------------
class LockStep:
    """Collection strategy: all envs take the same steps, in workers if the arrays are shared with them."""

    def __init__(self, arrays: RolloutArrays, episodes: RunningEpisodes) -> None:
        self._arrays, self._episodes = arrays, episodes
        self.rollouts: Sequence[Rollout] = arrays.rollouts  # the next `collect` overwrites their arrays
        self._host_rows: HostRows | None = None  # of all envs, where they are filled here

    @property
    def env_steps(self) -> int:
        """Number of env steps in the latest rollout."""
        arrays = self._arrays
        return arrays.rollouts[0].steps * arrays.envs.num_envs if arrays.taken is None else int(arrays.taken.sum())

    def collect(self, request: RolloutRequest) -> Collected | None:
        """Fill the rollouts; None if `should_stop` ended that early."""
        arrays, all_envs = self._arrays, self._arrays.all_envs
        if arrays.taken is not None:
            arrays.taken[...] = 0
        fill = self._fill_in_workers if arrays.in_workers else self._fill_here
        began_at = perf_counter()
        if not fill(request):
            return None
        arrays.finish_rows(all_envs)
        for rollout, masks in zip(arrays.rollouts, arrays.masks):
            rollout.action_masks = None if masks is None or masks.all() else masks
        self._episodes.log_actions(request.policies)
        lost, (act_s, step_s) = int(arrays.arrays[LOST].sum()), arrays.arrays[SECONDS].sum(axis=0).tolist()
        return Collected.since(began_at, self._episodes.ended(all_envs), lost, act_s, step_s)

    def _fill_in_workers(self, request: RolloutRequest) -> bool:
        arrays = self._arrays
        return arrays.envs.run_rows(
            RowRequest(
                function=fill_rows,
                arguments=arrays.begin_worker_rows(request, arrays.all_envs),
                lost=arrays.arrays[LOST],
                should_stop=request.should_stop,
                on_lost=arrays.lose_row,
                taken=arrays.taken,
            )
        )

    def _fill_here(self, request: RolloutRequest) -> bool:
        arrays = self._arrays
        arrays.begin_rows(request, arrays.all_envs)
        if self._host_rows is None:
            self._host_rows = HostRows(arrays.arrays, arrays.layout, arrays.all_envs, arrays.mask)
        policies, _, should_stop, opponents = request
        return self._host_rows.fill(policies, 0, lambda _: not should_stop(), _CallerSteps(arrays), opponents)


class _CallerSteps:
    """Steps all envs at once, from the caller."""

    def __init__(self, arrays: RolloutArrays) -> None:
        self._envs, self._plan = arrays.envs, arrays.reset_plan
        self.next_step = self._envs.metadata.get("autoreset_mode") == AutoresetMode.NEXT_STEP

    def step(self, only_marked: bool) -> Iterable[int]:
        return lost_rows(self._envs.step_as_written())

    def failed(self) -> bool:
        return False  # a failure would have been raised

    def seed_of(self, i: int) -> int | None:
        return self._plan(i, int(self._envs.episode_counts[i]) + self.next_step).seed


def lost_rows(infos: Infos) -> list[int]:
    """Rows of a step that were lost: their env was restarted, or returned a bad value."""
    lost = [infos[f"_{key}"] for key in (RESTARTED, BAD_VALUE) if f"_{key}" in infos]
    return np.flatnonzero(np.logical_or.reduce(lost)).tolist() if lost else []


# -- the collector -------------------------------------------------------------------------------------------------
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

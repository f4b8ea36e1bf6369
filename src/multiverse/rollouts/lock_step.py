"""Collecting in lock-step: a rollout is complete when every env has taken its steps.

Workers fill their rows without the caller, or the caller steps all envs with one batched forward pass per step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from time import perf_counter

import numpy as np
from gymnasium.vector import AutoresetMode

from multiverse.core.failures import BAD_VALUE, RESTARTED
from multiverse.core.infos import Infos
from multiverse.rollouts.episodes import Collected, RunningEpisodes
from multiverse.rollouts.host_rows import HostRows, fill_rows
from multiverse.rollouts.rollout import LOST, SECONDS, Rollout
from multiverse.rollouts.rollout_arrays import RolloutArrays, RolloutRequest
from multiverse.vector.host_calls import RowRequest


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

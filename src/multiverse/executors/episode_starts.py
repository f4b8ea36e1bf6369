"""Starts of episodes: seeds, options and tasks of resets, and what is needed to reproduce a failure in an episode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import monotonic_ns
from typing import Any

from multiverse.core.errors import Circumstances, InEnv
from multiverse.core.infos import Infos, require_dict
from multiverse.core.reset_plan import ResetPlan, ResetRequest, checked_task
from multiverse.executors.launch.crash_report import OwnShare


class EpisodeStarts:
    """Begins the episodes of the envs of one range; envs are numbered by their position in it."""

    def __init__(self, env_ids: range, reset_plan: ResetPlan | None, tasks: Sequence[Any] | None) -> None:
        count = len(env_ids)
        self._env_ids, self._reset_plan, self._tasks = env_ids, reset_plan, tasks
        self._begun: list[tuple[int, Any] | None] = [None] * count  # the current episode and its task
        self._seeds: list[tuple[int, int] | None] = [None] * count  # the last seed, and the episode it was given to
        self.share: OwnShare | None = None  # gets a record of every start, in case an env ends this process
        self.resets: list[Callable[..., Infos]] = []
        self.resets_ns = 0  # time spent in resets, and in rebuilding envs

    def bind(self, counters: memoryview, replacing: bool) -> None:
        """Use these episode counters, by env id. `replacing`: the envs continue those of a lost worker."""
        self._counters = counters
        self.was_reset = [replacing] * len(self._env_ids)

    def begin(self, i: int, request: ResetRequest | None = None) -> Infos:
        """Reset env `i`; every reset is made here. Explicit arguments of the caller override those of the plan."""
        env_id = self._env_ids[i]
        self._counters[env_id] = episode = self._counters[env_id] + 1
        seed = options = task = None
        if self._reset_plan is not None:
            planned = self._reset_plan(env_id, episode)
            seed, options, task = planned.seed, planned.options, planned.task
        if request is not None:
            seed = request.seed if request.seed is not None else seed
            options = request.options if request.options is not None else options
            task = request.task if request.task is not None else task
        if self._tasks is not None and task is not None:
            task = self._tasks[checked_task(task, len(self._tasks))]
        self._begun[i] = episode, task
        if seed is not None:
            self._seeds[i] = seed, episode
        if self.share is not None:
            last_seed, seeded_episode = self._seeds[i] or (None, None)
            self.share.begin(i, episode, last_seed, seeded_episode)
        began_at = monotonic_ns()
        try:
            info = self.resets[i](seed, options, task)
            require_dict("reset's info", info)
        except Exception as error:
            raise InEnv(env_id, error) from error
        finally:
            self.resets_ns += monotonic_ns() - began_at  # guard: resets-are-timed-apart
        self.was_reset[i] = True
        return info

    def seed_of(self, i: int) -> int | None:
        """The seed of env `i`'s current episode; None if it began without one."""
        begun, seeded = self._begun[i], self._seeds[i]
        return seeded[0] if begun is not None and seeded is not None and seeded[1] == begun[0] else None

    def circumstances(self, i: int, step: int | None = None, action: Any = None) -> Circumstances:
        """Circumstances of a failure now: in step `step` (from 1) with its action, or in the reset."""
        begun = self._begun[i]
        if begun is None:
            return Circumstances()
        episode, task = begun
        seed, seeded_episode = self._seeds[i] or (None, episode)
        return Circumstances(episode, seed, episode - seeded_episode, task, step, action)

"""The reset plan: what each episode of each env starts from. Evaluated where the env runs, at every reset."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from multiverse.core.errors import InvalidRequest
from multiverse.core.plan import whole_number
from multiverse.core.seeds import checked_run_seed, episode_seed, evaluation_seed

log = logging.getLogger("multiverse")

_DRAW = 1  # added to an episode's seed: a separate stream, so that tasks and the env's own draws are independent


@dataclass(frozen=True, slots=True)
class ResetRequest:
    """Arguments of one reset. None leaves the choice to the env, as a plain `env.reset()` does.

    `task` is the task itself, or its index where `make_vec` was given a list of `tasks`.
    """

    seed: int | None = None
    options: dict[str, Any] | None = None
    task: Any = None


class ResetPlan(Protocol):
    """A picklable callable: (env id, index of the episode that begins) → arguments of its reset."""

    def __call__(self, env_id: int, episode: int) -> ResetRequest: ...


@dataclass(frozen=True, slots=True)
class DerivedSeeds:
    """A reset plan that seeds every episode from (run seed, env, episode), so that any episode can be replayed."""

    run_seed: int

    def __post_init__(self) -> None:
        checked_run_seed("run_seed", self.run_seed)

    def __call__(self, env_id: int, episode: int) -> ResetRequest:
        return ResetRequest(seed=episode_seed(self.run_seed, env_id, episode))


@dataclass(frozen=True, slots=True)
class DrawnTasks:
    """A reset plan that draws every episode's task uniformly, and seeds the episode as `DerivedSeeds` does.

    `tasks` are indices into the list given to `make_vec(tasks=…)`: `range(80)`, or the tasks to train on.
    """

    run_seed: int
    tasks: Sequence[int]

    def __post_init__(self) -> None:
        checked_run_seed("run_seed", self.run_seed)
        if not len(self.tasks):
            raise InvalidRequest("tasks is empty: pass the indices to draw from, such as range(80)")

    def __call__(self, env_id: int, episode: int) -> ResetRequest:
        seed = episode_seed(self.run_seed, env_id, episode)
        drawn = int(np.random.default_rng((seed, _DRAW)).integers(len(self.tasks)))
        return ResetRequest(seed=seed, task=self.tasks[drawn])


@dataclass(frozen=True, slots=True)
class EachTask:
    """A reset plan for evaluations: cycles through the tasks, with seeds that no training uses.

    For `EpisodeCollector`, which calls it with (attempt, number): `EachTask(seed, range(50, 70))` and 20 episodes.
    """

    seed: int
    tasks: Sequence[int]

    def __post_init__(self) -> None:
        checked_run_seed("seed", self.seed)
        if not len(self.tasks):
            raise InvalidRequest("tasks is empty: pass the indices to evaluate on, such as range(50, 70)")

    def __call__(self, attempt: int, number: int) -> ResetRequest:
        seed = evaluation_seed(self.seed, number + (attempt << 32))
        return ResetRequest(seed=seed, task=self.tasks[number % len(self.tasks)])


def warn_of_missing_tasks(plan: Any) -> None:
    """Warn of a reset plan that names tasks by their numbers in a list, for envs without such a list."""
    if isinstance(plan, DrawnTasks | EachTask):
        log.warning(
            "%s names tasks by their numbers in tasks=, which was not given: an env gets the number as its task. Pass "
            "the list of tasks, tasks=[…]",
            type(plan).__name__,
        )


def checked_task(task: Any, count: int) -> int:
    """The index of a task, checked against the number of tasks."""
    index = whole_number("task", task)
    if not 0 <= index < count:
        raise InvalidRequest(f"task {index} does not exist: tasks are numbered 0 to {count - 1}")
    return index

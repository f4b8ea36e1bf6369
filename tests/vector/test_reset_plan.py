"""A reset plan decides the seed and the task of every episode, at every reset, wherever the env runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import multiverse as mv
from multiverse.core.seeds import episode_seed
from tests.envs import HookTask, Walk
from tests.equality import assert_same
from tests.vector.configurations import WITHOUT_SPAWN, Configuration, over
from tests.vector.conftest import Make
from tests.vector.runs import actions

config = over(WITHOUT_SPAWN)


@dataclass
class Curriculum:
    """A user-defined plan."""

    def __call__(self, env_id: int, episode: int) -> mv.ResetRequest:
        number = 100 * env_id + episode
        return mv.ResetRequest(seed=number, options={"level": number}, task=float(number))


@pytest.mark.parametrize(("autoreset", "length"), [("next_step", 3), ("same_step", 2)])
def test_every_episode_gets_its_derived_seed(make: Make, config: Configuration, autoreset: str, length: int) -> None:
    envs = make(Walk, env_kwargs={"length": length}, autoreset=autoreset, reset_plan=mv.DerivedSeeds(11))
    envs.reset()
    for k in range(9):
        counts = envs.episode_counts.tolist()
        expected = tuple(episode_seed(11, i, episode) for i, episode in enumerate(counts))
        assert envs.get_attr("last_seed") == expected
        envs.step(actions(range(config.num_envs), k))
    assert envs.episode_counts.min() >= 2


def test_episode_can_be_replayed_from_its_seed(make: Make, config: Configuration) -> None:
    envs = make(Walk, env_kwargs={"length": 2}, autoreset="same_step", reset_plan=mv.DerivedSeeds(11))
    envs.reset()
    for k in range(4):
        observations, *_ = envs.step(actions(range(config.num_envs), k))
    assert envs.episode_counts.tolist() == [2] * config.num_envs
    alone = Walk()
    replayed, _ = alone.reset(seed=episode_seed(11, 3, 2))
    assert_same(observations[3], replayed)


@pytest.mark.parametrize("autoreset", ["next_step", "same_step"])
def test_own_plan_gives_seeds_options_and_tasks(make: Make, config: Configuration, autoreset: str) -> None:
    envs = make(Walk, env_kwargs={"length": 1}, autoreset=autoreset, reset_plan=Curriculum())
    envs.reset()
    for k in range(4):
        numbers = [100 * i + episode for i, episode in enumerate(envs.episode_counts.tolist())]
        assert envs.get_attr("last_seed") == tuple(numbers)
        assert envs.get_attr("last_options") == tuple({"level": n, "task": float(n)} for n in numbers)
        envs.step(actions(range(config.num_envs), k))


def test_tasks_change_with_every_autoreset(make: Make, config: Configuration) -> None:
    envs = make(HookTask, env_kwargs={"length": 2}, autoreset="same_step", reset_plan=Curriculum())
    observations, _ = envs.reset()
    seen = [observations[1, 0]]
    for _ in range(4):
        observations, *_ = envs.step(np.zeros(config.num_envs, np.int64))
        seen.append(observations[1, 0])
    assert seen == [100.0, 100.0, 101.0, 101.0, 102.0]


def test_arguments_of_reset_override_the_plan(make: Make, config: Configuration) -> None:
    envs = make(Walk, reset_plan=Curriculum())
    envs.reset(seed=5, env_ids=[1])
    envs.reset(options={"level": "mine"}, env_ids=[2])
    assert envs.get_attr("last_seed", env_ids=[1, 2]) == (6, 200)
    assert envs.get_attr("last_options", env_ids=[1, 2]) == (
        {"level": 100, "task": 100.0},
        {"level": "mine", "task": 200.0},
    )
    tasks = [9.0] * config.num_envs
    envs.reset(tasks=tasks)
    assert [o["task"] for o in envs.get_attr("last_options")] == tasks


def test_plan_that_raises_is_reported_with_its_env(make: Make) -> None:
    def plan(env_id: int, episode: int) -> mv.ResetRequest:
        if env_id == 2:
            raise LookupError("no such level")
        return mv.ResetRequest()

    envs = make(Walk, reset_plan=plan)
    with pytest.raises(mv.errors.EnvFailed, match="no such level") as caught:
        envs.reset()
    assert caught.value.env_ids == (2,)


def test_adjacent_run_seeds_share_no_episode_seed() -> None:
    seeds = {episode_seed(run, env, episode) for run in range(4) for env in range(4) for episode in range(16)}
    assert len(seeds) == 4 * 4 * 16


# -- a list of tasks, known to every worker by index ---------------------------------------------------------------
class Goal(float):
    """A task that can be pickled until `sealed` is set, so that sending it again later is an error."""

    sealed = False

    def __reduce__(self) -> Any:
        if Goal.sealed:
            raise AssertionError("sent once more")
        return Goal, (float(self),)


@pytest.fixture
def goals(monkeypatch: pytest.MonkeyPatch) -> list[Goal]:
    monkeypatch.setattr(Goal, "sealed", False)
    return [Goal(10.0 * i) for i in range(5)]


def test_list_of_tasks_is_sent_once_and_tasks_are_named_by_index(
    make: Make, config: Configuration, goals: list[Goal]
) -> None:
    envs = make(HookTask, tasks=goals)
    Goal.sealed = True
    observations, _ = envs.reset(tasks=[i % 5 for i in range(config.num_envs)])
    assert observations[:, 0].tolist() == [10.0 * (i % 5) for i in range(config.num_envs)]
    observations, _ = envs.reset(env_ids=[2, 0], tasks=[np.int64(4), None])
    assert observations[:, 0].tolist() == [40.0, 0.0]  # None: keep the task


def test_drawn_tasks_change_at_every_reset(make: Make, config: Configuration, goals: list[Goal]) -> None:
    plan = mv.DrawnTasks(run_seed=3, tasks=[1, 3])
    envs = make(HookTask, env_kwargs={"length": 1}, autoreset="same_step", tasks=goals, reset_plan=plan)
    Goal.sealed = True
    observations, _ = envs.reset()
    seen = set()
    for episode in range(12):
        drawn = [plan(i, episode).task for i in range(config.num_envs)]
        assert observations[:, 0].tolist() == [10.0 * index for index in drawn]
        seen.update(drawn)
        observations, *_ = envs.step(np.zeros(config.num_envs, np.int64))
    assert seen == {1, 3}


def test_task_outside_the_list_is_refused(make: Make, config: Configuration, goals: list[Goal]) -> None:
    envs = make(HookTask, tasks=goals)
    for wrong, reported in ((5, "numbered 0 to 4"), (-1, "numbered 0 to 4"), (2.5, "task=2.5")):
        with pytest.raises(mv.errors.InvalidRequest, match=reported):
            envs.reset(tasks=[wrong] * config.num_envs)
    envs.reset(tasks=[1] * config.num_envs)


def test_plan_with_an_unknown_task_is_reported_with_its_env(make: Make, goals: list[Goal]) -> None:
    envs = make(HookTask, tasks=goals, reset_plan=lambda env_id, episode: mv.ResetRequest(task=7))
    with pytest.raises(mv.errors.EnvFailed, match="numbered 0 to 4"):
        envs.reset()


@pytest.mark.parametrize("tasks", ["abc", {"a": 1}, 3, []])
def test_invalid_list_of_tasks_is_refused(tasks: object) -> None:
    with pytest.raises(mv.errors.InvalidRequest, match="tasks"):
        mv.make_vec(HookTask, 2, "serial", tasks=tasks)  # type: ignore[arg-type]


def test_drawing_from_an_empty_list_of_tasks_is_refused() -> None:
    with pytest.raises(mv.errors.InvalidRequest, match="empty"):
        mv.DrawnTasks(1, [])

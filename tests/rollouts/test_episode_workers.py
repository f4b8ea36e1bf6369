"""Whole episodes played in workers, including the policy: equal to one env alone, bit for bit."""

from __future__ import annotations

import os
import signal
import threading
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import psutil
import pytest
from gymnasium import spaces

import multiverse as mv
from tests.rollouts.envs import Counted, meta
from tests.rollouts.test_whole_episodes import EPISODES, POLICIES, TASKS, assert_equal, collected, made, network
from tests.training.small_runs import SMALL

PLAN = mv.DrawnTasks(8, range(4))


def workers(num_envs: int, count: int, env: Any = meta, **options: Any) -> mv.EpisodeCollector:
    return mv.EpisodeCollector(env, PLAN, num_envs=num_envs, workers=count, tasks=TASKS, **options)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(("num_envs", "count"), [(4, 2), (5, 3), (3, 1), (12, 2)])
def test_episodes_of_workers_equal_those_of_one_env(policy: str, num_envs: int, count: int) -> None:
    with made(1) as alone, workers(num_envs, count) as side_by_side:
        acts = POLICIES[policy](alone)
        assert side_by_side.num_workers == count == len(side_by_side.worker_pids)
        assert_equal(side_by_side.collect(acts, EPISODES), collected(alone, acts))


def test_calls_continue_where_the_last_one_ended() -> None:
    with made(2) as envs, workers(4, 2) as side_by_side:
        collector, policy = mv.EpisodeCollector(envs, PLAN), network(envs)
        for episodes in (1, 5, 2):
            assert_equal(side_by_side.collect(policy, episodes), collector.collect(policy, episodes))
        assert side_by_side.collected == collector.collected == 8
        quiet = collector.collect(policy, 3, explore=False)
        assert_equal(side_by_side.collect(policy, 3, explore=False), quiet)


def test_rollout_of_workers_is_padded_as_in_the_caller() -> None:
    with made(1) as alone, workers(4, 2) as side_by_side:
        expected, found = collected(alone, network(alone)), side_by_side.collect(network(alone), EPISODES)
    assert found.rollout.steps == expected.rollout.steps and (found.rollout.valid == expected.rollout.valid).all()
    assert (found.returns == expected.returns).all() and found.env_steps == expected.env_steps
    assert (found.returns_per_episode == expected.returns_per_episode).all()
    assert set(found.seconds.share()) == {"act", "step", "receive", "store"}


def test_env_id_with_arguments_and_wrappers_is_collected_in_workers() -> None:
    wrapped: Any = {
        "workers": 2,
        "wrappers": [partial(mv.MetaEpisode, episodes_per_task=2)],
        "env_kwargs": {"horizon": 5},
    }
    with mv.EpisodeCollector("multiverse/Wind-v0", mv.DerivedSeeds(1), num_envs=2, **wrapped) as side_by_side:
        policy = mv.RandomPolicy(gym.spaces.Box(-1, 1, (2,)))
        assert side_by_side.collect(policy, 3).lengths.tolist() == [10] * 3


def test_worker_does_not_repeat_its_share_after_another_was_lost(tmp_path: Path) -> None:
    files = [tmp_path / "lives", tmp_path / "dies"]
    makers = [partial(Counted, str(files[0])), partial(Counted, str(files[1]), str(tmp_path / "note"))]
    with mv.EpisodeCollector(makers, mv.DerivedSeeds(1), workers=2, on_failure="restart") as side_by_side:
        found = side_by_side.collect(mv.RandomPolicy(gym.spaces.Discrete(2)), 10)
    assert found.dropped == 5 and (tmp_path / "note").exists()
    taken = [file.stat().st_size for file in files]
    assert taken == [found.lengths[::2].sum(), found.lengths[1::2].sum() + 3]


def test_call_after_an_interrupt_plays_the_same_episodes() -> None:
    with workers(4, 2) as side_by_side, made(1) as alone:
        policy = network(alone)
        side_by_side.collect(policy, 1)
        threading.Timer(0.05, os.kill, [os.getpid(), signal.SIGINT]).start()
        with pytest.raises(KeyboardInterrupt):
            side_by_side.collect(policy, 4000)
        assert side_by_side.collected == 1
        side_by_side.collected = 0
        assert_equal(side_by_side.collect(policy, EPISODES), collected(alone, policy))


def test_invalid_requests_are_refused() -> None:
    with workers(2, 2) as side_by_side, made(1) as alone:
        policy = network(alone)
        policy.portable = lambda: None  # type: ignore[assignment, method-assign, return-value]
        with pytest.raises(mv.errors.InvalidRequest, match=r"cannot act in workers.*collect with a vector env"):
            side_by_side.collect(policy, 2)
        with pytest.raises(mv.errors.InvalidRequest, match="episodes=0: expected at least 1"):
            side_by_side.collect(network(alone), 0)
    with pytest.raises(mv.errors.InvalidRequest, match="workers=0: expected at least 1"):
        workers(2, 0)


def test_options_of_make_vec_apply_to_workers() -> None:
    failures = mv.FailureOptions(on_failure="restart", on_bad_value="clip")
    options = {"on_failure": failures, "timeouts": mv.Timeouts(reply_s=30.0)}
    with mv.EpisodeCollector("CartPole-v1", PLAN, num_envs=2, workers=1, **options) as collector:
        policy = mv.RandomPolicy(gym.spaces.Discrete(2))
        assert collector.collect(policy, 3).lengths.shape == (3,)
    with pytest.raises(mv.errors.InvalidRequest, match=r"reset_plan=3: expected a reset plan"):
        mv.EpisodeCollector("CartPole-v1", 3, num_envs=2)  # type: ignore[arg-type]


def test_options_that_do_not_apply_are_refused() -> None:
    with made(1) as envs:
        with pytest.raises(
            mv.errors.InvalidRequest, match="num_envs= cannot be used with a vector env: pass it to make_vec"
        ):
            mv.EpisodeCollector(envs, PLAN, num_envs=2)
        with pytest.raises(mv.errors.InvalidRequest, match="tasks= cannot be used with a vector env"):
            mv.EpisodeCollector(envs, PLAN, tasks=TASKS)
    unknown: Any = {"task": TASKS}
    with pytest.raises(TypeError, match="unexpected keyword argument 'task'"):
        mv.EpisodeCollector(meta, PLAN, num_envs=2, **unknown)


def test_collector_leaves_a_vector_env_that_it_was_given_open() -> None:
    with made(2) as envs:
        with mv.EpisodeCollector(envs, PLAN) as collector:
            assert (collector.num_envs, collector.num_workers) == (2, 0)
        assert len(collector.collect(network(envs), 1).lengths) == 1


def test_old_name_collects_the_same_episodes_with_a_warning() -> None:
    with pytest.warns(DeprecationWarning, match="is now EpisodeCollector"):
        old = mv.EpisodeWorkers(meta, 2, PLAN, workers=2, tasks=TASKS)
    with old, made(1) as alone:
        assert_equal(old.collect(network(alone), 3), collected(alone, network(alone), 3))


def test_closed_collector_leaves_no_process() -> None:
    side_by_side = workers(2, 2)
    processes = [psutil.Process(pid) for pid in side_by_side.worker_pids]
    side_by_side.close()
    side_by_side.close()
    assert not psutil.wait_procs(processes, timeout=10)[1]


def test_policy_of_another_env_is_refused_in_workers(tmp_path: Path) -> None:
    settings = {**SMALL, "env_steps": 100}
    run = mv.train("CartPole-v1", run_dir=tmp_path / "run", progress=False, **settings)
    with mv.EpisodeCollector("MountainCar-v0", mv.DerivedSeeds(1), num_envs=2, workers=2) as collector:
        with pytest.raises(mv.errors.InvalidRequest, match="load a policy that was trained in this env"):
            collector.collect(mv.load(run), 2)
        assert collector.collect(
            mv.RandomPolicy(spaces.Discrete(3)), 2
        ).rollout.valid.any()  # the collector still works


@pytest.mark.parametrize("plan", [mv.DrawnTasks(1, range(3)), mv.EachTask(1, range(3))])
def test_reset_plan_with_task_numbers_but_no_tasks_is_warned_about(plan: Any, caplog: pytest.LogCaptureFixture) -> None:
    with mv.EpisodeCollector("CartPole-v1", plan, num_envs=1, workers=1):
        assert "which was not given" in caplog.text
    caplog.clear()
    with mv.make_vec("CartPole-v1", 1, executor="serial", reset_plan=plan):
        assert f"{type(plan).__name__} names tasks by their numbers in tasks=, which was not given" in caplog.text
    caplog.clear()
    with mv.make_vec("CartPole-v1", 1, executor="serial", autoreset="disabled") as envs:
        mv.EpisodeCollector(envs, plan)
        assert "which was not given" in caplog.text
    caplog.clear()
    with mv.make_vec("CartPole-v1", 1, executor="serial", autoreset="disabled", tasks=[1, 2, 3]) as envs:
        mv.EpisodeCollector(envs, plan)
        assert "which was not given" not in caplog.text

"""Parallel envs: restarts, bad values, timeouts and dead workers, as for single agents; only present agents end."""

from __future__ import annotations

import logging
import os
import signal
from functools import partial
from typing import Any

import numpy as np
import pytest

import multiverse as mv
from multiverse.core.layout import PRESENT
from tests.equality import assert_same
from tests.multi_agent.envs import Pair
from tests.vector.configurations import FORK, FORKSERVER, HYBRID, SERIAL, THREAD, Configuration
from tests.vector.conftest import Make

everywhere = pytest.mark.parametrize("config", [SERIAL, THREAD, FORKSERVER, HYBRID], ids=str)
with_processes = pytest.mark.parametrize("config", [FORKSERVER, FORK, HYBRID], ids=str)
modes = pytest.mark.parametrize("autoreset", ["next_step", "same_step", "disabled"])
AGENTS = ("left", "right")


def last_env(config: Configuration, **kwargs: Any) -> list[dict[str, Any]]:
    return [{"length": 9}] * (config.num_envs - 1) + [{"length": 9, **kwargs}]


def steps(envs: Any, count: int) -> list[Any]:
    return [envs.step({agent: np.ones(envs.num_envs, int) for agent in AGENTS}) for _ in range(count)]


def assert_lost_row(step: Any, before: Any, env_id: int, autoreset: str, there: tuple[str, ...], mark: str) -> None:
    """Reward 0, truncated, the last delivered observation as the final one; only for agents that were present."""
    observations, rewards, terminated, truncated, infos = step
    assert infos[mark][env_id] and infos[f"_{mark}"].sum() == infos[mark].sum()
    for agent in AGENTS:
        values = rewards[agent][env_id], terminated[agent][env_id], truncated[agent][env_id]
        assert values == (0.0, False, agent in there), agent
        if autoreset != "same_step" and agent in there:
            assert_same(observations[agent][env_id], before[0][agent][env_id])
    if autoreset == "same_step":
        final = infos["final_obs"][env_id]
        assert set(final) == set(there)
        for agent in there:
            assert_same(final[agent], before[0][agent][env_id])


def assert_others_untouched(found: list[Any], expected: list[Any], lost: list[int]) -> None:
    for one, other in zip(found, expected):
        for part, reference in zip(one[:4], other[:4]):
            for agent in AGENTS:
                kept = [i for i in range(len(part[agent])) if i not in lost]
                assert_same(part[agent][kept], reference[agent][kept])


def assert_goes_on(envs: Any, autoreset: str, lost: list[int]) -> None:
    """Afterwards all agents are present again, at the time that the mode requires."""
    if autoreset == "disabled":
        assert not any(envs.alive[agent][lost].any() for agent in AGENTS)
        with pytest.raises(mv.errors.InvalidRequest, match="are over"):
            steps(envs, 1)
        envs.reset(env_ids=lost)
    elif autoreset == "next_step":
        assert not any(envs.alive[agent][lost].any() for agent in AGENTS)
        steps(envs, 1)
    for agent in AGENTS:
        assert envs.alive[agent][lost].all()
    (step,) = steps(envs, 1)
    assert all((step[1][agent][lost] >= 1).all() for agent in AGENTS)
    assert not any(step[k][agent][lost].any() for k in (2, 3) for agent in AGENTS)


@everywhere
@modes
@pytest.mark.parametrize("there", [AGENTS, ("left",)], ids=["both there", "one there"])
def test_env_that_raises_is_rebuilt(make: Make, config: Configuration, autoreset: str, there: tuple[str, ...]) -> None:
    leaves_at = 99 if there == AGENTS else 1
    clean = make(Pair, env_kwargs=last_env(config, second_leaves_at=leaves_at), autoreset=autoreset)
    clean.reset(seed=7)
    expected = steps(clean, 3)
    kwargs = last_env(config, fault="raise", second_leaves_at=leaves_at)
    envs = make(Pair, env_kwargs=kwargs, autoreset=autoreset, on_failure="restart")
    envs.reset(seed=7)
    found, lost = steps(envs, 3), [config.num_envs - 1]
    assert_lost_row(found[2], found[1], lost[0], autoreset, there, "restarted")
    assert_others_untouched(found, expected, lost)
    failures = envs.failures
    assert (failures.env_restarts, failures.steps_discarded) == (1, 1)
    envs.set_attr("second_leaves_at", 99)
    assert_goes_on(envs, autoreset, lost)


@with_processes
@modes
@pytest.mark.parametrize("there", [AGENTS, ("left",)], ids=["both there", "one there"])
def test_killed_worker_is_replaced(make: Make, config: Configuration, autoreset: str, there: tuple[str, ...]) -> None:
    env = partial(Pair, length=9, second_leaves_at=99 if there == AGENTS else 2)
    clean = make(env, autoreset=autoreset)
    clean.reset(seed=7)
    expected = steps(clean, 3)
    envs = make(env, autoreset=autoreset, on_failure="restart")
    envs.reset(seed=7)
    found, lost = steps(envs, 2), list(config.last_range)
    os.kill(envs.worker_pids[-1], signal.SIGKILL)
    found += steps(envs, 1)
    for env_id in lost:
        assert_lost_row(found[2], found[1], env_id, autoreset, there, "restarted")
    assert_others_untouched(found, expected, lost)
    assert envs.failures.worker_restarts == 1
    assert_goes_on(envs, autoreset, lost)


@with_processes
@pytest.mark.parametrize("autoreset", ["next_step", "same_step"])
def test_values_written_by_a_dying_worker_are_never_returned(make: Make, config: Configuration, autoreset: str) -> None:
    """It may die after it has written which agents are present after the lost step, and before it answers."""
    envs = make(partial(Pair, length=9), autoreset=autoreset, on_failure="restart")
    envs.reset(seed=7)
    found, lost = steps(envs, 2), config.last_range
    os.kill(envs.worker_pids[-1], signal.SIGKILL)
    envs._executor.views[("agents", PRESENT)][:, 2 * lost.start : 2 * lost.stop] = False
    found += steps(envs, 1)
    for env_id in lost:
        assert_lost_row(found[2], found[1], env_id, autoreset, AGENTS, "restarted")


@with_processes
@modes
def test_worker_that_dies_inside_a_step_is_replaced(make: Make, config: Configuration, autoreset: str) -> None:
    envs = make(Pair, env_kwargs=last_env(config, fault="kill"), autoreset=autoreset, on_failure="restart")
    envs.reset(seed=7)
    found = steps(envs, 3)
    for env_id in config.last_range:
        assert_lost_row(found[2], found[1], env_id, autoreset, AGENTS, "restarted")
    assert_goes_on(envs, autoreset, list(config.last_range))


@with_processes
def test_hanging_worker_is_killed_and_replaced(make: Make, config: Configuration) -> None:
    envs = make(Pair, on_failure="restart", timeouts=mv.Timeouts(reply_s=0.3), autoreset="same_step")
    envs.reset(seed=7)
    (before,) = steps(envs, 1)
    os.kill(envs.worker_pids[-1], signal.SIGSTOP)
    (lost_step,) = steps(envs, 1)
    for env_id in config.last_range:
        assert_lost_row(lost_step, before, env_id, "same_step", AGENTS, "restarted")
    assert envs.failures.timeouts == 1


@with_processes
def test_hanging_worker_is_an_error_by_default(make: Make, config: Configuration) -> None:
    envs = make(Pair, timeouts=mv.Timeouts(reply_s=0.3))
    envs.reset(seed=7)
    pid = envs.worker_pids[-1]
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(mv.errors.ReplyTimeout):
        steps(envs, 1)
    os.kill(pid, signal.SIGCONT)
    batch = envs.receive()
    assert batch.env_ids.tolist() == list(range(config.num_envs))
    steps(envs, 1)


@with_processes
def test_killed_worker_is_an_error_by_default(make: Make, config: Configuration) -> None:
    envs = make(Pair)
    envs.reset(seed=7)
    os.kill(envs.worker_pids[-1], signal.SIGKILL)
    with pytest.raises(mv.errors.WorkerDied, match="SIGKILL"):
        steps(envs, 2)


@everywhere
def test_exception_is_an_error_by_default(make: Make, config: Configuration) -> None:
    envs = make(Pair, env_kwargs=last_env(config, fault="raise"))
    envs.reset(seed=7)
    with pytest.raises(mv.errors.EnvFailed, match="asked to fail") as caught:
        steps(envs, 3)
    (failure,) = caught.value.failures
    assert (failure.env_id, failure.step, failure.episode) == (config.num_envs - 1, 3, 0)
    assert failure.action == {"left": 1, "right": 1}
    with pytest.raises(mv.errors.RequestPending, match="reset"):
        steps(envs, 1)
    envs.set_attr("fault", "nothing", env_ids=[config.num_envs - 1])
    envs.reset(env_ids=[config.num_envs - 1])
    steps(envs, 3)


@everywhere
@modes
@pytest.mark.parametrize("fault", ["nan", "nan_reward", "shape", "no_reward"])
def test_bad_value_truncates_the_episode_of_present_agents(
    make: Make, config: Configuration, autoreset: str, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    kwargs = last_env(config, fault=fault, second_leaves_at=1)
    envs = make(Pair, env_kwargs=kwargs, autoreset=autoreset, on_failure=mv.FailureOptions(on_bad_value="truncate"))
    envs.reset(seed=7)
    with caplog.at_level(logging.WARNING, "multiverse"):
        found, lost = steps(envs, 3), [config.num_envs - 1]
    assert_lost_row(found[2], found[1], lost[0], autoreset, ("left",), "bad_value")
    assert envs.failures.bad_values == 1
    envs.set_attr("fault", "nothing"), envs.set_attr("second_leaves_at", 99)
    assert_goes_on(envs, autoreset, lost)


@everywhere
@pytest.mark.parametrize(
    ("fault", "said"),
    [("nan", "the observation of left is nan at index 1"), ("nan_reward", "the reward of left is nan")],
)
def test_bad_value_names_its_agent(make: Make, config: Configuration, fault: str, said: str) -> None:
    envs = make(Pair, env_kwargs=last_env(config, fault=fault))
    envs.reset(seed=7)
    with pytest.raises(mv.errors.EnvFailed, match=f"BadValue: {said}"):
        steps(envs, 3)


@everywhere
def test_clip_mode_replaces_bad_values(make: Make, config: Configuration) -> None:
    for fault in ("nan", "nan_reward"):
        envs = make(Pair, env_kwargs=last_env(config, fault=fault), on_failure=mv.FailureOptions(on_bad_value="clip"))
        envs.reset(seed=7)
        *_, (observations, rewards, *_) = steps(envs, 3)
        last = config.num_envs - 1
        assert (observations["left"][last, 1] if fault == "nan" else rewards["left"][last]) == 0.0
        assert np.isfinite(observations["right"]).all() and (rewards["right"] >= 1).all()

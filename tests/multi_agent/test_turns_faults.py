"""AEC envs: restarts, dead workers and exceptions, as for single agents; agents that leave in unusual ways."""

from __future__ import annotations

import os
import signal
from functools import partial
from typing import Any

import numpy as np
import pytest

import multiverse as mv
from tests.equality import assert_same
from tests.multi_agent.envs import GUARDS, FaultyCircle, Undying
from tests.multi_agent.turn_oracle import actions_for
from tests.vector.configurations import DISTINCT, FORK, FORKSERVER, HYBRID, SERIAL, THREAD, Configuration
from tests.vector.conftest import Make

everywhere = pytest.mark.parametrize("config", [SERIAL, THREAD, FORKSERVER, HYBRID], ids=str)
with_processes = pytest.mark.parametrize("config", [FORKSERVER, FORK, HYBRID], ids=str)
modes = pytest.mark.parametrize("autoreset", ["same_step", "next_step", "disabled"])
calm = {"agents": GUARDS, "restless": 0.0, "length": 30}
FIELDS = ("agents", "acting", "alive", "rewards", "terminated", "truncated", "episode_over")


def play(games: Any, steps: int, turn: Any = None, counts: Any = None) -> list[Any]:
    """The first turn (that of a reset by default) and those that follow."""
    turns = [games.reset(seed=7) if turn is None else turn]
    counts = np.zeros(games.num_envs, int) if counts is None else counts
    for _ in range(steps):
        turns.append(games.step(actions_for(games, turns[-1], counts)))
    return turns


def assert_lost(games: Any, turns: list[Any], env_id: int, autoreset: str) -> None:
    """The last of these turns lost env `env_id`: all present agents are truncated, without a reward."""
    before, lost = turns[-2:]
    assert lost.infos["restarted"][env_id]
    assert_same(lost.truncated[env_id], before.alive[env_id])
    assert not lost.terminated[env_id].any() and not lost.rewards[env_id].any()
    assert lost.episode_over[env_id]
    acted = games.agents[before.agents[env_id]]
    final = lost.infos["final_obs"][env_id]
    assert set(final) == {agent for agent, there in zip(games.agents, before.alive[env_id]) if there}
    assert_same(final[acted]["view"], before.observations["view"][env_id])
    assert (lost.agents[env_id] == -1) == (autoreset != "same_step")
    assert lost.acting[env_id].any() == lost.alive[env_id].any() == (autoreset == "same_step")


def assert_others_untouched(found: Any, expected: Any, lost: list[int]) -> None:
    kept = [i for i in range(len(found.env_ids)) if i not in lost]
    for name in FIELDS:
        assert_same(getattr(found, name)[kept], getattr(expected, name)[kept])
    assert_same(found.observations["view"][kept], expected.observations["view"][kept])


def assert_goes_on(games: Any, turn: Any, autoreset: str, lost: list[int]) -> None:
    if autoreset == "disabled":
        with pytest.raises(mv.errors.InvalidRequest, match="are over"):
            games.step(np.zeros(games.num_envs, int))
        turn = games.reset(options={"reset_mask": turn.agents < 0})
    elif autoreset == "next_step":
        turn = play(games, 1, turn)[-1]
    assert turn.acting[lost].sum() == len(lost)
    *_, turn = play(games, 3, turn)
    assert not turn.truncated[lost].any() and turn.rewards[lost].any()


@everywhere
@modes
def test_env_that_raises_is_rebuilt(make: Make, config: Configuration, autoreset: str) -> None:
    clean = make(FaultyCircle, env_kwargs=calm, autoreset=autoreset)
    expected = play(clean, 3)
    kwargs = [calm] * (config.num_envs - 1) + [{**calm, "fault": "raise"}]
    games = make(FaultyCircle, env_kwargs=kwargs, autoreset=autoreset, on_failure="restart")
    found, last = play(games, 3), config.num_envs - 1
    assert_lost(games, found, last, autoreset)
    assert_others_untouched(found[-1], expected[-1], [last])
    assert (games.failures.env_restarts, games.failures.steps_discarded) == (1, 1)
    games.set_attr("fault", "nothing")
    assert_goes_on(games, found[-1], autoreset, [last])


@with_processes
@modes
@pytest.mark.parametrize("when", ["between steps", "inside a step"])
def test_killed_worker_is_replaced(make: Make, config: Configuration, autoreset: str, when: str) -> None:
    lost = list(config.last_range)
    expected = play(make(FaultyCircle, env_kwargs=calm, autoreset=autoreset), 3)
    fault = "kill" if when == "inside a step" else "nothing"
    kwargs = [calm] * (config.num_envs - 1) + [{**calm, "fault": fault}]
    games = make(FaultyCircle, env_kwargs=kwargs, autoreset=autoreset, on_failure="restart")
    counts = np.zeros(config.num_envs, int)
    found = play(games, 2, None, counts)
    if when == "between steps":
        os.kill(games.worker_pids[-1], signal.SIGKILL)
    found += play(games, 1, found[-1], counts)[1:]
    for env_id in lost:
        assert_lost(games, found, env_id, autoreset)
    assert_others_untouched(found[-1], expected[-1], lost)
    assert games.failures.worker_restarts == 1
    games.set_attr("fault", "nothing")
    assert_goes_on(games, found[-1], autoreset, lost)


@everywhere
def test_exception_is_an_error_by_default(make: Make, config: Configuration) -> None:
    kwargs = [calm] * (config.num_envs - 1) + [{**calm, "fault": "raise"}]
    games = make(FaultyCircle, env_kwargs=kwargs)
    with pytest.raises(mv.errors.EnvFailed, match="asked to fail") as caught:
        play(games, 3)
    (failure,) = caught.value.failures
    assert (failure.env_id, failure.step) == (config.num_envs - 1, 3)
    assert len(failure.action) == 1 and set(failure.action) < set(GUARDS)
    games.reset(env_ids=[config.num_envs - 1])


@pytest.mark.parametrize("config", DISTINCT, ids=str)
@modes
def test_env_that_drops_its_agents_has_ended(make: Make, config: Configuration, autoreset: str) -> None:
    """Without the steps that remove them one by one: the end of all is reported, with what the env still has."""
    games = make(FaultyCircle, env_kwargs={**calm, "fault": "abandon"}, autoreset=autoreset)
    turns = play(games, 3)
    before, lost = turns[-2:]
    assert lost.episode_over.all()
    assert_same(lost.terminated, before.alive)
    assert lost.rewards[before.alive].all()
    final = lost.infos["final_obs"][0]
    assert set(final) == {agent for agent, there in zip(games.agents, before.alive[0]) if there}


@pytest.mark.parametrize("config", DISTINCT, ids=str)
def test_env_that_never_removes_ended_agents_is_an_error_and_no_hang(make: Make, config: Configuration) -> None:
    games = make(partial(Undying, agents=GUARDS, length=3))
    with pytest.raises(mv.errors.EnvFailed, match="has ended and stays in the env's agents"):
        play(games, 20)


@with_processes
def test_hanging_worker_is_killed_and_replaced(make: Make, config: Configuration) -> None:
    games = make(FaultyCircle, env_kwargs=calm, on_failure="restart", timeouts=mv.Timeouts(reply_s=0.3))
    found = play(games, 1)
    os.kill(games.worker_pids[-1], signal.SIGSTOP)
    found += play(games, 1, found[-1])[1:]
    for env_id in config.last_range:
        assert_lost(games, found, env_id, "same_step")

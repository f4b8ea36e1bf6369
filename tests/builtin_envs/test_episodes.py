"""Seeds, and that turns and parallel steps are one world."""

from __future__ import annotations

import copy
import pickle
import random
from typing import Any

import numpy as np
import pytest

import multiverse as mv
from multiverse.envs.grid_world import GridWorldEnvMultiAgent, GridWorldParallel, make
from tests.builtin_envs.worlds import GROUND, OBSERVER

TEAM = {"agents": [GROUND, OBSERVER, GROUND], "intrinsic": True, "show_target_coords": True}


def flat(observation: dict[str, np.ndarray]) -> list[list[int]]:
    return [observation[key].tolist() for key in sorted(observation)]


def play(env: GridWorldParallel, seed: int | None, actions: random.Random) -> list[Any]:
    """One episode of random actions: everything that was told."""
    observations, _ = env.reset(seed=seed)
    told: list[Any] = [[flat(each) for each in observations.values()]]
    while env.agents:
        chosen = {agent: actions.randrange(int(env.action_space(agent).n)) for agent in env.agents}
        observations, *rest, _ = env.step(chosen)
        told.append(([flat(each) for each in observations.values()], rest))
    return told


def play_in_turns(env: GridWorldEnvMultiAgent, seed: int | None, actions: random.Random) -> list[Any]:
    """The same, told as the parallel env tells it: once for each step."""
    env.reset(seed=seed)
    team = env.possible_agents
    told: list[Any] = [[flat(env.observe(agent)) for agent in team]]
    while not any((*env.terminations.values(), *env.truncations.values())):
        chosen = [actions.randrange(int(env.action_space(agent).n)) for agent in team]
        rewards = {}
        for agent, action in zip(team, chosen):
            assert env.agent_selection == agent
            env.step(action)
            rewards[agent] = env.rewards[agent]
        seen = [flat(env.observe(agent)) for agent in team]
        told.append((seen, [rewards, dict(env.terminations), dict(env.truncations)]))
    return told


@pytest.mark.parametrize("preset", ["small", "medium", "large"])
def test_turns_and_parallel_steps_tell_the_same_story(preset: str) -> None:
    in_turns, parallel = make(preset, **TEAM), make(preset, parallel=True, **TEAM)
    actions, same = random.Random(1), random.Random(1)
    for seed in (3, None, None, 4):
        assert play_in_turns(in_turns, seed, actions) == play(parallel, seed, same)


def test_a_seed_is_an_episode_and_what_follows_it() -> None:
    first, second = make(parallel=True, **TEAM), make(parallel=True, **TEAM)
    play(second, 99, random.Random(0))  # has a past
    told = [play(first, seed, random.Random(5)) for seed in (7, None, None)]
    assert told == [play(second, seed, random.Random(5)) for seed in (7, None, None)]
    assert told[0] != told[1] != told[2]
    assert told[0] != play(first, 8, random.Random(5))


def test_without_a_seed_episodes_differ_from_env_to_env() -> None:
    starts = [flat(make(parallel=True, size=50).reset()[0]["ground_0"]) for _ in range(5)]
    assert any(each != starts[0] for each in starts)


def test_nothing_outside_the_env_matters_or_is_touched() -> None:
    random.seed(1)
    np.random.seed(1)
    before = random.getstate(), np.random.get_state()[1].tolist()
    told = play(make(parallel=True), 3, random.Random(0))
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before
    random.seed(2)
    np.random.seed(2)
    assert play(make(parallel=True), 3, random.Random(0)) == told


def test_two_envs_side_by_side_do_not_disturb_each_other() -> None:
    alone = play(make(parallel=True), 3, random.Random(0))
    env, other = make(parallel=True), make(parallel=True)
    other.reset(seed=1)
    env.reset(seed=3)
    other.step({"ground_0": 0, "observer_0": 5})
    assert play(env, 3, random.Random(0)) == alone


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda env: pickle.loads(pickle.dumps(env))])
def test_a_copy_goes_on_as_the_original_does(copied: Any) -> None:
    env = make(**TEAM)
    env.reset(seed=2)
    env.step(1)
    twin = copied(env)
    for env_ in (env, twin):
        for action in (1, 2, 3, 5, 0) * 8:
            env_.step(action if action < env_.action_space(env_.agent_selection).n else 4)
    assert flat(env.observe("ground_0")) == flat(twin.observe("ground_0"))
    assert flat(env.observe("observer_0")) == flat(twin.observe("observer_0"))


def test_a_parallel_step_takes_one_action_for_each_agent_or_is_refused_whole() -> None:
    env = make(parallel=True)
    with pytest.raises(mv.errors.InvalidRequest, match="before the first reset"):
        env.step({})
    before, _ = env.reset(seed=0)
    for actions in ({"ground_0": 0}, {"ground_0": 0, "observer_0": 0, "ghost": 0}, {"ground_0": 0, "observer_0": 8}):
        with pytest.raises(mv.errors.InvalidActions, match=r"observer_0|ghost"):
            env.step(actions)
    assert [(body.x, body.y) for body in env.world.bodies] == [tuple(before[a]["agent"]) for a in env.agents]


def test_after_the_end_a_parallel_env_has_no_agents_and_nothing_happens() -> None:
    env = make(parallel=True, max_steps=1, no_target=True)
    env.reset(seed=0)
    _, _, _, truncated, _ = env.step({"ground_0": 4, "observer_0": 4})
    assert truncated == {"ground_0": True, "observer_0": True}
    assert env.agents == []
    assert env.step({}) == ({}, {}, {}, {}, {})
    assert env.world.steps == 1

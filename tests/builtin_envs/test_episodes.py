"""Seeds, and equality of the turn-based and the parallel env."""

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
    """Play one episode of random actions and return all results."""
    observations, _ = env.reset(seed=seed)
    results: list[Any] = [[flat(each) for each in observations.values()]]
    while env.agents:
        chosen = {agent: actions.randrange(int(env.action_space(agent).n)) for agent in env.agents}
        observations, *rest, _ = env.step(chosen)
        results.append(([flat(each) for each in observations.values()], rest))
    return results


def play_in_turns(env: GridWorldEnvMultiAgent, seed: int | None, actions: random.Random) -> list[Any]:
    """The same with the results of the parallel env: one for each step."""
    env.reset(seed=seed)
    team = env.possible_agents
    results: list[Any] = [[flat(env.observe(agent)) for agent in team]]
    while not any((*env.terminations.values(), *env.truncations.values())):
        chosen = [actions.randrange(int(env.action_space(agent).n)) for agent in team]
        rewards = {}
        for agent, action in zip(team, chosen):
            assert env.agent_selection == agent
            env.step(action)
            rewards[agent] = env.rewards[agent]
        seen = [flat(env.observe(agent)) for agent in team]
        results.append((seen, [rewards, dict(env.terminations), dict(env.truncations)]))
    return results


@pytest.mark.parametrize("preset", ["small", "medium", "large"])
def test_turn_based_and_parallel_steps_give_equal_episodes(preset: str) -> None:
    in_turns, parallel = make(preset, **TEAM), make(preset, parallel=True, **TEAM)
    actions, same = random.Random(1), random.Random(1)
    for seed in (3, None, None, 4):
        assert play_in_turns(in_turns, seed, actions) == play(parallel, seed, same)


def test_seed_determines_the_episode_and_those_after_it() -> None:
    first, second = make(parallel=True, **TEAM), make(parallel=True, **TEAM)
    play(second, 99, random.Random(0))  # has played an episode before
    results = [play(first, seed, random.Random(5)) for seed in (7, None, None)]
    assert results == [play(second, seed, random.Random(5)) for seed in (7, None, None)]
    assert results[0] != results[1] != results[2]
    assert results[0] != play(first, 8, random.Random(5))


def test_episodes_without_a_seed_differ_between_envs() -> None:
    starts = [flat(make(parallel=True, size=50).reset()[0]["ground_0"]) for _ in range(5)]
    assert any(each != starts[0] for each in starts)


def test_global_random_state_is_neither_used_nor_changed() -> None:
    random.seed(1)
    np.random.seed(1)
    before = random.getstate(), np.random.get_state()[1].tolist()
    result = play(make(parallel=True), 3, random.Random(0))
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before
    random.seed(2)
    np.random.seed(2)
    assert play(make(parallel=True), 3, random.Random(0)) == result


def test_two_envs_are_independent() -> None:
    alone = play(make(parallel=True), 3, random.Random(0))
    env, other = make(parallel=True), make(parallel=True)
    other.reset(seed=1)
    env.reset(seed=3)
    other.step({"ground_0": 0, "observer_0": 5})
    assert play(env, 3, random.Random(0)) == alone


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda env: pickle.loads(pickle.dumps(env))])
def test_copied_env_continues_as_the_original(copied: Any) -> None:
    env = make(**TEAM)
    env.reset(seed=2)
    env.step(1)
    twin = copied(env)
    for env_ in (env, twin):
        for action in (1, 2, 3, 5, 0) * 8:
            env_.step(action if action < env_.action_space(env_.agent_selection).n else 4)
    assert flat(env.observe("ground_0")) == flat(twin.observe("ground_0"))
    assert flat(env.observe("observer_0")) == flat(twin.observe("observer_0"))


def test_parallel_step_with_missing_or_invalid_actions_is_refused_and_changes_nothing() -> None:
    env = make(parallel=True)
    with pytest.raises(mv.errors.InvalidRequest, match="before the first reset"):
        env.step({})
    before, _ = env.reset(seed=0)
    for actions in ({"ground_0": 0}, {"ground_0": 0, "observer_0": 0, "ghost": 0}, {"ground_0": 0, "observer_0": 8}):
        with pytest.raises(mv.errors.InvalidActions, match=r"observer_0|ghost"):
            env.step(actions)
    assert [(body.x, body.y) for body in env.world.bodies] == [tuple(before[a]["agent"]) for a in env.agents]


def test_parallel_env_after_its_end_has_no_agents_and_ignores_steps() -> None:
    env = make(parallel=True, max_steps=1, no_target=True)
    env.reset(seed=0)
    _, _, _, truncated, _ = env.step({"ground_0": 4, "observer_0": 4})
    assert truncated == {"ground_0": True, "observer_0": True}
    assert env.agents == []
    assert env.step({}) == ({}, {}, {}, {}, {})
    assert env.world.steps == 1

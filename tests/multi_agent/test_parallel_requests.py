"""Parallel envs: groups, partial steps and resets, send and receive, tasks, plans, calls, and retained arrays."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

import multiverse as mv
from multiverse.adapters.env_source import Recipe
from multiverse.core.reset_plan import ResetRequest
from multiverse.executors import choose
from tests.equality import assert_same
from tests.multi_agent.envs import FARMERS, GUARDS, Circle, OptionVillage, Pair, Village
from tests.multi_agent.oracle import ManyEnvs, assert_row
from tests.vector.configurations import DISTINCT, WITHOUT_SPAWN, Configuration, over
from tests.vector.conftest import Make

config = over(WITHOUT_SPAWN)


def noughts(count: int) -> dict[str, Any]:
    return {"left": np.zeros(count, int), "right": np.zeros(count, int)}


def actions_at(envs: Any, step: int) -> dict[str, Any]:
    """Actions of all envs, equal for equal steps."""
    found = {}
    for agent in envs.agents:
        space = envs.action_space(agent)
        space.seed(step)
        found[agent] = space.sample()
    return found


def some_rows(envs: Any, actions: Any, ids: list[int]) -> Any:
    """Rows of a batch of actions, which may be nested or a tuple of texts."""
    if isinstance(actions, dict):
        return {key: some_rows(envs, value, ids) for key, value in actions.items()}
    return tuple(actions[i] for i in ids) if isinstance(actions, tuple) else actions[ids]


# -- groups ----------------------------------------------------------------------------------------------------
def test_agents_with_equal_spaces_form_a_group(make: Make, config: Configuration) -> None:
    envs = make(Village)
    assert isinstance(envs, mv.MultiAgentVectorEnv)
    assert envs.groups == {"farmer": FARMERS, "guard": GUARDS, "bard": ("bard",)}
    assert envs.agents == (*FARMERS, *GUARDS, "bard") and set(envs.possible_agents) == set(envs.agents)
    assert envs.single_action_space("guard_1").n == 4
    assert envs.action_space("guard_1").shape == (config.num_envs,)
    assert envs.observation_space("farmer_0").shape == (config.num_envs, 2)


def test_group_is_one_array_for_actions_and_results(make: Make, config: Configuration) -> None:
    n = config.num_envs
    by_agent, by_group = make(Pair), make(Pair, agents=mv.AgentOptions(groups={"team": ["right", "left"]}))
    assert by_group.groups == {"team": ("left", "right")}
    by_agent.reset(seed=1), by_group.reset(seed=1)
    for k in range(8):
        actions = (np.arange(2 * n).reshape(n, 2) + k) % 3
        expected = by_agent.step({"left": actions[:, 0], "right": actions[:, 1]})
        found = by_group.step({"team": actions})
        assert_same(found, expected)
        batch = by_group.by_group()
        team = batch.groups["team"]
        assert team.agents == ("left", "right") and batch.env_ids.tolist() == list(range(n))
        for position, agent in enumerate(team.agents):
            assert_same(team.observations[:, position], expected[0][agent])
            assert_same(team.rewards[:, position], expected[1][agent])
            assert_same(team.terminated[:, position], expected[2][agent])
            assert_same(team.alive[:, position], by_agent.alive[agent])
            assert_same(team.episode_returns[:, position], by_agent.episode_returns[agent])
            assert_same(team.episode_lengths[:, position], by_agent.episode_lengths[agent])
        assert team.observations.shape == (n, 2, 2) and team.action_masks.shape == (n, 2, 3)
        assert_same(team.acting, team.alive)


def test_opponents_with_equal_spaces_can_be_two_groups(make: Make, config: Configuration) -> None:
    """A group may be named by its key or by its only agent; either form of its array is accepted."""
    n = config.num_envs
    envs, expected = make(Pair, agents=mv.AgentOptions(groups={"left": ["left"], "other": ["right"]})), make(Pair)
    envs.reset(seed=1), expected.reset(seed=1)
    one, two = np.arange(n) % 3, np.arange(1, n + 1) % 3
    reference = expected.step({"left": one, "right": two})
    assert_same(envs.step({"left": one[:, None], "other": two[:, None]}), reference)
    reference = expected.step({"left": one, "right": two})
    assert_same(envs.step({"left": one, "right": two}), reference)


def test_nested_observations_are_available_by_group(make: Make, config: Configuration) -> None:
    envs = make(Village)
    observations, _ = envs.reset(seed=1)
    groups = envs.by_group().groups
    for position, agent in enumerate(GUARDS):
        for key, array in groups["guard"].observations.items():
            assert_same(array[:, position], observations[agent][key])
    text, (bits, numbers) = groups["bard"].observations
    assert tuple(row[0] for row in text) == observations["bard"][0]
    assert bits.shape == numbers.shape == (config.num_envs, 1, 2)


@pytest.mark.parametrize(
    ("groups", "said"),
    [
        ({"team": ["left"]}, "in no group: \\['right'\\]"),
        ({"team": ["left", "right", "up"]}, "unknown agents \\['up'\\]"),
        ({"a": ["left", "right"], "b": ["left"]}, "two groups: \\['left'\\]"),
        ({"right": ["left"], "b": ["right"]}, "'right' is the name of an agent"),
    ],
)
def test_invalid_groups_are_refused(groups: Any, said: str) -> None:
    with pytest.raises(mv.errors.EnvFailed, match=f"InvalidRequest: groups: .*{said}"):
        mv.make_vec(Pair, 2, "serial", agents=mv.AgentOptions(groups=groups))


def test_agents_of_one_group_must_have_equal_spaces() -> None:
    groups = {"a": ["farmer_0", "guard_0"], "b": ["farmer_1", "bard", "guard_1", "guard_2"]}
    with pytest.raises(mv.errors.EnvFailed, match="the spaces of 'guard_0' and 'farmer_0' in group 'a' differ"):
        mv.make_vec(Village, 2, "serial", agents=mv.AgentOptions(groups=groups))


# -- some envs -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("autoreset", ["next_step", "same_step"])
def test_partial_steps_in_any_order_equal_pettingzoo(make: Make, config: Configuration, autoreset: str) -> None:
    makers = [partial(Village, length=3 + i) for i in range(config.num_envs)]
    envs, oracle = make(makers, autoreset=autoreset), ManyEnvs(makers, autoreset)
    envs.reset(seed=7), oracle.reset(7)
    chosen = [[2, 0], [1], [3, 1, 0], list(range(config.num_envs))[::-1], [0, 3]]
    for k in range(30):
        ids, actions = chosen[k % len(chosen)], actions_at(envs, k)
        found = envs.step({agent: some_rows(envs, batch, ids) for agent, batch in actions.items()}, env_ids=ids)
        for row, i in enumerate(ids):
            one = {a: row_of_action(envs, a, batch, i) for a, batch in actions.items()}
            assert_row(envs, found, i, oracle.each[i].step(one), row)


def row_of_action(envs: Any, agent: str, batch: Any, i: int) -> Any:
    return {key: value[i] for key, value in batch.items()} if isinstance(batch, dict) else batch[i]


def test_partial_resets_equal_pettingzoo(make: Make, config: Configuration) -> None:
    makers = [Village] * config.num_envs
    envs, oracle = make(makers), ManyEnvs(makers, "next_step")
    envs.reset(seed=7), oracle.reset(7)
    for k in range(12):
        actions = actions_at(envs, k)
        envs.step(actions), oracle.step(actions, envs.single_action_space)
        ids = [(k + 2) % config.num_envs, k % config.num_envs]
        found = envs.reset(env_ids=ids, seed=50 + k)
        for row, i in enumerate(ids):
            assert_row(envs, found, i, oracle.each[i].reset(50 + k + i), row)


def test_send_and_receive_equal_step(make: Make, config: Configuration) -> None:
    envs, reference = make(Village), make(Village)
    envs.reset(seed=7), reference.reset(seed=7)
    for k in range(12):
        actions = actions_at(envs, k)
        observations, rewards, terminated, truncated, _ = reference.step(actions)
        envs.send(actions)
        with pytest.raises(mv.errors.RequestPending):
            envs.step(actions)
        with pytest.raises(mv.errors.RequestPending):
            envs.by_group()
        seen = 0
        while seen < config.num_envs:
            batch = envs.receive(min_envs=1)
            found = batch.by_agent()
            seen += len(batch.env_ids)
            for agent in envs.agents:
                assert_same(found[1][agent], rewards[agent][batch.env_ids])
                assert_same(found[2][agent], terminated[agent][batch.env_ids])
                assert_same(found[3][agent], truncated[agent][batch.env_ids])
            assert_same(found[0]["farmer_0"], observations["farmer_0"][batch.env_ids])
            assert_same(batch.groups["guard"].alive[:, 1], reference.alive["guard_1"][batch.env_ids])


# -- tasks, plans, calls ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("env", [Village, OptionVillage])
def test_tasks_are_passed_to_the_hook_or_in_options(make: Make, config: Configuration, env: Any) -> None:
    n = config.num_envs
    envs = make(env)
    envs.reset(seed=1, tasks=[float(i) for i in range(n)])
    assert envs.get_attr("task") == tuple(float(i) for i in range(n))
    envs.reset(env_ids=[2, 0], tasks=[20.0, 10.0])
    assert envs.get_attr("task")[:3] == (10.0, 1.0, 20.0)


@pytest.mark.parametrize("autoreset", ["next_step", "same_step"])
def test_reset_plan_gives_every_episode_its_seed_and_task(make: Make, config: Configuration, autoreset: str) -> None:
    def plan(env_id: int, episode: int) -> ResetRequest:
        return ResetRequest(seed=100 * env_id + episode, task=float(episode))

    envs = make(partial(Village, length=2), autoreset=autoreset, reset_plan=plan)
    envs.reset()
    for k in range(9):
        envs.step(actions_at(envs, k))
    assert (envs.episode_counts >= 2).all()
    assert envs.get_attr("task") == tuple(envs.episode_counts.astype(float))


def test_calls_and_attributes_reach_the_env_itself(make: Make, config: Configuration) -> None:
    from pettingzoo.utils import BaseParallelWrapper

    envs = make(Village, wrappers=[BaseParallelWrapper, BaseParallelWrapper])
    envs.reset(seed=1)
    assert envs.call("add", 2, b=3) == (5,) * config.num_envs
    envs.set_attr("bonus", [float(i) for i in range(config.num_envs)])
    assert envs.get_attr("bonus") == tuple(float(i) for i in range(config.num_envs))
    assert envs.render()[0].shape == (2, 3, 3)
    _, rewards, *_ = envs.step(actions_at(envs, 0))
    alive = [i for i in range(config.num_envs) if rewards["farmer_0"][i] or rewards["guard_0"][i]]
    assert max(rewards["farmer_0"][alive[-1]], rewards["guard_0"][alive[-1]]) >= alive[-1]


# -- arrays ----------------------------------------------------------------------------------------------------
def test_returned_arrays_are_copies(make: Make, config: Configuration) -> None:
    envs = make(partial(Pair, length=3))
    kept = [envs.reset(seed=1)[0], *(envs.step(noughts(config.num_envs))[0] for _ in range(4))]
    again = make(partial(Pair, length=3))
    assert_same(kept[0], again.reset(seed=1)[0])
    for one in kept[1:]:
        assert_same(one, again.step(noughts(config.num_envs))[0])


@pytest.mark.parametrize("config", DISTINCT, ids=str)
def test_observations_without_copy_are_views(make: Make, config: Configuration) -> None:
    envs = make(Pair, copy=False)
    observations, _ = envs.reset(seed=1)
    first = observations["left"].copy()
    latest = envs.step(noughts(config.num_envs))[0]
    assert (observations["left"] != first).all()
    assert_same(observations["left"], latest["left"])


@pytest.mark.parametrize("config", DISTINCT, ids=str)
def test_poison_mode_overwrites_earlier_observations(make: Make, config: Configuration) -> None:
    envs = make(Pair, copy="poison")
    observations, _ = envs.reset(seed=1)
    team = envs.by_group().groups["agents"].observations
    fresh = envs.step({a: np.zeros(1, int) for a in envs.agents}, env_ids=[2])[0]
    assert np.isnan(observations["left"][2]).all() and np.isnan(team[2]).all()
    assert not np.isnan(observations["left"][:2]).any()
    assert not np.isnan(fresh["right"]).any()


def test_auto_steps_multi_agent_envs_in_its_probe() -> None:
    with mv.make_vec(Village, 4) as envs:
        assert "failed" not in envs.plan.why


@pytest.mark.parametrize("env", [Village, Circle], ids=["parallel", "turns"])
def test_comparison_of_executors_steps_real_envs(env: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "TRY_S", 0.02)
    hybrid = mv.Plan("hybrid", 1, "forkserver", "auto", "")
    serial_s, hybrid_s = choose.tried([Recipe(env) for _ in range(4)], hybrid)
    assert serial_s > 0.0 and hybrid_s > 0.0

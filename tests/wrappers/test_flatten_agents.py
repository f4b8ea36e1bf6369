"""`flatten_agents`: every agent acts, no value is lost in either direction, and ends are passed on."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env, data_equivalence

pytest.importorskip("pettingzoo")
pytest.importorskip("mpe2")

from mpe2 import simple_push_v3, simple_spread_v3
from pettingzoo import AECEnv, ParallelEnv
from pettingzoo.classic import tictactoe_v3
from pettingzoo.utils import parallel_to_aec

import multiverse as mv
import multiverse.wrappers.flatten_agents as flatten_agents
from multiverse.envs.grid_world import make
from tests.env_checker.broken_teams import Game
from tests.wrappers.flatten_envs import SPACES, Fading, Spaces, joined_actions, unflattened

ENVS: dict[str, Callable[[], Any]] = {
    "spread parallel": lambda: simple_spread_v3.parallel_env(max_cycles=25),
    "spread aec": lambda: simple_spread_v3.env(max_cycles=25),
    "spread continuous": lambda: simple_spread_v3.parallel_env(max_cycles=25, continuous_actions=True),
    "push parallel": simple_push_v3.parallel_env,
    "push aec": simple_push_v3.env,
    "push aec continuous": lambda: simple_push_v3.env(continuous_actions=True),
    "grid parallel": lambda: make(parallel=True, max_steps=40, show_target_coords=True),
    "grid aec": lambda: make(max_steps=40, show_target_coords=True),
    "fading parallel": Fading,
    "fading aec": lambda: parallel_to_aec(Fading()),
    "all spaces": Spaces,
}
PAIRS = [("spread parallel", "spread aec"), ("push parallel", "push aec"), ("grid parallel", "grid aec")]


@pytest.fixture(params=ENVS.values(), ids=ENVS.keys())
def build(request: pytest.FixtureRequest) -> Callable[[], Any]:
    return request.param


# -- there and back --------------------------------------------------------------------------------------------
def test_observations_survive_the_round_trip(build: Callable[[], Any]) -> None:
    env = build()
    flat = mv.flatten_agents(env)
    for seed in range(50):
        sampled = {}
        for index, agent in enumerate(env.possible_agents):
            env.observation_space(agent).seed(100 * seed + index)
            sampled[agent] = env.observation_space(agent).sample()
        row = flat.flatten_observation(sampled)
        assert row in flat.observation_space
        assert data_equivalence(unflattened(flat, row), sampled, exact=True)


def test_actions_survive_the_round_trip(build: Callable[[], Any]) -> None:
    env = build()
    flat = mv.flatten_agents(env)
    flat.action_space.seed(0)
    for seed in range(50):
        action = flat.action_space.sample()
        assert np.array_equal(joined_actions(flat, flat.split_actions(action)), action)
        sampled = {}
        for index, agent in enumerate(env.possible_agents):
            env.action_space(agent).seed(100 * seed + index)
            sampled[agent] = env.action_space(agent).sample()
        joined = joined_actions(flat, sampled)
        assert joined in flat.action_space
        assert data_equivalence(flat.split_actions(joined), sampled, exact=True)


def test_row_has_the_agents_in_order_with_leaves_in_space_order() -> None:
    values = {"agent": {"choice": 5, "where": np.arange(6.0).reshape(2, 3) / 8}}
    space = spaces.Dict({"where": SPACES["box"], "choice": spaces.Discrete(3, start=4)})
    flat = mv.flatten_agents(Spaces({"agent": space}))
    row = flat.flatten_observation(values)
    assert row.tolist() == [0, 1, 0, 0, 0.125, 0.25, 0.375, 0.5, 0.625]
    flat = mv.flatten_agents(Spaces({"b": spaces.Discrete(2), "a": spaces.Discrete(2)}))
    assert flat.flatten_observation({"a": 0, "b": 1}).tolist() == [0, 1, 1, 0]


# -- playing ---------------------------------------------------------------------------------------------------
def test_flattened_env_is_a_gymnasium_env(build: Callable[[], Any]) -> None:
    flat = mv.flatten_agents(build())
    assert isinstance(flat, gymnasium.Env)
    check_env(flat, skip_render_check=True)
    flat.close()


def play(flat: Any, seed: int, steps: int = 60) -> list[Any]:
    row, info = flat.reset(seed=seed)
    flat.action_space.seed(seed)
    results = [(row, info["alive"])]
    for _ in range(steps):
        row, reward, terminated, truncated, info = flat.step(flat.action_space.sample())
        assert row in flat.observation_space
        results.append((row, reward, terminated, truncated, info["alive"]))
        if terminated or truncated:
            return results
    return results


@pytest.mark.parametrize(("parallel", "in_turns"), PAIRS)
def test_turn_based_and_parallel_envs_flatten_to_equal_episodes(parallel: str, in_turns: str) -> None:
    one, other = mv.flatten_agents(ENVS[parallel]()), mv.flatten_agents(ENVS[in_turns]())
    assert (one.observation_space, one.action_space) == (other.observation_space, other.action_space)
    for seed in range(3):
        assert data_equivalence(play(one, seed), play(other, seed))


def test_step_equals_that_of_the_env() -> None:
    flat, env = mv.flatten_agents(simple_spread_v3.parallel_env()), simple_spread_v3.parallel_env()
    row, _ = flat.reset(seed=3)
    observations, _ = env.reset(seed=3)
    flat.action_space.seed(3)
    while env.agents:
        assert data_equivalence(unflattened(flat, row), observations, exact=True)
        action = flat.action_space.sample()
        row, reward, terminated, truncated, _ = flat.step(action)
        observations, rewards, *_ = env.step(dict(zip(env.agents, action)))
        assert reward == pytest.approx(sum(rewards.values()))
    assert data_equivalence(unflattened(flat, row), observations, exact=True)
    assert (terminated, truncated) == (False, True)


@pytest.mark.parametrize("name", ["grid parallel", "grid aec"])
def test_every_agent_acts(name: str) -> None:
    flat = mv.flatten_agents(ENVS[name]())
    row, _ = flat.reset(seed=1)
    before = unflattened(flat, row)
    moved = set()
    for action in ([0, 0], [1, 1], [2, 2], [3, 3]):
        row, *_ = flat.step(np.array(action))
        after = unflattened(flat, row)
        moved |= {agent for agent in after if not np.array_equal(after[agent]["agent"], before[agent]["agent"])}
    assert moved == {"ground_0", "observer_0"}


def test_mean_reward_is_the_sum_divided_by_the_agents() -> None:
    total, mean = mv.flatten_agents(Fading()), mv.flatten_agents(Fading(), reward="mean")
    assert [each[1] / 3 for each in play(total, 0)[1:]] == pytest.approx([each[1] for each in play(mean, 0)[1:]])


# -- agents that leave -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["fading parallel", "fading aec"])
def test_agent_that_has_left_is_zero_and_not_alive(name: str) -> None:
    """`Fading`: a ends after step 1, b after step 2, c after step 3; each sees its number and the step."""
    flat = mv.flatten_agents(ENVS[name]())
    row, info = flat.reset(seed=0)
    rows, alive, rewards = [row.tolist()], [info["alive"].tolist()], []
    for _ in range(3):
        row, reward, terminated, truncated, info = flat.step(np.zeros(3, np.int64))
        assert row in flat.observation_space
        rows.append(row.tolist())
        alive.append(info["alive"].tolist())
        rewards.append(reward)
    assert rows == [[1, 1, 2, 1, 3, 1], [1, 2, 2, 2, 3, 2], [0, 0, 2, 3, 3, 3], [0, 0, 0, 0, 3, 4]]
    assert alive == [[True] * 3, [False, True, True], [False, False, True], [False] * 3]
    assert rewards == [3.0, 2.0, 1.0]
    assert (terminated, truncated) == (True, False)


@pytest.mark.parametrize("name", ["parallel", "aec"])
def test_truncation_of_one_agent_truncates_the_episode(name: str) -> None:
    env = Fading(truncated=("b",))
    flat = mv.flatten_agents(env if name == "parallel" else parallel_to_aec(env))
    *_, (_, _, terminated, truncated, _) = play(flat, 0)
    assert (terminated, truncated) == (False, True)


def test_infos_of_agents_are_passed_on() -> None:
    flat = mv.flatten_agents(Fading(infos=True))
    _, info = flat.reset(seed=0)
    assert set(info) == {"alive"}
    *_, info = flat.step(np.zeros(3, np.int64))
    assert info["agent_infos"] == {"a": {"steps": 1}, "b": {"steps": 1}, "c": {"steps": 1}}


def test_turn_based_game_ends_when_won() -> None:
    class Plain(tictactoe_v3.raw_env):
        """Env without an action mask."""

        def observation_space(self, agent: str) -> spaces.Space[Any]:
            return super().observation_space(agent)["observation"]

        def observe(self, agent: str) -> Any:
            return super().observe(agent)["observation"]

    flat = mv.flatten_agents(Plain())
    flat.reset(seed=0)
    for mine, theirs in ((0, 3), (1, 4)):
        _, reward, terminated, _, info = flat.step(np.array([mine, theirs]))
        assert (reward, terminated, info["alive"].tolist()) == (0.0, False, [True, True])
    row, reward, terminated, truncated, info = flat.step(np.array([2, 5]))
    assert (reward, terminated, truncated, info["alive"].tolist()) == (0.0, True, False, [False, False])  # 1 - 1
    assert row.sum() > 0  # the board as it was won


def test_step_outside_an_episode_is_refused_until_reset() -> None:
    flat = mv.flatten_agents(Fading())
    with pytest.raises(mv.errors.InvalidRequest, match="reset"):
        flat.step(np.zeros(3, np.int64))
    play(flat, 0)
    with pytest.raises(mv.errors.InvalidRequest, match="reset"):
        flat.step(np.zeros(3, np.int64))
    assert len(play(flat, 0)) == 4


# -- what fits, and what is refused ----------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("observed", "dtype"),
    [
        ([spaces.Box(-10, 3, (2,), np.int64), spaces.Box(0, 1, (2,), np.float32)], np.float32),
        ([spaces.Box(0, 255, (2,), np.uint8)], np.float32),
        ([spaces.Box(0, 1, (2,), np.float64), spaces.Discrete(4)], np.float64),
        ([spaces.Box(0, 2**40, (2,), np.int64), spaces.Box(0, 1, (2,), np.float32)], np.float64),
        ([spaces.Box(-(2**63), 2**63 - 1, (2,), np.int64)], np.int64),
        ([spaces.Discrete(4), spaces.MultiBinary(3)], np.float32),
    ],
)
def test_dtype_of_the_row_holds_all_values(observed: list[spaces.Space[Any]], dtype: type) -> None:
    flat = mv.flatten_agents(Spaces(dict(enumerate(observed))))
    assert flat.observation_space.dtype == dtype


def test_given_dtype_is_used_if_it_holds_all_values() -> None:
    image, wide = spaces.Box(0, 255, (2, 2), np.uint8), spaces.Box(0, 256, (2,), np.int64)
    assert mv.flatten_agents(Spaces({0: image}), dtype=np.uint8).observation_space.dtype == np.uint8
    with pytest.raises(mv.errors.InvalidRequest, match="uint8 cannot hold"):
        mv.flatten_agents(Spaces({0: image, 1: wide}), dtype=np.uint8)
    with pytest.raises(mv.errors.InvalidRequest, match="float32 cannot hold"):
        mv.flatten_agents(Spaces({0: spaces.Box(0, 1, (2,), np.float64)}), dtype=np.float32)
    huge = spaces.Box(-(2**62), 2**62, (1,), np.int64)
    with pytest.raises(mv.errors.InvalidRequest, match="exactly"):
        mv.flatten_agents(Spaces({0: huge, 1: spaces.Box(0, 1, (1,), np.float32)}))


def test_space_of_the_row_includes_zeros() -> None:
    flat = mv.flatten_agents(Spaces({0: spaces.Box(2, 3, (1,)), 1: spaces.Box(-3, -2, (1,))}))
    assert (flat.observation_space.low.tolist(), flat.observation_space.high.tolist()) == ([0, -3], [3, 0])
    assert flat.flatten_observation({}) in flat.observation_space


def test_actions_of_different_kinds_are_refused_in_one_line() -> None:
    for other in (spaces.Box(0, 1, (2,)), spaces.MultiBinary(2)):
        with pytest.raises(mv.errors.InvalidRequest, match="all Discrete or all Box; these are 'a' Discrete"):
            mv.flatten_agents(Spaces({"a": SPACES["box"], "b": SPACES["box"]}, [spaces.Discrete(2), other]))


@pytest.mark.parametrize(
    ("make_it", "said"),
    [
        (lambda: mv.flatten_agents(gymnasium.make("CartPole-v1")), "expected a PettingZoo AEC or parallel env"),
        (lambda: mv.flatten_agents(Fading), "pass an env, not a function that builds it"),
        (lambda: mv.flatten_agents(Fading(), reward="max"), "reward='max': expected 'sum' or 'mean'"),
        (lambda: mv.flatten_agents(Spaces({"a": spaces.Text(3)})), "agent 'a' observes Text"),
        (lambda: mv.flatten_agents(Spaces({})), "no possible_agents, which flatten_agents needs"),
        (lambda: mv.flatten_agents(Fading()).step(np.zeros(2, np.int64)), "expected 3 whole numbers"),
        (lambda: mv.flatten_agents(Fading()).step(np.zeros(3)), "expected 3 whole numbers"),
        (lambda: mv.flatten_agents(ENVS["spread continuous"]()).step(np.zeros(7)), r"shape \(7,\): expected 15"),
    ],
)
def test_invalid_envs_and_arguments_are_refused(make_it: Callable[[], Any], said: str) -> None:
    with pytest.raises(mv.errors.InvalidRequest, match=said):
        make_it()


def test_missing_pettingzoo_is_reported_with_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    env = Fading()
    monkeypatch.setitem(sys.modules, "pettingzoo", None)
    with pytest.raises(ImportError, match=r"pip install 'multiverse\[pettingzoo\]'"):
        mv.flatten_agents(env)


def test_discrete_actions_keep_their_start() -> None:
    flat = mv.flatten_agents(Spaces({"a": SPACES["box"], "b": SPACES["box"]}, [spaces.Discrete(2, start=5)] * 2))
    assert flat.action_space == spaces.MultiDiscrete([2, 2], start=[5, 5])
    assert flat.split_actions(np.array([5, 6])) == {"a": 5, "b": 6}


# -- agents that play against each other -------------------------------------------------------------------------
OPPOSED = [simple_push_v3.parallel_env, Game]
TOGETHER = [simple_spread_v3.parallel_env, lambda: make("small", max_steps=20)]


@pytest.mark.parametrize("make_it", OPPOSED)
def test_opposed_agents_give_one_warning(make_it: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flatten_agents, "_warned", set())
    with pytest.warns(UserWarning, match="play against each other: .* learner for each group") as warned:
        for _ in range(2):
            stepped(mv.flatten_agents(make_it()), flatten_agents.WATCHED_STEPS + 300)
    assert len(warned) == 1


def test_warning_is_given_once_for_each_env_class(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flatten_agents, "_warned", set())
    kinds = [type("raw_env", (Game,), {"__module__": module}) for module in ("chess", "go", "go")]
    with pytest.warns(UserWarning, match="play against each other") as warned:
        for kind in kinds:
            stepped(mv.flatten_agents(kind()), flatten_agents.WATCHED_STEPS + 300)
    assert [str(one.message).split()[4] for one in warned] == ["chess.raw_env", "go.raw_env"]


@pytest.mark.parametrize("make_it", TOGETHER)
def test_cooperating_agents_give_no_warning(make_it: Any, recwarn: pytest.WarningsRecorder) -> None:
    stepped(mv.flatten_agents(make_it()), flatten_agents.WATCHED_STEPS + 300)
    assert [one for one in recwarn if "play against" in str(one.message)] == []


def stepped(env: Any, steps: int) -> None:
    env.action_space.seed(0)
    env.reset(seed=0)
    for _ in range(steps):
        *_, terminated, truncated, _ = env.step(env.action_space.sample())
        if terminated or truncated:
            env.reset()


# -- many of them ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("executor", ["serial", "process"])
def test_flattened_envs_run_in_every_executor(executor: str) -> None:
    with mv.make_vec(lambda: mv.flatten_agents(make("small", max_steps=20)), 3, executor) as envs:
        rows, infos = envs.reset(seed=4)
        assert rows.shape == (3, 2 + 25 + 2 + 49)
        assert infos["alive"].tolist() == [[True, True]] * 3
        for _ in range(30):
            rows, *_ = envs.step(envs.action_space.sample())
        alone = mv.flatten_agents(make("small", parallel=True))
        rows, _ = envs.reset(seed=4)
        assert np.array_equal(rows[1], alone.reset(seed=5)[0])


def test_rendering_and_metadata_are_those_of_the_env() -> None:
    pytest.importorskip("pygame")
    flat = mv.flatten_agents(make(render_mode="rgb_array"))
    flat.reset(seed=0)
    assert flat.render_mode == "rgb_array"
    assert flat.render().shape == (600, 600, 3)
    assert flat.metadata["name"] == "grid_world_v0"
    assert isinstance(flat.env, AECEnv) and not isinstance(flat.env, ParallelEnv)

"""AEC envs: order, observations, masks, rewards and ends equal those of PettingZoo's own loop, env by env."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from pettingzoo.utils.conversions import parallel_to_aec

import multiverse as mv
from tests.multi_agent.envs import Circle, Pair
from tests.multi_agent.oracle import assert_same_run
from tests.multi_agent.turn_oracle import actions_for, assert_same_games
from tests.vector.configurations import ALL, DISTINCT, SERIAL, WITHOUT_SPAWN, Configuration, over
from tests.vector.conftest import Make

config = over(WITHOUT_SPAWN)
modes = pytest.mark.parametrize("autoreset", ["same_step", "next_step", "disabled"])


def game(name: str, **kwargs: Any) -> Callable[[], Any]:
    return partial(pytest.importorskip(f"pettingzoo.classic.{name}").env, **kwargs)


@pytest.mark.fault("B6")
@modes
@pytest.mark.parametrize("config", ALL, ids=str)
def test_agents_that_die_return_and_join_late_equal_pettingzoo(
    make: Make, config: Configuration, autoreset: str
) -> None:
    makers = [partial(Circle, length=5 + 3 * i, restless=0.1) for i in range(config.num_envs)]
    games = make(makers, autoreset=autoreset)
    assert isinstance(games, mv.TurnVectorEnv)
    assert_same_games(games, makers, autoreset, steps=60)


@modes
@pytest.mark.parametrize("agents", [("guard_0", "guard_1", "guard_2"), ("farmer_0", "farmer_1"), ("bard",)])
@pytest.mark.parametrize("config", DISTINCT, ids=str)
def test_one_group_of_agents_equals_pettingzoo(
    make: Make, config: Configuration, agents: tuple[str, ...], autoreset: str
) -> None:
    makers = [partial(Circle, agents=agents, length=4 + i, restless=0.2) for i in range(config.num_envs)]
    assert_same_games(make(makers, autoreset=autoreset), makers, autoreset, steps=30)


@modes
@pytest.mark.parametrize(("name", "steps"), [("tictactoe_v3", 40), ("connect_four_v3", 60), ("rps_v2", 40)])
def test_classic_games_equal_pettingzoo(
    make: Make, config: Configuration, name: str, steps: int, autoreset: str
) -> None:
    kwargs = {"max_cycles": 4} if name == "rps_v2" else {}
    makers = [game(name, **kwargs)] * config.num_envs
    assert_same_games(make(makers, autoreset=autoreset), makers, autoreset, steps)


@pytest.mark.parametrize("autoreset", ["same_step", "next_step"])
@pytest.mark.parametrize("config", DISTINCT, ids=str)
def test_chess_equals_pettingzoo(make: Make, config: Configuration, autoreset: str) -> None:
    pytest.importorskip("chess")
    makers = [game("chess_v6")] * config.num_envs
    assert_same_games(make(makers, autoreset=autoreset), makers, autoreset, steps=40)


@modes
@pytest.mark.parametrize("config", DISTINCT, ids=str)
def test_illegal_move_ends_the_game(make: Make, config: Configuration, autoreset: str) -> None:
    """TicTacToe's wrapper ends a game after an illegal move: here all play in one corner."""
    games = make(game("tictactoe_v3"), autoreset=autoreset)
    turn = games.reset(seed=1)
    turn = games.step(np.zeros(config.num_envs, int))
    assert (turn.agents == 1).all() and not turn.episode_over.any()
    turn = games.step(np.zeros(config.num_envs, int))
    assert turn.episode_over.all() and turn.terminated.all()
    assert turn.rewards.tolist() == [[0.0, -1.0]] * config.num_envs
    assert set(turn.infos["final_obs"][0]) == {"player_1", "player_2"}


def test_games_autoreset_in_the_same_step_by_default(make: Make, config: Configuration) -> None:
    makers = [game("tictactoe_v3")] * config.num_envs
    assert_same_games(make(makers), makers, "same_step", steps=20)


def test_env_converted_from_parallel_equals_pettingzoo(make: Make, config: Configuration) -> None:
    makers = [lambda n=n: parallel_to_aec(Pair(length=n, second_leaves_at=3)) for n in range(2, config.num_envs + 2)]
    assert_same_games(make(makers), makers, "same_step", steps=30)


@modes
def test_simultaneous_games_can_be_converted_to_parallel(make: Make, config: Configuration, autoreset: str) -> None:
    from pettingzoo.utils.conversions import aec_to_parallel

    build = game("rps_v2", max_cycles=4)
    envs = make(build, agents=mv.AgentOptions(parallel=True), autoreset=autoreset)
    assert isinstance(envs, mv.MultiAgentVectorEnv)
    assert_same_run(envs, [lambda: aec_to_parallel(build())] * config.num_envs, autoreset, steps=15)


def test_sequential_games_cannot_be_converted_to_parallel() -> None:
    with pytest.raises(mv.errors.EnvFailed, match="is_parallelizable"):
        mv.make_vec(game("tictactoe_v3"), 2, "serial", agents=mv.AgentOptions(parallel=True))


@pytest.mark.parametrize("config", WITHOUT_SPAWN, ids=str)
def test_every_executor_plays_equal_games(make: Make, config: Configuration) -> None:
    results = []
    for games in (make(Circle, 5), SERIAL.make(Circle, 5)):
        with games:
            counts, turns = np.zeros(5, int), [games.reset(seed=3)]
            for _ in range(30):
                turns.append(games.step(actions_for(games, turns[-1], counts)))
            results.append(turns)
    assert repr(results[0]) == repr(results[1])


def test_returns_and_lengths_are_counted_for_every_slot(make: Make, config: Configuration) -> None:
    games = make(game("tictactoe_v3"), autoreset="same_step")
    turn, n = games.reset(seed=1), config.num_envs
    for cell in (0, 3, 1, 4, 2):  # player_1 fills the first column
        turn = games.step(np.full(n, cell))
    assert turn.episode_over.all()
    assert games.episode_returns["player_1"].tolist() == [1.0] * n
    assert games.episode_returns["player_2"].tolist() == [-1.0] * n
    assert games.episode_lengths["player_1"].tolist() == [3] * n
    assert games.episode_lengths["player_2"].tolist() == [2] * n
    games.step(np.zeros(n, int))
    assert games.episode_lengths["player_1"].tolist() == [1] * n
    assert games.episode_returns["player_2"].tolist() == [0.0] * n

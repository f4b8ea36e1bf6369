"""AEC envs: refused actions, partial steps and resets, send and receive, tasks, plans, and retained arrays."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

import multiverse as mv
from multiverse.core.reset_plan import ResetRequest
from tests.equality import assert_same
from tests.multi_agent.envs import GUARDS, Circle
from tests.multi_agent.turn_oracle import actions_for, assert_turn, batched, pick, stream
from tests.vector.configurations import FORKSERVER, SERIAL, WITHOUT_SPAWN, Configuration, over
from tests.vector.conftest import Make

config = over(WITHOUT_SPAWN)
guards = partial(Circle, agents=GUARDS, restless=0.1)


def played(games: Any, steps: int, counts: Any, turn: Any = None) -> Any:
    turn = games.reset(seed=7) if turn is None else turn
    for _ in range(steps):
        turn = games.step(actions_for(games, turn, counts))
    return turn


# -- actions ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("config", [SERIAL, FORKSERVER], ids=str)
@pytest.mark.parametrize(
    ("actions", "said"),
    [
        (np.zeros(3, int), r"have shape \(3,\), expected \(4,\)"),
        (np.zeros((4, 1), int), r"have shape \(4, 1\)"),
        (np.zeros(4), "are float64"),
        (None, "actions"),
        ({"guard": np.zeros(3, int)}, r"have shape \(3,\)"),
        ({"guard_0": np.zeros(4, int)}, r"actions for unknown groups \['guard_0'\]; the groups are \['guard'\]"),
        ({}, "no actions for group 'guard'"),
    ],
)
def test_invalid_actions_are_refused_and_leave_no_trace(
    make: Make, config: Configuration, actions: Any, said: str
) -> None:
    games, untouched, counts = make(guards, 4), make(guards, 4), np.zeros((2, 4), int)
    turn, reference = played(games, 2, counts[0]), played(untouched, 2, counts[1])
    with pytest.raises(mv.errors.InvalidActions, match=said):
        games.step(actions)
    assert games.failures.steps_sent == 8
    turn, reference = played(games, 3, counts[0], turn), played(untouched, 3, counts[1], reference)
    assert repr(turn) == repr(reference)


def test_actions_are_a_dict_if_there_are_several_groups(make: Make, config: Configuration) -> None:
    games = make(Circle)
    turn = games.reset(seed=7)
    with pytest.raises(mv.errors.InvalidRequest, match=r"turn.groups\[name\]"):
        turn.observations  # noqa: B018
    with pytest.raises(mv.errors.InvalidRequest, match=r"turn.groups\[name\]"):
        turn.action_masks  # noqa: B018
    with pytest.raises(mv.errors.InvalidActions, match="a dict with actions for each of"):
        games.step(np.zeros(config.num_envs, int))
    whose = next(name for name, rows in turn.groups.items() if len(rows.env_ids))
    actions = actions_for(games, turn, np.zeros(config.num_envs, int))
    with pytest.raises(mv.errors.InvalidActions, match=f"no actions for group '{whose}', whose agents act in envs"):
        games.step({name: batch for name, batch in actions.items() if name != whose})
    idle = [name for name, rows in turn.groups.items() if not len(rows.env_ids)]
    for name in idle:
        with pytest.raises(mv.errors.InvalidActions):
            games.step({**actions, name: np.zeros(2, int)})
    games.step({name: batch for name, batch in actions.items() if name not in idle})


# -- some envs -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("env", [Circle, guards], ids=["several groups", "one group"])
@pytest.mark.parametrize("autoreset", ["same_step", "next_step"])
def test_partial_steps_in_any_order_equal_pettingzoo(
    make: Make, config: Configuration, env: Any, autoreset: str
) -> None:
    n = config.num_envs
    makers = [partial(env, length=4 + i) for i in range(n)]
    games = make(makers, autoreset=autoreset)
    streams = [stream(build(), i, 7 + i, autoreset) for i, build in enumerate(makers)]
    games.reset(seed=7)
    expected = {i: next(one) for i, one in enumerate(streams)}
    counts = np.zeros(n, int)
    chosen = [[2, 0], [1], [3, 1, 0], list(range(n))[::-1], [0, 3]]
    for k in range(40):
        ids = chosen[k % len(chosen)]
        turn = games.step(partial_actions(games, expected, counts, ids), env_ids=ids)
        assert turn.env_ids.tolist() == ids
        for row, i in enumerate(ids):
            expected[i] = next(streams[i])
            assert_turn(games, turn, row, expected[i], autoreset)
        for rows in turn.groups.values():
            assert rows.env_ids.tolist() == [i for i in ids if i in rows.env_ids]


def partial_actions(games: Any, expected: Any, counts: Any, ids: list[int]) -> Any:
    """Return the actions of some envs, in their order, by group."""
    by_group = {}
    for name, agents in games.groups.items():
        space = games.single_action_space(agents[0])
        chosen = []
        for i in ids:
            if expected[i].agent in agents:
                chosen.append(pick(i, int(counts[i]), space, expected[i].mask))
            elif expected[i].over and len(games.groups) == 1:
                chosen.append(pick(i, int(counts[i]), space, None))  # ignored
        by_group[name] = batched(space, chosen)
    counts[ids] += 1
    return by_group


def test_send_and_receive_equal_step(make: Make, config: Configuration) -> None:
    games, reference = make(Circle), make(Circle)
    counts, turn, values = np.zeros(config.num_envs, int), games.reset(seed=7), reference.reset(seed=7)
    for _ in range(15):
        actions = actions_for(games, values, counts)
        values = reference.step(actions)
        games.send(actions)
        seen = 0
        while seen < config.num_envs:
            turn = games.receive(min_envs=1)
            seen += len(turn.env_ids)
            for name in ("agents", "acting", "alive", "rewards", "terminated", "truncated", "episode_over"):
                assert_same(getattr(turn, name), getattr(values, name)[turn.env_ids])


def test_partial_resets_equal_full_resets(make: Make, config: Configuration) -> None:
    games, fresh = make(guards), make(guards)
    turn = played(games, 5, np.zeros(config.num_envs, int))
    again = games.reset(env_ids=[2, 0], seed=30)
    expected = fresh.reset(seed=30)
    assert again.env_ids.tolist() == [2, 0]
    for name in ("agents", "acting", "alive", "rewards", "terminated", "episode_over"):
        assert_same(getattr(again, name), getattr(expected, name)[[2, 0]])
    assert_same(again.observations["view"], expected.observations["view"][[2, 0]])
    assert_same(again.action_masks, expected.action_masks[[2, 0]])
    whole = games.reset(options={"reset_mask": np.arange(config.num_envs) == 1}, seed=30)
    assert_same(whole.observations["view"][1], expected.observations["view"][1])
    assert_same(whole.agents[3], turn.agents[3])


def test_reset_is_not_the_end_of_an_episode(make: Make, config: Configuration) -> None:
    """Also if an agent has ended in the step before, or ends in the step after."""
    games = make(partial(Circle, agents=GUARDS, restless=0.4, length=50))
    counts, ended, counted = np.zeros(config.num_envs, int), 0, games.episode_counts
    for k in range(30):
        turn = games.reset(seed=k)
        assert not turn.episode_over.any()
        turn = games.step(actions_for(games, turn, counts))
        begun = games.episode_counts - counted
        counted = games.episode_counts
        assert_same(turn.episode_over, begun == 2)  # the reset's own, and one more
        ended += int((turn.terminated.any(axis=1) & ~turn.episode_over).sum())
    assert ended


# -- tasks, plans, calls, arrays -------------------------------------------------------------------------------
def test_tasks_plans_and_calls_reach_the_envs(make: Make, config: Configuration) -> None:
    def plan(env_id: int, episode: int) -> ResetRequest:
        return ResetRequest(seed=100 * env_id + episode, task=float(episode))

    n = config.num_envs
    games = make(partial(guards, length=3), reset_plan=plan)
    turn = games.reset(tasks=[5.0] * n)
    assert games.get_attr("task") == (5.0,) * n
    played(games, 12, np.zeros(n, int), turn)
    assert (games.episode_counts >= 2).all()
    assert games.get_attr("task") == tuple(games.episode_counts.astype(float))
    games.set_attr("bonus", 3.0)
    assert games.call("add", 1) == tuple(s + 1 for s in games.get_attr("steps"))
    assert games.render(env_ids=[1])[0].shape == (2, 3, 3)


@pytest.mark.parametrize("copy", [True, False])
def test_turns_are_copies(make: Make, config: Configuration, copy: bool) -> None:
    games = make(guards, copy=copy)
    turn = games.reset(seed=7)
    before = repr(turn)
    played(games, 4, np.zeros(config.num_envs, int), turn)
    assert repr(turn) == before


def test_poison_mode_overwrites_earlier_turns(make: Make, config: Configuration) -> None:
    games = make(guards, copy="poison")
    first = games.reset(seed=7)
    second = games.step(actions_for(games, first, np.zeros(config.num_envs, int)))
    assert np.isnan(first.observations["view"]).all()
    assert not np.isnan(second.observations["view"]).any()

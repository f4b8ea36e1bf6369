"""AEC envs played one by one by PettingZoo's own loop: the expected results of a vector env, turn by turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np
from gymnasium import spaces

from tests.equality import assert_same
from tests.multi_agent.oracle import assert_info, cast, info_row, mask_of, row_of

Policy = Callable[[int, int, Any, Any], Any]
"""(env, number of the action in it, the action space, the action mask or None) → the action."""


@dataclass
class End:
    observation: Any
    reward: float
    terminated: bool
    truncated: bool


@dataclass
class ExpectedTurn:
    """Results of one step of one env; the first of an episode has no reward."""

    ends: dict[str, End] = field(default_factory=dict)
    agent: str | None = None  # the agent to move; None: the episode has ended
    observation: Any = None
    mask: Any = None
    reward: float = 0.0
    infos: dict[str, Any] = field(default_factory=dict)
    there: frozenset[str] = frozenset()
    first: bool = False  # of its episode

    @property
    def over(self) -> bool:
        return self.agent is None


def pick(env_id: int, count: int, space: Any, mask: Any) -> Any:
    """An allowed action, different from env to env and from step to step."""
    if isinstance(space, spaces.Discrete):
        allowed = np.arange(space.n) if mask is None or not np.any(mask) else np.flatnonzero(mask)
        return np.int64(space.start + allowed[(7 * env_id + 3 * count + count * count) % len(allowed)])
    space.seed(1000 * env_id + count)
    return space.sample()


def episode(env: Any, env_id: int, counter: Iterator[int], policy: Policy = pick) -> Iterator[ExpectedTurn]:
    """One episode of an env that was just reset, by the loop of PettingZoo's documentation."""
    turn = ExpectedTurn(first=True)
    for agent in env.agent_iter():
        observation, reward, terminated, truncated, info = env.last()
        turn.infos[agent] = dict(info)
        if terminated or truncated:
            turn.ends[agent] = End(observation, reward, terminated, truncated)
            env.step(None)
            continue
        discrete = isinstance(env.action_space(agent), spaces.Discrete)
        turn.mask = mask_of(observation, info, env.action_space(agent).n) if discrete else None
        turn.agent, turn.observation, turn.reward = agent, observation, reward
        turn.there = frozenset(env.agents)
        yield turn
        turn = ExpectedTurn()
        env.step(policy(env_id, next(counter), env.action_space(agent), mask_in(observation, info)))
    yield turn


def mask_in(observation: Any, info: dict[str, Any]) -> Any:
    given = observation.get("action_mask") if isinstance(observation, dict) else None
    return info.get("action_mask") if given is None else given


def stream(env: Any, env_id: int, seed: int, autoreset: str, reseed: int | None = None) -> Iterator[ExpectedTurn]:
    """Every turn of an env over many episodes, as reported in the autoreset mode."""
    counter, kept = count(), None
    while True:
        env.reset(seed=seed if kept is None else reseed)
        for turn in episode(env, env_id, counter):
            if turn.first and kept is not None and autoreset == "same_step":  # the last one's end, and this beginning
                turn.ends = kept.ends
                yield turn
            elif not (turn.over and autoreset == "same_step"):
                yield turn
            kept = turn if turn.over else kept
            if turn.over and autoreset == "next_step":
                next(counter)  # the action that the reset ignores


def actions_for(games: Any, turn: Any, counts: Any, policy: Policy = pick) -> Any:
    """Actions of `policy` in every env: an array, or a dict by group."""
    by_group = {}
    for name, rows in turn.groups.items():
        space = games.single_action_space(games.groups[name][0])
        chosen = []
        for row, env_id in enumerate(rows.env_ids.tolist()):
            mask = None if rows.action_masks is None else rows.action_masks[row]
            chosen.append(policy(env_id, int(counts[env_id]), space, mask))
        by_group[name] = batched(space, chosen)
    counts[turn.env_ids] += 1
    return by_group if len(by_group) > 1 else next(iter(by_group.values()))


def batched(space: Any, chosen: list[Any]) -> Any:
    """Single actions as one batch, nested as the space."""
    if isinstance(space, spaces.Dict):
        return {key: batched(child, [one[key] for one in chosen]) for key, child in space.items()}
    return chosen if isinstance(space, spaces.Text) else np.array(chosen, space.dtype).reshape(-1, *space.shape)


def assert_turn(games: Any, turn: Any, row: int, expected: ExpectedTurn, autoreset: str) -> None:
    env_id, where = int(turn.env_ids[row]), f"env {turn.env_ids[row]}"
    agents = list(games.agents)
    whose = -1 if expected.agent is None else agents.index(expected.agent)
    assert turn.agents[row] == whose, (where, expected)
    assert turn.acting[row].tolist() == [agent == expected.agent for agent in agents], where
    assert turn.alive[row].tolist() == [agent in expected.there for agent in agents], where
    rewards = {agent: end.reward for agent, end in expected.ends.items()}
    if expected.agent is not None and expected.agent not in expected.ends:
        rewards[expected.agent] = expected.reward
    assert turn.rewards[row].tolist() == [float(rewards.get(agent, 0.0)) for agent in agents], where
    for name in ("terminated", "truncated"):
        results = [agent in expected.ends and getattr(expected.ends[agent], name) for agent in agents]
        assert getattr(turn, name)[row].tolist() == results, (where, name)
    begun = expected.first and autoreset == "same_step" and bool(expected.ends)
    assert turn.episode_over[row] == (expected.over or begun), where
    assert_final_observations(games, info_row(turn.infos, row), expected)
    if expected.agent is not None:
        assert_to_act(games, turn, env_id, expected)


def assert_final_observations(games: Any, info: dict[str, Any], expected: ExpectedTurn) -> None:
    final, final_info = info.pop("final_obs", {}), info.pop("final_info", {})
    assert final.keys() == expected.ends.keys()
    for agent, end in expected.ends.items():
        assert_same(final[agent], cast(games.single_observation_space(agent), end.observation), agent)
    if not (expected.first and expected.ends):
        assert_info(info, expected.infos)
    else:
        assert_info(info, {expected.agent: expected.infos[expected.agent]})
        assert set(final_info) <= set(expected.ends)


def assert_to_act(games: Any, turn: Any, env_id: int, expected: ExpectedTurn) -> None:
    """Its rows, in the group of the agent to move."""
    name = next(name for name, agents in games.groups.items() if expected.agent in agents)
    rows = turn.groups[name]
    position = rows.env_ids.tolist().index(env_id)
    space = games.single_observation_space(expected.agent)
    assert_same(row_of(space, rows.observations, position), cast(space, expected.observation), f"env {env_id}")
    if expected.mask is None:
        assert rows.action_masks is None
    else:
        assert_same(rows.action_masks[position], expected.mask, f"env {env_id}")
    if len(games.groups) == 1:
        assert turn.observations is rows.observations and turn.action_masks is rows.action_masks


def assert_same_games(games: Any, makers: list[Any], autoreset: str, steps: int) -> None:
    """A vector env and its bare envs play equal games. Without autoreset, ended ones are reset with seeds 100 + i."""
    reseeds = [100 + i if autoreset == "disabled" else None for i in range(len(makers))]
    streams = [stream(make(), i, 7 + i, autoreset, reseeds[i]) for i, make in enumerate(makers)]
    counts = np.zeros(len(makers), int)
    turn = games.reset(seed=7)
    for row, reported in enumerate(streams):
        assert_turn(games, turn, row, next(reported), autoreset)
    for _ in range(steps):
        turn = games.step(actions_for(games, turn, counts))
        for row, reported in enumerate(streams):
            assert_turn(games, turn, row, next(reported), autoreset)
        over = turn.agents < 0
        if autoreset == "disabled" and over.any():
            turn = games.reset(options={"reset_mask": over}, seed=100)
            for env_id in np.flatnonzero(over).tolist():
                assert_turn(games, turn, env_id, next(streams[env_id]), autoreset)

"""PettingZoo parallel envs stepped one by one in plain Python: what a vector env of them must return, row by row."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from gymnasium import spaces

from tests.equality import assert_same

Slots = dict[str, Any]


@dataclass
class Expected:
    """Expected results of one step of one env."""

    observations: Slots
    alive: set[str]
    rewards: Slots = field(default_factory=dict)  # 0 where there is none
    terminated: set[str] = field(default_factory=set)
    truncated: set[str] = field(default_factory=set)
    infos: Slots = field(default_factory=dict)
    final_observations: Slots | None = None
    final_infos: Slots | None = None
    returns: Slots = field(default_factory=dict)
    lengths: Slots = field(default_factory=dict)


class OneEnv:
    """A bare env with autoreset as documented."""

    def __init__(self, env: Any, autoreset: str) -> None:
        self.env, self.autoreset, self.over, self.just_ended = env, autoreset, False, False

    def reset(self, seed: int | None = None, options: Any = None) -> Expected:
        observations, infos = self.env.reset(seed=seed, options=options)
        self.returns = dict.fromkeys(self.env.possible_agents, 0.0)
        self.lengths = dict.fromkeys(self.env.possible_agents, 0)
        self.over = self.just_ended = False
        alive = set(self.env.agents)
        return Expected(observations, alive, infos=infos, returns=dict(self.returns), lengths=dict(self.lengths))

    def step(self, actions: Slots) -> Expected:
        if self.over and self.autoreset == "next_step":
            return self.reset()
        assert not self.over
        if self.just_ended:
            self.returns, self.lengths = dict.fromkeys(self.returns, 0.0), dict.fromkeys(self.lengths, 0)
            self.just_ended = False
        acting = list(self.env.agents)
        observations, rewards, terminated, truncated, infos = self.env.step({a: actions[a] for a in acting})
        for agent in acting:
            self.lengths[agent] += 1
        for agent, reward in rewards.items():
            self.returns[agent] += reward
        step = Expected(
            observations,
            set(self.env.agents),
            rewards,
            {a for a, ended in terminated.items() if ended},
            {a for a, ended in truncated.items() if ended},
            infos,
            returns=dict(self.returns),
            lengths=dict(self.lengths),
        )
        ended = step.terminated | step.truncated
        if self.autoreset == "same_step" and ended:
            step.final_observations = {a: observations[a] for a in ended}
            step.final_infos = {}
        if not self.env.agents:
            self._end(step)
        return step

    def _end(self, step: Expected) -> None:
        if self.autoreset != "same_step":
            self.over = True
            return
        step.final_infos = {agent: info for agent, info in step.infos.items() if info}
        observations, infos = self.env.reset()
        step.observations, step.infos, step.alive = observations, infos, set(self.env.agents)
        self.just_ended = True


# -- comparing -------------------------------------------------------------------------------------------------
def zeros(space: spaces.Space[Any]) -> Any:
    """Return the observation of an absent agent, for the spaces of the tests."""
    if isinstance(space, spaces.Dict):
        return {key: zeros(child) for key, child in space.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(zeros(child) for child in space)
    if isinstance(space, spaces.Box):
        return np.minimum(np.maximum(np.zeros(space.shape, space.dtype), space.low), space.high)
    if isinstance(space, spaces.Discrete):
        return space.dtype.type(space.start)
    if isinstance(space, spaces.MultiDiscrete | spaces.MultiBinary):
        return np.zeros(space.shape, space.dtype)
    return None


def row_of(space: spaces.Space[Any], batch: Any, i: int) -> Any:
    """One row of a batch, nested as its space."""
    if isinstance(space, spaces.Dict):
        return {key: row_of(child, batch[key], i) for key, child in space.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(row_of(child, part, i) for child, part in zip(space, batch))
    return batch[i]


def cast(space: spaces.Space[Any], value: Any) -> Any:
    """Return the observation of an env in the dtypes of its space."""
    if isinstance(space, spaces.Dict):
        return {key: cast(child, value[key]) for key, child in space.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(cast(child, part) for child, part in zip(space, value))
    numeric = isinstance(space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary)
    return np.asarray(value, space.dtype) if numeric else value


def info_row(infos: dict[str, Any], i: int) -> dict[str, Any]:
    """Return the infos of one env from merged infos."""
    found = {}
    for key, value in infos.items():
        if f"_{key}" in infos and infos[f"_{key}"][i]:
            found[key] = info_row(value, i) if isinstance(value, dict) else value[i]
    return found


def assert_info(found: dict[str, Any], expected: dict[str, Any]) -> None:
    """Infos by agent, without those that are empty. Python's numbers are compared as numpy's."""
    expected = {agent: info for agent, info in expected.items() if info}
    assert found.keys() == expected.keys()
    for agent, info in expected.items():
        assert found[agent].keys() == info.keys()
        for key, value in info.items():
            assert np.array_equal(found[agent][key], value), (agent, key, found[agent][key], value)


def mask_of(observation: Any, info: dict[str, Any], actions: int) -> Any:
    given = observation.get("action_mask") if isinstance(observation, dict) else None
    given = info.get("action_mask") if given is None else given
    return np.ones(actions, np.int8) if given is None else np.asarray(given, np.int8)


def assert_row(envs: Any, step: Any, i: int, expected: Expected, row: int | None = None, after: bool = True) -> None:
    """Env `i` has the expected results in row `row` of `step`, the result of `envs.step` or, without rewards, of
    `reset`.

    `after`: env `i` has not changed since, so that the attributes of `envs` can be compared too.
    """
    row = i if row is None else row
    observations, infos = step[0], step[-1]
    ended = expected.terminated | expected.truncated
    for agent in envs.agents:
        space, where = envs.single_observation_space(agent), f"env {i}, {agent}"
        seen = expected.observations.get(agent)
        there = agent in expected.alive or agent in ended
        sees = cast(space, seen) if there and seen is not None else zeros(space)
        assert_same(row_of(space, observations[agent], row), sees, where)
        if len(step) == 5:
            result = tuple(float(part[agent][row]) for part in step[1:4])
            reward = float(expected.rewards.get(agent, 0.0))
            assert result == (reward, agent in expected.terminated, agent in expected.truncated), where
        if after:
            assert_state(envs, agent, i, expected, where)
    found = info_row(infos, row)
    final_observations, final_infos = found.pop("final_obs", None), found.pop("final_info", None)
    assert_info(found, expected.infos)
    assert (final_observations is None) == (expected.final_observations is None)
    if expected.final_observations is not None:
        assert final_observations.keys() == expected.final_observations.keys()
        for agent, seen in expected.final_observations.items():
            assert_same(final_observations[agent], cast(envs.single_observation_space(agent), seen))
        assert_info(final_infos, expected.final_infos or {})


def assert_state(envs: Any, agent: str, i: int, expected: Expected, where: str) -> None:
    assert bool(envs.alive[agent][i]) == (agent in expected.alive), where
    assert np.isclose(envs.episode_returns[agent][i], expected.returns[agent], rtol=1e-12), where
    assert envs.episode_lengths[agent][i] == expected.lengths[agent], where
    actions = envs.single_action_space(agent)
    if isinstance(actions, spaces.Discrete):
        mask = np.ones(actions.n, np.int8)
        if agent in expected.alive:
            info = expected.infos.get(agent, {})
            mask = mask_of(expected.observations[agent], info, int(actions.n))
        if agent in expected.alive or agent not in expected.terminated | expected.truncated:
            assert_same(envs.action_masks[agent][i], mask, where)
    else:
        assert agent not in envs.action_masks


class ManyEnvs:
    """One bare env for each row."""

    def __init__(self, makers: list[Any], autoreset: str) -> None:
        self.each = [OneEnv(make(), autoreset) for make in makers]

    def reset(self, seed: int = 7) -> list[Expected]:
        return [one.reset(seed + i) for i, one in enumerate(self.each)]

    def step(self, actions: dict[str, Any], action_space: Any) -> list[Expected]:
        return [
            one.step({agent: row_of(action_space(agent), batch, i) for agent, batch in actions.items()})
            for i, one in enumerate(self.each)
        ]


def assert_same_run(envs: Any, makers: list[Any], autoreset: str, steps: int) -> None:
    """A vector env and its bare envs give equal results for equal seeds and random actions."""
    oracle = ManyEnvs(makers, autoreset)
    begun = envs.reset(seed=7)
    for i, expected in enumerate(oracle.reset(7)):
        assert_row(envs, begun, i, expected)
    action_spaces = {agent: envs.action_space(agent) for agent in envs.agents}
    for agent, space in action_spaces.items():
        space.seed(sum(map(ord, str(agent))))
    for _ in range(steps):
        actions = {agent: space.sample() for agent, space in action_spaces.items()}
        found = envs.step(actions)
        for i, expected in enumerate(oracle.step(actions, envs.single_action_space)):
            assert_row(envs, found, i, expected)
        over = [i for i, one in enumerate(oracle.each) if one.over]
        if autoreset == "disabled" and over:
            again = envs.reset(env_ids=over, seed=100)
            for row, i in enumerate(over):
                assert_row(envs, again, i, oracle.each[i].reset(100 + i), row)

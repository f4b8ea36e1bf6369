"""Presents a multi-agent env as a single-agent env whose agent controls the whole team.

One observation holds the observations of all agents, and one action the actions of all agents, without loss.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import DTypeLike, NDArray

from multiverse.core.errors import InvalidActions, InvalidRequest
from multiverse.core.layout import Path, leaves

Row = NDArray[Any]
ByAgent = dict[Any, Any]


@dataclass(frozen=True, slots=True)
class _Part:
    """Position in the row of one array of an agent's observation."""

    keys: Path
    space: spaces.Space[Any]
    part: slice
    plain: bool  # the numbers are stored in the row unchanged


class FlatObservations:
    """Joins a dict of observations to one row."""

    def __init__(self, by_agent: Mapping[Any, spaces.Space[Any]], dtype: DTypeLike | None) -> None:
        self._leaves: dict[Any, list[_Part]] = {}
        width = 0
        for agent, space in by_agent.items():
            self._leaves[agent] = []
            for leaf in leaves(space):
                if not leaf.numeric:
                    problem = f"agent {agent!r} observes {leaf.space}, which does not fit into a row of fixed length"
                    raise InvalidRequest(problem)
                part = slice(width, width + spaces.flatdim(leaf.space))
                plain = isinstance(leaf.space, spaces.Box | spaces.MultiBinary)
                self._leaves[agent].append(_Part(leaf.path, leaf.space, part, plain))
                width = part.stop
        all_parts = [part for parts in self._leaves.values() for part in parts]
        boxes = [leaf.space for leaf in all_parts if isinstance(leaf.space, spaces.Box)]
        self._width, self._dtype = width, _row_dtype(boxes, dtype)
        self.space = _row_space(all_parts, width, self._dtype)

    def joined(self, observations: Mapping[Any, Any]) -> Row:
        row = np.zeros(self._width, self._dtype)
        for agent, observation in observations.items():
            for leaf in self._leaves[agent]:
                value = observation
                for key in leaf.keys:
                    value = value[key]
                if leaf.plain:
                    row[leaf.part] = np.asarray(value).reshape(-1)
                else:
                    _mark(row[leaf.part], leaf.space, value)
        return row


def _mark(part: Row, space: spaces.Space[Any], value: Any) -> None:
    """Write a value one-hot."""
    if isinstance(space, spaces.Discrete):
        part[int(value) - int(space.start)] = 1
    else:
        part[:] = spaces.flatten(space, value)


def _row_space(leaves: Sequence[_Part], width: int, dtype: np.dtype[Any]) -> spaces.Box:
    """Return the space of the row: with the bounds of the agents, widened to hold the zeros of absent ones."""
    low, high = np.zeros(width, dtype), np.ones(width, dtype)
    for leaf in leaves:
        if isinstance(leaf.space, spaces.Box):
            low[leaf.part] = np.minimum(leaf.space.low, 0).reshape(-1)
            high[leaf.part] = np.maximum(leaf.space.high, 0).reshape(-1)
    return spaces.Box(low, high, (width,), dtype.type)


def _row_dtype(boxes: Sequence[spaces.Box], wanted: DTypeLike | None) -> np.dtype[Any]:
    """Return `wanted`, or the first of float32 and the common dtypes; it must hold every value exactly."""
    if wanted is not None:
        return _exact_dtype(boxes, [np.dtype(wanted)])
    own = [box.dtype for box in boxes]
    return _exact_dtype(boxes, [np.dtype(np.float32), np.result_type(np.float32, *own), np.result_type(np.int8, *own)])


def _exact_dtype(boxes: Sequence[spaces.Box], candidates: Sequence[np.dtype[Any]]) -> np.dtype[Any]:
    for candidate in candidates:
        if all(_holds(candidate, box) for box in boxes):
            return candidate
    raise InvalidRequest(
        f"a row of {candidates[-1]} cannot hold the values of all agents exactly: "
        f"their dtypes are {', '.join(sorted({str(box.dtype) for box in boxes}))}"
    )


def _holds(dtype: np.dtype[Any], box: spaces.Box) -> bool:
    if np.issubdtype(box.dtype, np.floating):
        return bool(np.can_cast(box.dtype, dtype, "safe"))
    if np.issubdtype(dtype, np.floating):
        low, high = -(2 ** (np.finfo(dtype).nmant + 1)), 2 ** (np.finfo(dtype).nmant + 1)
    else:
        low, high = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    lowest, highest = int(box.low.min(initial=0)), int(box.high.max(initial=0))
    return bool(low <= lowest and highest <= high)


# -- actions ---------------------------------------------------------------------------------------------------
class FlatChoices:
    """Actions of agents with Discrete spaces: one number each."""

    def __init__(self, by_agent: Mapping[Any, spaces.Discrete]) -> None:
        self._agents = list(by_agent)
        starts = [int(space.start) for space in by_agent.values()]
        self.space = spaces.MultiDiscrete([int(space.n) for space in by_agent.values()], start=starts)
        self._shape = (len(starts),)

    def split(self, action: Any) -> ByAgent:
        numbers = np.array(action)  # a copy, so that an env may keep its action
        if numbers.shape != self._shape or numbers.dtype.kind not in "iu":
            raise InvalidActions(f"action {action!r}: expected {len(self._agents)} whole numbers, one for each agent")
        return dict(zip(self._agents, numbers.astype(np.int64, copy=False)))


class FlatVectors:
    """Actions of agents with Box spaces: their numbers concatenated."""

    def __init__(self, by_agent: Mapping[Any, spaces.Box]) -> None:
        self._boxes = dict(by_agent)
        boxes = list(by_agent.values())
        self._ends = np.cumsum([math.prod(box.shape) for box in boxes])[:-1]
        dtype = _exact_dtype(boxes, [np.result_type(*(box.dtype for box in boxes))])
        low, high = (np.concatenate([side.reshape(-1) for side in s]) for s in zip(*((b.low, b.high) for b in boxes)))
        self.space = spaces.Box(low.astype(dtype), high.astype(dtype), dtype=dtype.type)

    def split(self, action: Any) -> ByAgent:
        numbers = np.asarray(action)
        if numbers.shape != self.space.shape or numbers.dtype.kind not in "iuf":
            raise InvalidActions(f"action of shape {numbers.shape}: expected {self.space.shape[0]} numbers")
        parts = np.split(numbers, self._ends)
        return {a: part.astype(box.dtype).reshape(box.shape) for part, (a, box) in zip(parts, self._boxes.items())}


def flat_actions(by_agent: Mapping[Any, spaces.Space[Any]]) -> FlatChoices | FlatVectors:
    """Return an object that splits an action of all agents; refuse spaces that cannot be mixed."""
    choices = {agent: space for agent, space in by_agent.items() if isinstance(space, spaces.Discrete)}
    vectors = {agent: space for agent, space in by_agent.items() if isinstance(space, spaces.Box)}
    if len(choices) == len(by_agent):
        return FlatChoices(choices)
    if len(vectors) == len(by_agent):
        return FlatVectors(vectors)
    kinds = ", ".join(f"{agent!r} {space}" for agent, space in by_agent.items())
    raise InvalidRequest(f"flatten_agents needs action spaces that are all Discrete or all Box; these are {kinds}")


# -- the env ---------------------------------------------------------------------------------------------------
def flatten_agents(
    env: Any, *, reward: Literal["sum", "mean"] = "sum", dtype: DTypeLike | None = None
) -> FlattenedAgents:
    """Return a PettingZoo env (AEC or parallel) as a `gymnasium.Env` with one observation row and one action.

    Observations: the parts of the agents, concatenated in the order of `possible_agents`. Inside a part, Dict keys are
    in the space's order, Tuple items in theirs, arrays in C order, Discrete and MultiDiscrete values one-hot. The dtype
    of the row is float32 if it holds the values of all agents exactly, otherwise the smallest common one; `dtype` sets
    another, which must hold them as well.

    Actions: a MultiDiscrete if all agents have Discrete spaces, a Box if all have Boxes, in the same order. In one step
    each living agent acts once with its part; in an AEC env in its turn. (If an agent's turn comes again before all
    others have acted, the step ends there.)

    Reward: the sum of the rewards of all agents, or their mean over `possible_agents`. The episode ends with the last
    agent: terminated if all agents were, otherwise truncated. The part of an absent agent is zeros (which the row's
    space contains); in the step in which an agent ends, it is its last observation. `info["alive"]` [agents] is True
    for agents that act next, `info["agent_infos"]` holds the infos of the agents that are not empty.

    The sum of rewards is not useful for agents that play against each other. If more than half of the variance of their
    rewards is lost in the sum, over the first 500 steps and 20 episodes, there is one warning per kind of env. Train
    such envs with `mv.train`, which has a learner for each group of agents.
    """
    return FlattenedAgents(env, reward, dtype)


WATCHED_STEPS, WATCHED_EPISODES = 500, 20
"""Number of steps and episodes before a warning of rewards that cancel."""


def cancelled_share(rewards: Any) -> float:
    """Return the share of the variance of the agents' rewards [steps, agents] that is lost in their sum: 1 in a
    zero-sum game, 0 for independent rewards, less for rewards that increase together."""
    apart = float(rewards.var(axis=0).sum())
    return 1.0 - float(rewards.sum(axis=1).var()) / apart if apart else 0.0


_warned: set[str] = set()
"""Kinds of envs for which this process has issued the warning."""


class FlattenedAgents(gymnasium.Env[Row, Row]):
    """The env that `flatten_agents` returns."""

    def __init__(self, env: Any, reward: str = "sum", dtype: DTypeLike | None = None) -> None:
        self._driver = _driver_of(env)
        self.env = env
        self.possible_agents = _names(env)
        if reward not in ("sum", "mean"):
            raise InvalidRequest(f"reward={reward!r}: expected 'sum' or 'mean'")
        self._share = 1.0 / len(self.possible_agents) if reward == "mean" else 1.0
        self._observations = FlatObservations({a: env.observation_space(a) for a in self.possible_agents}, dtype)
        self._actions = flat_actions({a: env.action_space(a) for a in self.possible_agents})
        self.observation_space = self._observations.space
        self.action_space = self._actions.space
        self.metadata, self.render_mode = dict(env.metadata), getattr(env, "render_mode", None)
        self._begun = False
        self._terminated: dict[Any, bool] = {}  # of agents that have ended in this episode
        self._rewards: list[list[float]] | None = []  # of the first steps; None after the check
        self._episodes = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Row, dict[str, Any]]:
        super().reset(seed=seed)
        result = self._driver.reset(seed, options)
        self._begun, self._terminated = True, {}
        return self.flatten_observation(result.observations), self._info(result)

    def step(self, action: Row) -> tuple[Row, float, bool, bool, dict[str, Any]]:
        actions = self.split_actions(action)
        if not self._begun:
            raise InvalidRequest("step() without an episode: call reset() first")
        result = self._driver.step(actions)
        self._terminated.update(result.ended)
        over = not result.alive
        self._begun = not over
        terminated = over and all(self._terminated.values())
        reward = sum(result.rewards.values()) * self._share
        if self._rewards is not None:
            self._check_rewards(result.rewards, over)
        return (
            self.flatten_observation(result.observations),
            float(reward),
            terminated,
            over and not terminated,
            self._info(result),
        )

    def _check_rewards(self, rewards: Mapping[Any, float], over: bool) -> None:
        """Warn once if the agents play against each other, after enough rewards."""
        assert self._rewards is not None
        self._rewards.append([float(rewards.get(agent, 0.0)) for agent in self.possible_agents])
        self._episodes += over
        if len(self._rewards) < WATCHED_STEPS or self._episodes < WATCHED_EPISODES:
            return
        lost, kind = cancelled_share(np.array(self._rewards)), type(self.env.unwrapped)
        self._rewards, name = None, f"{kind.__module__}.{kind.__qualname__}"  # many of PettingZoo's are a raw_env
        if lost > 0.5 and name not in _warned:
            _warned.add(name)
            warnings.warn(
                f"flatten_agents: the agents of {name} play against each other: {100 * lost:.0f} % of the variance of "
                "their rewards is lost in the sum, from which one policy for all agents learns little; use mv.train "
                "with the env itself, which has a learner for each group (separate=True: for each agent), or self-play "
                "(opponents=5)",
                stacklevel=3,
            )

    def flatten_observation(self, observations: Mapping[Any, Any]) -> Row:
        """Return the row for a dict agent → observation, with zeros for missing agents."""
        return self._observations.joined(observations)

    def split_actions(self, action: Any) -> ByAgent:
        """Return agent → its part of a flattened action."""
        return self._actions.split(action)

    def render(self) -> Any:
        return self.env.render()

    def close(self) -> None:
        self.env.close()

    def _info(self, result: _Result) -> dict[str, Any]:
        info: dict[str, Any] = {"alive": np.array([agent in result.alive for agent in self.possible_agents])}
        agent_infos = {agent: each for agent, each in result.infos.items() if each}
        if agent_infos:
            info["agent_infos"] = agent_infos
        return info


# -- the multi-agent env ---------------------------------------------------------------------------------------
@dataclass(slots=True)
class _Result:
    """Result of a reset, or of a step of all agents."""

    observations: ByAgent
    infos: ByAgent
    alive: list[Any]  # agents that act next
    rewards: dict[Any, float] = field(default_factory=dict)
    ended: dict[Any, bool] = field(default_factory=dict)  # agents that ended → whether they were terminated


class _Together:
    """A parallel env."""

    def __init__(self, env: Any) -> None:
        self._env = env

    def reset(self, seed: int | None, options: dict[str, Any] | None) -> _Result:
        observations, infos = self._env.reset(seed=seed, options=options)
        return _Result(observations, infos, list(self._env.agents))

    def step(self, actions: ByAgent) -> _Result:
        agents = list(self._env.agents)
        observations, rewards, terminated, truncated, infos = self._env.step({a: actions[a] for a in agents})
        ended = {a: bool(terminated[a]) for a in terminated if terminated[a] or truncated[a]}
        alive = [agent for agent in self._env.agents if agent not in ended]
        return _Result(observations, infos, alive, rewards, ended)


class _InTurns:
    """An AEC env."""

    def __init__(self, env: Any) -> None:
        self._env = env

    def reset(self, seed: int | None, options: dict[str, Any] | None) -> _Result:
        self._env.reset(seed=seed, options=options)
        return self._result({}, _Result({}, {}, []))

    def step(self, actions: ByAgent) -> _Result:
        """Step each agent in its turn, until one would act again; agents that have ended are removed."""
        env, departed = self._env, _Result({}, {}, [])
        acted: set[Any] = set()
        rewards: dict[Any, float] = {}
        while env.agents:
            agent = env.agent_selection
            if env.terminations[agent] or env.truncations[agent]:
                departed.ended[agent] = bool(env.terminations[agent])
                departed.observations[agent], departed.infos[agent] = env.observe(agent), env.infos[agent]
                env.step(None)
                continue
            if agent in acted:
                break
            acted.add(agent)
            env.step(actions[agent])
            for each, reward in env.rewards.items():
                rewards[each] = rewards.get(each, 0.0) + reward
        return self._result(rewards, departed)

    def _result(self, rewards: dict[Any, float], departed: _Result) -> _Result:
        """Return the observations and infos of the living agents, and the last ones of those that have ended."""
        env, alive = self._env, list(self._env.agents)
        return _Result(
            {**departed.observations, **{agent: env.observe(agent) for agent in alive}},
            {**departed.infos, **{agent: env.infos[agent] for agent in alive}},
            alive,
            rewards,
            departed.ended,
        )


def _driver_of(env: Any) -> _Together | _InTurns:
    try:
        from pettingzoo import AECEnv, ParallelEnv  # type: ignore[import-untyped, unused-ignore]
    except ImportError as error:
        raise ImportError(
            "flatten_agents takes PettingZoo envs, and it is not installed: pip install 'multiverse[pettingzoo]'"
        ) from error
    if isinstance(env, AECEnv):
        return _InTurns(env)
    if isinstance(env, ParallelEnv):
        return _Together(env)
    built = "; pass an env, not a function that builds it" if callable(env) else ""
    raise InvalidRequest(f"flatten_agents({env!r}): expected a PettingZoo AEC or parallel env{built}")


def _names(env: Any) -> list[Any]:
    names = list(getattr(env, "possible_agents", ()))
    if not names:
        raise InvalidRequest(f"{env} has no possible_agents, which flatten_agents needs")
    return names

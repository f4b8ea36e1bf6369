"""The AgileRL drop-in's code in workers: one env, called and read as in AgileRL's worker, and its rows in the block.

Imports nothing of AgileRL, which would load torch.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import CloudpickleWrapper

from multiverse.adapters.agents import AgentOptions, groups_of
from multiverse.adapters.env_source import Recipe
from multiverse.adapters.pettingzoo_env import PettingZooEnv
from multiverse.core.env import Env, EnvDescription, SlotRow
from multiverse.core.layout import Array, Group, Leaf, from_leaves, leaves
from multiverse.interop.env_side import TakesGiven, own

ALL_AGENTS = "(everybody)"
"""Group with one row per env, about all agents."""

REWARD, TERMINATED, TRUNCATED = 0, 1, 2
"""Order of the three values of every agent."""

MISSING, ODD = 0, 255
"""Codes of a value that is missing, and of one that no column holds, which comes by pipe."""

ODDITIES = "(odd values)"
"""Key of the info with the latter: (agent, which of the three) → value."""

Codes = tuple[int, int, int]
"""Types of an agent's reward, terminated and truncated, as codes."""

_FLOATS: tuple[type, ...] = (float, np.float64, np.float32, np.float16)
_BOOLS: tuple[type, ...] = (bool, np.bool_)
_SIGNED: tuple[type, ...] = (int, np.int64, np.int32, np.int16, np.int8)
_UNSIGNED: tuple[type, ...] = (np.uint64, np.uint32, np.uint16, np.uint8)
_INTEGERS = (*_SIGNED, *_UNSIGNED)
_TYPES = (*_FLOATS, *_BOOLS, *_INTEGERS)
_CODES = {kind: code for code, kind in enumerate(_TYPES, start=1)}
USUAL: dict[tuple[type, type, type], Codes] = {
    (reward, end, cut): (_CODES[reward], _CODES[end], _CODES[cut])
    for reward in _FLOATS
    for end in _BOOLS
    for cut in _BOOLS
}
"""Codes by type, for types of which the columns hold every value."""

_WHOLE = frozenset(_CODES[kind] for kind in _INTEGERS)
_EXACT = 2**53  # a float64 holds every whole number up to this


# -- numbers -----------------------------------------------------------------------------------------------------
def code_of_reward(reward: Any) -> int:
    """Return the code of a reward; ODD if a float64 cannot hold it exactly."""
    code = _CODES.get(type(reward), ODD)
    return ODD if code in _WHOLE and not -_EXACT <= reward <= _EXACT else code


def code_of_end(end: Any) -> int:
    """Return the code of terminated or truncated; ODD if a bool cannot hold it exactly."""
    code = _CODES.get(type(end), ODD)
    return code if code == ODD or end in (0, 1) else ODD


def dtype_of(codes: Array) -> np.dtype[Any]:
    """Return the dtype of an array of such numbers, where a missing one is NaN."""
    kinds = [np.dtype(float if code == MISSING else _TYPES[code - 1]) for code in sorted(set(codes.tolist()))]
    return np.result_type(*kinds)


def restored_number(value: Any, code: int) -> Any:
    """Return a number of a column with its original type."""
    return np.nan if code == MISSING else _TYPES[code - 1](value)


# -- observations and actions --------------------------------------------------------------------------------------
def stored(space: spaces.Space[Any]) -> spaces.Space[Any]:
    """Return the space of the block: with only shape and dtype of every leaf that an array can hold."""
    if isinstance(space, spaces.Dict):
        return spaces.Dict(OrderedDict((key, stored(child)) for key, child in space.spaces.items()))
    if isinstance(space, spaces.Tuple):
        return spaces.Tuple([stored(child) for child in space.spaces])
    return plain(space, space.shape or (1,)) if is_array(space) else space


def is_array(space: spaces.Space[Any]) -> bool:
    """Return whether values are arrays of one shape and a numeric dtype, also for a custom space."""
    if space.dtype is None or space.shape is None:
        return False
    return np.dtype(space.dtype).kind in "iufb"


def plain(space: spaces.Space[Any], shape: tuple[int, ...]) -> spaces.Box:
    """Return a Box of this shape and the dtype of the space, without bounds."""
    dtype = np.dtype(space.dtype)
    if dtype.kind in "iu":
        return spaces.Box(np.iinfo(dtype).min, np.iinfo(dtype).max, shape, dtype.type)
    return spaces.Box(-np.inf, np.inf, shape, dtype.type) if dtype.kind == "f" else spaces.Box(0, 1, shape, dtype.type)


def fitted(space: spaces.Space[Any]) -> Callable[[Any], Any]:
    """Return a function that casts and reshapes an observation for its stored space."""
    if isinstance(space, spaces.Dict):
        items = [(key, fitted(child)) for key, child in space.spaces.items()]
        return lambda value: {key: fit(value[key]) for key, fit in items}
    if isinstance(space, spaces.Tuple):
        parts = [fitted(child) for child in space.spaces]
        return lambda value: tuple(fit(value[i]) for i, fit in enumerate(parts))
    if not Leaf((), space).numeric:
        return lambda value: value
    shape, dtype = space.shape or (), space.dtype
    return lambda value: np.asarray(value, dtype=dtype).reshape(shape)


def placeholder(space: spaces.Space[Any]) -> Any:
    """Return the observation of an absent agent: NaN or, in integers, a cast NaN."""

    def of_leaf(leaf: Leaf) -> Any:
        return np.full(leaf.space.shape or (), np.nan).astype(leaf.space.dtype) if leaf.numeric else None

    with np.errstate(invalid="ignore"):
        return from_leaves(space, {leaf.path: of_leaf(leaf) for leaf in leaves(space)})


def nested(space: spaces.Space[Any], of_leaf: Callable[[Leaf], Callable[[], Any]], leaf: Leaf) -> Callable[[], Any]:
    """Return a function that nests the values of `of_leaf` as the space is; dicts in the space's order."""
    if isinstance(space, spaces.Dict):
        items = [(k, nested(child, of_leaf, Leaf((*leaf.path, k), child))) for k, child in space.spaces.items()]
        return lambda: OrderedDict((key, take()) for key, take in items)
    if isinstance(space, spaces.Tuple):
        parts = [nested(child, of_leaf, Leaf((*leaf.path, i), child)) for i, child in enumerate(space.spaces)]
        return lambda: tuple([take() for take in parts])
    return of_leaf(leaf)


def action_row(space: spaces.Space[Any]) -> spaces.Space[Any]:
    """Return the space of actions in the block; actions that no array holds are always sent by pipe."""
    return plain(space, space.shape or ()) if is_array(space) else spaces.Discrete(1)


def all_agents_group(agents: int) -> Group:
    """Return the group about all agents. Its observation: three codes per agent; its action: which agents have one."""
    codes, given = spaces.Box(0, 255, (agents, 3), np.uint8), spaces.Box(0, 1, (agents,), np.uint8)
    return Group(ALL_AGENTS, (ALL_AGENTS,), codes, given, may_be_absent=True)


# -- the env ---------------------------------------------------------------------------------------------------
By = Mapping[str, Any]
"""agent → value."""

Odd = dict[tuple[str, int], Any]
"""(agent, which of the three) → value that no column holds."""


class OwnCopy:
    """An env function that shares nothing with others in its worker: each call builds from a copy.

    `[lambda: env] * 8` makes eight separate envs in AgileRL, since each has its own process.
    """

    def __init__(self, env_fn: Callable[[], Any]) -> None:
        self._packed = CloudpickleWrapper(env_fn).__getstate__()

    def __call__(self) -> Any:
        function: Any = CloudpickleWrapper.__new__(CloudpickleWrapper)
        function.__setstate__(self._packed)
        return function()


class AgileRecipe(Recipe):
    """Builds an env as AgileRL does: with the agents of the first env."""

    __slots__ = ()

    def build(self) -> Env:
        return AgileEnv(self.build_foreign(), self.agents)


class WholeInfo:
    """An info of one agent that is sent unchanged."""

    __slots__ = ("info",)

    def __init__(self, info: Any) -> None:
        self.info = info

    def __repr__(self) -> str:
        return repr(self.info)


class AgentRow:
    """Row of one agent in the batch."""

    def __init__(self, agent: str, group: Group, row: SlotRow) -> None:
        self.agent, self._row = agent, row
        space, write, target = group.observation_space, row.write_observation, row.plain_target
        self._write, self._fit, self._absent = write, fitted(space), placeholder(space)
        self._target = target
        self._shape: Any = None if target is None else target.shape
        self._dtype: Any = None if target is None else target.dtype
        self.write_outcome = self._outcome_writer()

    def write_observation(self, observations: By) -> None:
        """Write what the agent observes, or a placeholder."""
        if self.agent not in observations:
            self._write(self._absent)
            return
        observation = observations[self.agent]
        if type(observation) is np.ndarray and observation.dtype is self._dtype and observation.shape == self._shape:
            self._target[...] = observation
        else:
            self._write(self._fit(observation))

    def set_alive(self, alive: bool) -> None:
        self._row.alive[self._row.slot] = self._row.acting[self._row.slot] = alive

    write_outcome: Callable[[By, By, By, Odd], Codes]
    """Function (rewards, terminated, truncated, odd) that writes the values of this agent and returns their codes."""

    def _outcome_writer(self) -> Callable[[By, By, By, Odd], Codes]:
        """Return a closure, which is faster than a method: it runs for every agent at every step."""
        agent, slot, carefully = self.agent, self._row.slot, self._write_any_outcome
        columns = self._row.rewards, self._row.terminated, self._row.truncated, self._row.alive, self._row.acting
        reward_column, end_column, cut_column, alive, acting = cast(Any, columns)

        def write_outcome(rewards: By, terminated: By, truncated: By, odd: Odd) -> Codes:
            try:
                reward, end, cut = rewards[agent], terminated[agent], truncated[agent]
            except KeyError:
                return carefully(rewards, terminated, truncated, odd)
            codes = USUAL.get((type(reward), type(end), type(cut)))
            if codes is None:
                return carefully(rewards, terminated, truncated, odd)
            reward_column[slot], end_column[slot], cut_column[slot] = reward, end, cut
            alive[slot] = acting[slot] = not (end or cut)
            return codes

        return write_outcome

    def _write_any_outcome(self, rewards: By, terminated: By, truncated: By, odd: Odd) -> Codes:
        """Do the same for any values, and for missing ones."""
        agent, row = self.agent, self._row
        self.set_alive(agent in terminated and not (terminated[agent] or truncated.get(agent, False)))
        columns = (
            (REWARD, rewards, row.rewards, code_of_reward),
            (TERMINATED, terminated, row.terminated, code_of_end),
            (TRUNCATED, truncated, row.truncated, code_of_end),
        )
        codes = []
        for which, by_agent, column, code_of in columns:
            code = code_of(by_agent[agent]) if agent in by_agent else MISSING
            if code == ODD:
                odd[agent, which] = by_agent[agent]
            cast(Any, column)[row.slot] = 0 if code in (MISSING, ODD) else by_agent[agent]
            codes.append(code)
        return cast(Codes, tuple(codes))


class AgileEnv(PettingZooEnv, TakesGiven):
    """A parallel env of which only its spaces, `reset`, `step` and `close` are used.

    The agents in its results are the present ones. The episode is over when all agents in them have ended.
    """

    kind = "parallel"

    def __init__(self, env: Any, options: AgentOptions) -> None:
        self._env, self._agents = env, tuple(options.possible_agents or env.possible_agents)
        in_the_block = SimpleNamespace(
            observation_space=lambda agent: stored(env.observation_space(agent)),
            action_space=lambda agent: action_row(env.action_space(agent)),
        )
        self._groups = (*groups_of(in_the_block, self._agents, AgentOptions()), all_agents_group(len(self._agents)))
        self.description = EnvDescription(groups=self._groups, kind=self.kind)
        self._given = []
        self._odd: Odd = {}
        self._ended = False  # whether the next reset follows an end

    def bind(self, rows: Sequence[SlotRow]) -> None:
        owners = [(agent, group) for group in self._groups for agent in group.agents]
        by_agent = {agent: (i, group, row) for i, ((agent, group), row) in enumerate(zip(owners, rows))}
        self._each = [AgentRow(agent, group, row) for agent in self._agents for _, group, row in [by_agent[agent]]]
        self._takers = [(agent, by_agent[agent][0], _taker(self._env.action_space(agent))) for agent in self._agents]
        self._write_codes = rows[-1].write_observation
        self._codes: list[Codes] = []

    # -- reset and step ------------------------------------------------------------------------------------------
    def reset(self, seed: int | None, options: dict[str, Any] | None, task: Any) -> dict[str, Any]:
        self._given.clear()
        if self._ended:
            self._ended = False
            observations, infos = self._env.reset()
        else:
            self._odd = {}
            observations, infos = self._env.reset(seed=seed, options=own(options))
        for row in self._each:
            row.write_observation(observations)
            row.set_alive(row.agent in observations)
        return self._infos_of(infos)

    def step(self, actions: Sequence[Any]) -> tuple[bool, dict[str, Any]]:
        """Step with an action for every agent and, last, which have one; actions from the pipe have precedence."""
        chosen = self._given.pop() if self._given else self._chosen(actions)
        observations, rewards, terminated, truncated, infos = self._env.step(chosen)
        over = all(end or truncated.get(agent, False) for agent, end in terminated.items())
        self._odd = {}
        codes = [row.write_outcome(rewards, terminated, truncated, self._odd) for row in self._each]
        if codes != self._codes:
            self._write_codes(np.array(codes, np.uint8))
            self._codes = codes
        self._ended = over
        if over:  # the observations are those of the reset
            return True, {}
        for row in self._each:
            row.write_observation(observations)
        return False, self._infos_of(infos)

    def _chosen(self, actions: Sequence[Any]) -> dict[str, Any]:
        given = actions[-1].tobytes()
        if 0 not in given:
            return {agent: take(actions[i]) for agent, i, take in self._takers}
        return {agent: take(actions[i]) for (agent, i, take), has_action in zip(self._takers, given) if has_action}

    def _infos_of(self, infos: By) -> dict[str, Any]:
        """Return the infos that are not empty, by agent, and the values that no column holds."""
        sent: dict[str, Any] = {}
        for agent, info in infos.items():
            if (info or type(info) is not dict) and agent in self._agents:
                sent[agent] = WholeInfo(info)
        if self._odd:
            sent[ODDITIES] = WholeInfo(self._odd)
        return sent

    # -- calls and attributes ------------------------------------------------------------------------------------
    def call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a method of the outermost wrapper with copies of the arguments, or read an attribute."""
        attribute = getattr(self._env, name)
        return attribute(*own(args), **own(kwargs)) if callable(attribute) else attribute

    def set_attr(self, name: str, value: Any) -> None:
        setattr(self._env, name, own(value))


def _taker(space: spaces.Space[Any]) -> Callable[[Any], Any]:
    """Return a function that converts an action of the block to an int or an array without axes of length one."""
    if not is_array(space) or (not space.shape and isinstance(space, spaces.Box)):
        return np.asarray
    if not space.shape:
        return int
    return (lambda action: action.squeeze()) if 1 in space.shape else (lambda action: action)

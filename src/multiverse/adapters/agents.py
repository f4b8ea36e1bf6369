"""Agents of a PettingZoo env: their names, groups, spaces and action masks."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from gymnasium import spaces

from multiverse.core.env import ACTION_MASK, MaskSource
from multiverse.core.errors import InvalidRequest
from multiverse.core.layout import Group, leaves

Groups = Mapping[str, Sequence[str]] | Literal["separate"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentOptions:
    """Options for PettingZoo envs: possible agents, groups of agents that share a policy, states and action masks.

    Args:
        groups: agents that share a policy, name → agents; `"separate"`: one group per agent. Default: agents with
            equal spaces share a group.
        possible_agents: all possible agents, for envs that do not define them.
        parallel: True treats an AEC env in which all agents act at the same time as a parallel env.
        state: True calls `state()` of the env after every reset and step: `envs.states`.
        masks: source of the action masks of a single-agent env; `"off"`: masks of no env are used.
    """

    groups: Groups | None = None
    possible_agents: Sequence[str] | None = None
    parallel: bool = False
    state: bool = False
    masks: MaskSource | Literal["off"] | None = None

    def __post_init__(self) -> None:
        if self.groups is not None and self.groups != "separate" and not isinstance(self.groups, Mapping):
            raise InvalidRequest(f"groups={self.groups!r}: expected a dict name → agents, or 'separate'")
        if isinstance(self.possible_agents, str):
            raise InvalidRequest(f"possible_agents={self.possible_agents!r}: expected a list of agents")
        if self.masks not in (None, "off", *get_args(MaskSource)):
            names = ", ".join(("off", *get_args(MaskSource)))
            raise InvalidRequest(f"masks={self.masks!r}: expected one of {names}, or None")


DEFAULT_AGENTS = AgentOptions()


def agents_of(env: Any, options: AgentOptions) -> tuple[str, ...]:
    """Return all possible agents in a fixed order."""
    agents = options.possible_agents if options.possible_agents is not None else getattr(env, "possible_agents", None)
    if not agents:
        raise InvalidRequest(
            f"{type(env).__name__} has no possible_agents, and the rows of a vector env are fixed: pass "
            "make_vec(..., agents=AgentOptions(possible_agents=[...]))"
        )
    twice = sorted({str(agent) for agent in agents if list(agents).count(agent) > 1})
    if twice:
        raise InvalidRequest(f"possible_agents: {twice} appear twice: list each agent once")
    return tuple(agents)


def state_space_of(env: Any) -> spaces.Space[Any] | None:
    """Return the space of `state()`; None if the env does not define it, or it has parts that are not numbers."""
    space = getattr(env, "state_space", None)
    if not isinstance(space, spaces.Space) or not all(leaf.numeric for leaf in leaves(space)):
        return None
    return space


def groups_of(env: Any, agents: Sequence[str], options: AgentOptions) -> tuple[Group, ...]:
    """Return the groups of the options; by default agents with equal spaces share a group."""
    space_pairs = {agent: (env.observation_space(agent), env.action_space(agent)) for agent in agents}
    chosen = _by_name(options.groups, agents) if options.groups is not None else _by_spaces(space_pairs)
    groups = []
    for name, members in chosen.items():
        observation_space, action_space = space_pairs[members[0]]
        for agent in members[1:]:
            if space_pairs[agent] != space_pairs[members[0]]:
                raise InvalidRequest(
                    f"groups: the spaces of {agent!r} and {members[0]!r} in group {name!r} differ; agents of one group "
                    "share a policy, so put them into separate groups"
                )
        off = options.masks == "off"
        masks = int(action_space.n) if isinstance(action_space, spaces.Discrete) and not off else 0
        groups.append(Group(name, tuple(members), observation_space, action_space, True, masks, off))
    return tuple(groups)


def _by_name(groups: Groups, agents: Sequence[str]) -> dict[str, list[str]]:
    if not isinstance(groups, Mapping):  # "separate"
        return {agent: [agent] for agent in agents}
    named = [agent for members in groups.values() for agent in members]
    unknown = [agent for agent in named if agent not in agents]
    missing = [agent for agent in agents if agent not in named]
    twice = [agent for agent in agents if named.count(agent) > 1]
    for problem, names in (
        ("unknown agents", unknown),
        ("agents in no group:", missing),
        ("agents in two groups:", twice),
    ):
        if names:
            raise InvalidRequest(f"groups: {problem} {names}; the env's agents are {list(agents)}")
    for name, members in groups.items():
        if name in agents and list(members) != [name]:
            raise InvalidRequest(f"groups: {name!r} is the name of an agent; actions for it would be ambiguous")
    return {name: [agent for agent in agents if agent in members] for name, members in groups.items() if members}


def _by_spaces(space_pairs: Mapping[str, tuple[Any, Any]]) -> dict[str, list[str]]:
    """Group agents with equal spaces; agent_0 and agent_1 become group 'agent'."""
    groups: list[tuple[Any, list[str]]] = []
    for agent, pair in space_pairs.items():
        for other, members in groups:
            if other == pair:
                members.append(agent)
                break
        else:
            groups.append((pair, [agent]))
    names: dict[str, list[str]] = {}
    for _, members in groups:
        stems = {str(agent).rpartition("_")[0] or str(agent) for agent in members}  # PettingZoo allows any hashable
        name = stems.pop() if len(stems) == 1 else "agents"
        candidates = itertools.chain([name], (f"{name} {number}" for number in itertools.count(len(names))))
        free = (each for each in candidates if each not in names and (each not in space_pairs or members == [each]))
        names[next(free)] = members
    return names


def absent_observation(space: spaces.Space[Any]) -> Any:
    """Return the observation of an absent agent: zeros, or the nearest values in its space."""
    if isinstance(space, spaces.Dict):
        return {key: absent_observation(child) for key, child in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(absent_observation(child) for child in space.spaces)
    if isinstance(space, spaces.Box):
        return np.clip(np.zeros(space.shape, space.dtype), space.low, space.high)
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        return np.asarray(space.start, space.dtype)
    if isinstance(space, spaces.MultiBinary):
        return np.zeros(space.shape, space.dtype)
    return None  # sent by pipe, and not used


def mask_of(observation: Any, info: Any) -> Any:
    """Return an agent's action mask by PettingZoo's two conventions, from its observation or its info, or None."""
    if isinstance(observation, Mapping) and ACTION_MASK in observation:
        return observation[ACTION_MASK]
    return info.get(ACTION_MASK) if isinstance(info, Mapping) else None


def masks_are_observed(space: spaces.Space[Any]) -> bool:
    """Return whether an agent's action mask is part of its observation; if not, it may be in its info."""
    return isinstance(space, spaces.Dict) and ACTION_MASK in space.spaces

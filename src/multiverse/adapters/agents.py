"""Agents of a PettingZoo env: which there are, what they share, and which group each belongs to."""

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
    """Agents of PettingZoo envs: which there are, and which share a policy.

    Args:
        groups: of agents that share a policy, name → agents, or `"separate"`: each by itself. Default: agents with
            equal spaces.
        possible_agents: every agent that there can be, for envs that do not define it.
        parallel: True treats an AEC env in which all agents act at once as a parallel one.
        state: True calls `state()` of the env after every reset and step: `envs.states`.
        masks: where to look for the action masks of a single-agent env; `"off"`: no env's masks are used.
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


NOTHING_SAID = AgentOptions()


def agents_of(env: Any, options: AgentOptions) -> tuple[str, ...]:
    """Every agent that there can ever be, in a fixed order."""
    found = options.possible_agents if options.possible_agents is not None else getattr(env, "possible_agents", None)
    if not found:
        raise InvalidRequest(
            f"{type(env).__name__} does not say which agents there can be (possible_agents), and rows are fixed for "
            "the life of a vector env: pass make_vec(..., agents=AgentOptions(possible_agents=[...]))"
        )
    twice = sorted({str(agent) for agent in found if list(found).count(agent) > 1})
    if twice:
        raise InvalidRequest(f"possible_agents: {twice} twice; each agent has one row")
    return tuple(found)


def state_space_of(env: Any) -> spaces.Space[Any] | None:
    """What `state()` returns is of this space; None if the env does not say so, or it is not all numbers."""
    found = getattr(env, "state_space", None)
    if not isinstance(found, spaces.Space) or not all(leaf.numeric for leaf in leaves(found)):
        return None
    return found


def groups_of(env: Any, agents: Sequence[str], options: AgentOptions) -> tuple[Group, ...]:
    """Agents with equal spaces together, unless the caller says otherwise."""
    space_pairs = {agent: (env.observation_space(agent), env.action_space(agent)) for agent in agents}
    chosen = _by_name(options.groups, agents) if options.groups is not None else _by_spaces(space_pairs)
    groups = []
    for name, members in chosen.items():
        observation_space, action_space = space_pairs[members[0]]
        for agent in members[1:]:
            if space_pairs[agent] != space_pairs[members[0]]:
                raise InvalidRequest(
                    f"groups: {agent!r} and {members[0]!r} are in group {name!r}, and their spaces differ; agents of "
                    "one group share a policy, so give them groups of their own"
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
    for what, which in (
        ("unknown agents", unknown),
        ("agents in no group:", missing),
        ("agents in two groups:", twice),
    ):
        if which:
            raise InvalidRequest(f"groups: {what} {which}; the env's agents are {list(agents)}")
    for name, members in groups.items():
        if name in agents and list(members) != [name]:
            raise InvalidRequest(f"groups: {name!r} is the name of an agent; actions for it would be ambiguous")
    return {name: [agent for agent in agents if agent in members] for name, members in groups.items() if members}


def _by_spaces(space_pairs: Mapping[str, tuple[Any, Any]]) -> dict[str, list[str]]:
    """Named after their agents: agent_0 and agent_1 are group 'agent'."""
    found: list[tuple[Any, list[str]]] = []
    for agent, pair in space_pairs.items():
        for other, members in found:
            if other == pair:
                members.append(agent)
                break
        else:
            found.append((pair, [agent]))
    names: dict[str, list[str]] = {}
    for _, members in found:
        stems = {str(agent).rpartition("_")[0] or str(agent) for agent in members}  # PettingZoo allows any hashable
        name = stems.pop() if len(stems) == 1 else "agents"
        candidates = itertools.chain([name], (f"{name} {number}" for number in itertools.count(len(names))))
        free = (each for each in candidates if each not in names and (each not in space_pairs or members == [each]))
        names[next(free)] = members
    return names


def absent_observation(space: spaces.Space[Any]) -> Any:
    """What an absent agent's row shows: zeros, as near as its space has them."""
    if isinstance(space, spaces.Dict):
        return {key: absent_observation(child) for key, child in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(absent_observation(child) for child in space.spaces)
    if isinstance(space, spaces.Box):
        return np.clip(np.zeros(space.shape, space.dtype), space.low, space.high)
    if isinstance(space, spaces.Discrete):
        return np.asarray(space.start, space.dtype)
    if isinstance(space, spaces.MultiDiscrete):
        return np.asarray(space.start, space.dtype)
    if isinstance(space, spaces.MultiBinary):
        return np.zeros(space.shape, space.dtype)
    return None  # travels by pipe, and nobody looks


def mask_of(seen: Any, info: Any) -> Any:
    """An agent's action mask, by PettingZoo's two conventions: in what it sees, or in its info; None without one."""
    if isinstance(seen, Mapping) and ACTION_MASK in seen:
        return seen[ACTION_MASK]
    return info.get(ACTION_MASK) if isinstance(info, Mapping) else None


def masks_are_observed(space: spaces.Space[Any]) -> bool:
    """Whether an agent's action mask is part of what it sees; if not, it may be in its info."""
    return isinstance(space, spaces.Dict) and ACTION_MASK in space.spaces

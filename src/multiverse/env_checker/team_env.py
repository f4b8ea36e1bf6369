"""A PettingZoo env as the checks step it: everything by agent, as the env itself returned it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from gymnasium import spaces

from multiverse.adapters.agents import mask_of
from multiverse.core.env import EnvKind

ByAgent = dict[Any, Any]


class TeamEnv:
    """Parallel: a step is one of the env. AEC: a step is one agent's decision, with what it takes until the next one;
    agents that have ended are removed on the way.

    Actions are given for everybody there can be. Of those that are not open to an agent, its mask takes another.
    """

    spec = None

    def __init__(self, foreign: Any, kind: EnvKind) -> None:
        self.foreign, self.in_turns = foreign, kind == "turns"
        self.possible_agents = tuple(getattr(foreign, "possible_agents", None) or ())
        self.observation_space = _by_agent(self.possible_agents, foreign.observation_space)
        self.action_space = _by_agent(self.possible_agents, foreign.action_space)
        self.masks: ByAgent = {}  # agent → what is open to it, where it says so
        self._there: list[Any] = []  # who acts next, of a parallel env
        self.over = False
        """Nobody is left."""

    @property
    def unwrapped(self) -> Any:
        return self.foreign.unwrapped

    @property
    def agents(self) -> list[Any]:
        """Who is there, as the env says."""
        return list(self.foreign.agents)

    def reset(self, **arguments: Any) -> Any:
        """What a parallel env returned; of an AEC env ({agent: observation}, {agent: info}) of whoever acts first."""
        self.masks, result = {}, self.foreign.reset(**arguments)
        if self.in_turns:
            agent = self.foreign.agent_selection
            observation, _, _, _, info = self.foreign.last()
            result = {agent: observation}, {agent: info}
        self._there = list(self.foreign.agents)
        self.over = not self._there
        self._note_masks(result)
        return result

    def step(self, actions: ByAgent) -> Any:
        """What a parallel env returned; of an AEC env the same five dicts, with those agents whose turn it was."""
        if self.in_turns:
            return self._turn(actions)
        result = self.foreign.step({agent: self._open(agent, actions) for agent in self._there})
        _, terminated, truncated = ended_in(result)
        self._there = [agent for agent in self.foreign.agents if not (terminated.get(agent) or truncated.get(agent))]
        self.over = not self._there
        self._note_masks(result)
        return result

    def _turn(self, actions: ByAgent) -> Any:
        env = self.foreign
        result: tuple[ByAgent, ...] = ({}, {}, {}, {}, {})
        env.step(self._open(env.agent_selection, actions))
        for _ in range(2 * len(self.possible_agents) + 1):
            if not env.agents:
                break
            agent = env.agent_selection
            for told, value in zip(result, env.last()):
                told[agent] = value
            if not (result[2][agent] or result[3][agent]):
                break
            env.step(None)
        else:
            raise RuntimeError(f"{agent} has ended and stays in agents, whatever steps are taken to remove it")
        self.over = not env.agents
        self._note_masks(result)
        return result

    def _open(self, agent: Any, actions: ByAgent) -> Any:
        action, mask = actions[agent], self.masks.get(agent)
        space = self.action_space[agent]
        if mask is None or not isinstance(space, spaces.Discrete) or np.shape(mask) != (space.n,) or not mask.any():
            return action  # what is wrong with the mask, the check of steps tells
        allowed = np.flatnonzero(mask)
        return space.start + allowed[(action - space.start) % len(allowed)]

    def _note_masks(self, result: Any) -> None:
        """Copies: what was returned is the caller's."""
        if not isinstance(result, tuple) or len(result) not in (2, 5):
            return
        for agent, mask in masks_in(result[0], result[-1]):
            self.masks[agent] = None if mask is None else np.array(mask)

    def close(self) -> None:
        self.foreign.close()


def masks_in(observations: Any, infos: Any) -> Iterable[tuple[Any, Any]]:
    """(agent, its action mask or None)."""
    if isinstance(observations, dict):
        for agent, seen in observations.items():
            yield agent, mask_of(seen, infos.get(agent) if isinstance(infos, dict) else None)


def ended_in(result: Any) -> tuple[ByAgent, ByAgent, ByAgent]:
    """(rewards, terminated, truncated) of a step, as far as they are dicts."""
    parts = result[1:4] if isinstance(result, tuple) and len(result) == 5 else ({}, {}, {})
    rewards, terminated, truncated = (part if isinstance(part, dict) else {} for part in parts)
    return rewards, terminated, truncated


def _by_agent(agents: Iterable[Any], space_of: Any) -> Any:
    """The spaces of all as one; as they are if one of them is none."""
    found = {agent: space_of(agent) for agent in agents}
    return spaces.Dict(found) if all(isinstance(space, spaces.Space) for space in found.values()) else found

"""Bases of the built-in multi-agent envs: PettingZoo's classes, or an error that says how to install them, and a team
with fixed spaces, one generator and checked actions."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.utils import seeding

from multiverse.core.errors import InvalidActions
from multiverse.envs.pictures import Drawn

try:
    from pettingzoo import AECEnv, ParallelEnv  # type: ignore[import-untyped, unused-ignore]
except ImportError as error:
    raise ImportError(
        "this env is a PettingZoo env, and PettingZoo is not installed: pip install 'multiverse[pettingzoo]'"
    ) from error

__all__ = ["AECEnv", "ParallelEnv", "Team"]


class Team(Drawn):
    """Agents with fixed spaces in one world, which is drawn, and whose randomness comes from one generator."""

    possible_agents: list[str]
    agents: list[str]
    observation_spaces: Mapping[str, Any]
    action_spaces: Mapping[str, spaces.Discrete]
    _rng: np.random.Generator | None = None

    def observation_space(self, agent: str) -> Any:
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> spaces.Discrete:
        return self.action_spaces[agent]

    def _seeded(self, seed: int | None) -> np.random.Generator:
        """Return the generator of the next episode: of the seed or, without one, as it is after the last episode."""
        if seed is not None or self._rng is None:
            self._rng, _ = seeding.np_random(seed)
        return self._rng

    def _checked(self, agent: str, action: Any) -> int:
        """Return the action as a plain int; refuse a wrong one, which leaves the world as it is."""
        try:
            number = operator.index(action)
        except TypeError:
            number = -1
        num_actions = int(self.action_spaces[agent].n)
        if not 0 <= number < num_actions:
            expected = f"expected a whole number from 0 to {num_actions - 1}"
            raise InvalidActions(f"action {action!r} for {agent!r}: {expected}")
        return number

    def _all_checked(self, actions: Mapping[str, Any]) -> list[int]:
        """Return the actions of a step in which all agents act; a refused step leaves no trace."""
        if actions.keys() != set(self.agents):
            missing = [agent for agent in self.agents if agent not in actions]
            unknown = [agent for agent in actions if agent not in self.agents]
            raise InvalidActions(
                f"actions for {list(actions)}, and the agents are {self.agents}: missing {missing}, too many {unknown}"
            )
        return [self._checked(agent, actions[agent]) for agent in self.agents]

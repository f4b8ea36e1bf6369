"""Small PettingZoo envs with agents that leave, and with every space that fits into a row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

pytest.importorskip("pettingzoo")

from pettingzoo import ParallelEnv

SPACES: dict[str, spaces.Space[Any]] = {
    "box": spaces.Box(0, 1, (2, 3), np.float32),
    "double": spaces.Box(-np.inf, np.inf, (), np.float64),
    "bytes": spaces.Box(0, 255, (2, 2), np.uint8),
    "whole": spaces.Box(-(2**40), 2**40, (2,), np.int64),
    "choice": spaces.Discrete(4),
    "shifted": spaces.Discrete(3, start=-1),
    "choices": spaces.MultiDiscrete([2, 5, 3]),
    "table": spaces.MultiDiscrete([[2, 3], [4, 2]]),
    "later": spaces.MultiDiscrete([2, 3], start=[5, -1]),
    "bits": spaces.MultiBinary((2, 2)),
    "tuple": spaces.Tuple([spaces.Discrete(2), spaces.Box(-1, 1, (2,), np.float32)]),
    "dict": spaces.Dict({"z": spaces.Discrete(2), "a": spaces.Dict({"b": spaces.Box(-1, 1, (1, 2), np.float32)})}),
}


class Spaces(ParallelEnv):
    """Agents with these observation spaces; observations are sampled from them, and every fifth step is the last."""

    def __init__(
        self,
        observed: Mapping[Any, spaces.Space[Any]] = SPACES,
        actions: Sequence[spaces.Space[Any]] | None = None,
    ) -> None:
        self.metadata = {"name": "spaces_v0", "render_modes": []}
        self.possible_agents = list(observed)
        self._observed = dict(observed)
        self._acting = dict(zip(observed, actions or [spaces.Discrete(3) for _ in observed]))
        self.agents: list[Any] = []

    def observation_space(self, agent: Any) -> spaces.Space[Any]:
        return self._observed[agent]

    def action_space(self, agent: Any) -> spaces.Space[Any]:
        return self._acting[agent]

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        if seed is not None:
            for index, space in enumerate(self._observed.values()):
                space.seed(seed + index)
        self.agents, self._steps = self.possible_agents.copy(), 0
        return self._sampled(), {agent: {} for agent in self.agents}

    def step(self, actions: Mapping[Any, Any]) -> Any:
        self._steps += 1
        over = dict.fromkeys(self.agents, self._steps == 5)
        values = self._sampled(), dict.fromkeys(self.agents, 0.0), over, dict.fromkeys(self.agents, False)
        infos = {agent: {} for agent in self.agents}
        self.agents = [] if self._steps == 5 else self.agents
        return *values, infos

    def _sampled(self) -> dict[Any, Any]:
        return {agent: self._observed[agent].sample() for agent in self.agents}


class Fading(ParallelEnv):
    """Agent a leaves after 1 step, b after 2, c after 3. Each observes its number and the step; the reward is 1."""

    def __init__(self, truncated: Sequence[str] = (), infos: bool = False) -> None:
        self.metadata = {"name": "fading_v0", "render_modes": [], "is_parallelizable": True}
        self.render_mode = None
        self.possible_agents = ["a", "b", "c"]
        self.agents: list[str] = []
        self._truncated, self._infos = truncated, infos
        self._space = spaces.Box(1, 4, (2,), np.float32)
        self._choice = {agent: spaces.Discrete(2) for agent in self.possible_agents}

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return self._space

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return self._choice[agent]

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.agents, self._steps = self.possible_agents.copy(), 0
        return self._seen(), {agent: {} for agent in self.agents}

    def step(self, actions: Mapping[str, Any]) -> Any:
        assert set(actions) == set(self.agents)
        self._steps += 1
        leaving = self.possible_agents[self._steps - 1]
        agents, observations = self.agents, self._seen()
        self.agents = [agent for agent in agents if agent != leaving]
        return (
            observations,
            dict.fromkeys(agents, 1.0),
            {agent: agent == leaving and agent not in self._truncated for agent in agents},
            {agent: agent == leaving and agent in self._truncated for agent in agents},
            {agent: {"steps": self._steps} if self._infos else {} for agent in agents},
        )

    def _seen(self) -> dict[str, Any]:
        numbers = {agent: 1 + self.possible_agents.index(agent) for agent in self.agents}
        return {agent: np.array([number, self._steps + 1], np.float32) for agent, number in numbers.items()}

    def close(self) -> None:
        pass

    def render(self) -> None:
        pass


def unflattened(flat: Any, row: Any) -> dict[Any, Any]:
    """The inverse of the row, by Gymnasium's functions: agent → observation."""
    each = {agent: flat.env.observation_space(agent) for agent in flat.possible_agents}
    ends = np.cumsum([spaces.flatdim(space) for space in each.values()])[:-1]
    return {agent: _unflattened(space, part) for (agent, space), part in zip(each.items(), np.split(row, ends))}


def _unflattened(space: spaces.Space[Any], part: Any) -> Any:
    if isinstance(space, spaces.Dict | spaces.Tuple):
        items = list(space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces))
        parts = np.split(part, np.cumsum([spaces.flatdim(inner) for _, inner in items])[:-1])
        values = {key: _unflattened(inner, one) for (key, inner), one in zip(items, parts)}
        return values if isinstance(space, spaces.Dict) else tuple(values.values())
    return spaces.unflatten(space, part)


def joined_actions(flat: Any, actions: dict[Any, Any]) -> Any:
    """One action for all agents, joined from one for each."""
    return np.concatenate([np.reshape(actions[agent], -1) for agent in flat.possible_agents]).astype(
        flat.action_space.dtype
    )

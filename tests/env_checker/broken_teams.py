"""PettingZoo envs with one error each. Workers import this module by name."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from pettingzoo import AECEnv, ParallelEnv

SEES = {
    "ant": spaces.Dict(place=spaces.Box(-1, 1, (2,), np.float32), action_mask=spaces.Box(0, 1, (3,), np.int8)),
    "bee": spaces.Box(-1, 1, (2,), np.float32),
}
DOES = {"ant": spaces.Discrete(3), "bee": spaces.Box(-1, 1, (2,), np.float32)}


class Team(ParallelEnv):
    """A correct env: an ant with an action mask, and a bee; episodes of 3 to 12 steps."""

    metadata = {"name": "team"}  # noqa: RUF012

    def __init__(self) -> None:
        self.possible_agents, self.agents = ["ant", "bee"], []
        self.rng = np.random.default_rng()

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return SEES[agent]

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return DOES[agent]

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self.t, self.length, self.agents = 0, int(self.rng.integers(3, 13)), list(self.possible_agents)
        return self.look(), {agent: {} for agent in self.agents}

    def look(self) -> dict[str, Any]:
        self.open = np.ones(3, np.int8)
        self.open[self.rng.integers(3)] = 0
        place = self.rng.uniform(-1, 1, (2, 2)).astype(np.float32)
        seen = {"ant": {"place": place[0], "action_mask": self.open.copy()}, "bee": place[1]}
        return {agent: seen[agent] for agent in self.agents}

    def earn(self) -> dict[str, Any]:
        return {agent: float(self.rng.random()) for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> Any:
        if "ant" in actions and not self.open[actions["ant"]]:
            raise ValueError("the ant was given an action that is not open")
        if set(actions) != set(self.agents):
            raise ValueError(f"actions for {sorted(actions)}, and there are {self.agents}")
        self.t += 1
        over = dict.fromkeys(self.agents, self.t >= self.length)
        rewards, seen, infos = self.earn(), self.look(), {agent: {} for agent in self.agents}
        self.agents = [agent for agent in self.agents if not over[agent]]
        return seen, rewards, over, dict.fromkeys(over, False), infos


class Nameless(Team):
    def __init__(self) -> None:
        super().__init__()
        del self.possible_agents


class Guest(Team):
    """An unlisted fly joins."""

    def look(self) -> dict[str, Any]:
        return {**super().look(), "fly": np.zeros(2, np.float32)}


class Blind(Team):
    """The bee has no observation."""

    def look(self) -> dict[str, Any]:
        seen = super().look()
        del seen["bee"]
        return seen


class Unpaid(Team):
    def earn(self) -> dict[str, Any]:
        return {"ant": 1.0}


class NewSpaces(Team):
    def action_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Discrete(3) if agent == "ant" else DOES[agent]


class Undead(Team):
    """Agents that have ended stay in `agents`."""

    def step(self, actions: dict[str, Any]) -> Any:
        if not actions:
            raise ValueError("it is over")
        result = super().step(actions)
        self.agents = list(self.possible_agents)
        return result


class Masked(Team):
    """The mask of the ant is always the given one."""

    def __init__(self, mask: Any) -> None:
        super().__init__()
        self.mask = np.array(mask, np.int8)

    def look(self) -> dict[str, Any]:
        seen = super().look()
        self.open = np.ones(3, np.int8)
        return {**seen, "ant": {**seen["ant"], "action_mask": self.mask}} if "ant" in seen else seen


class Fleeting(Team):
    """The bee leaves after a step and comes back two steps later."""

    def step(self, actions: dict[str, Any]) -> Any:
        seen, rewards, terminated, truncated, infos = super().step(actions)
        if self.agents and self.t == 1:
            terminated["bee"], self.agents = True, ["ant"]
        elif self.agents and self.t == 3:
            self.agents = ["ant", "bee"]
            seen["bee"] = np.zeros(2, np.float32)
            rewards["bee"], terminated["bee"], truncated["bee"] = 0.0, False, False
        return seen, rewards, terminated, truncated, infos


class ZeroSum(Team):
    def earn(self) -> dict[str, Any]:
        won = float(self.rng.random())
        return {"ant": won, "bee": -won}


class NaNForTheBee(Team):
    def earn(self) -> dict[str, Any]:
        return {"ant": 1.0, "bee": float("nan")}


class OneRewardForAll(Team):
    def earn(self) -> Any:
        return 1.0


class LateObservation(Team):
    """The bee's observation leaves its box."""

    def look(self) -> dict[str, Any]:
        return {**super().look(), "bee": np.full(2, 3, np.float32)} if "bee" in self.agents else super().look()


class UnseededTeam(Team):
    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        return super().reset(None, options)


class SharedTeam(Team):
    """All instances draw from one generator."""

    generator = np.random.default_rng(0)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        if seed is not None:
            SharedTeam.generator = np.random.default_rng(seed)
        self.rng = SharedTeam.generator
        return super().reset(None, options)

    def earn(self) -> dict[str, Any]:
        self.rng = SharedTeam.generator
        return super().earn()


class Game(AECEnv):
    """A correct env: two players count down in turn, and the one that ends it wins."""

    metadata = {"name": "game"}  # noqa: RUF012

    def __init__(self) -> None:
        self.possible_agents, self.agents = ["ann", "bob"], []
        self.rng = np.random.default_rng()

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return COUNT

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return TAKE

    def observe(self, agent: str) -> Any:
        return np.int64(max(self.left, 0))

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self.agents, self.left = list(self.possible_agents), int(self.rng.integers(6, 20))
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations, self.truncations = dict.fromkeys(self.agents, False), dict.fromkeys(self.agents, False)
        self.infos, self.agent_selection = {agent: {} for agent in self.agents}, "ann"

    def step(self, action: Any) -> None:
        if self.terminations[self.agent_selection]:
            self.bury(action)
            return
        agent = self.agent_selection
        other = "bob" if agent == "ann" else "ann"
        self._cumulative_rewards[agent] = 0.0
        self.left -= 1 + int(action)
        self._clear_rewards()
        if self.left <= 0:
            self.rewards = {agent: 1.0, other: -1.0}
            self.terminations = dict.fromkeys(self.agents, True)
        self.agent_selection = other
        self._accumulate_rewards()

    def bury(self, action: Any) -> None:
        self._was_dead_step(action)

    def close(self) -> None:
        pass


COUNT, TAKE = spaces.Discrete(21), spaces.Discrete(3)


class Unburied(Game):
    """Agents that have ended are not removed."""

    def bury(self, action: Any) -> None:
        self.agent_selection = "bob" if self.agent_selection == "ann" else "ann"

"""Small PettingZoo envs in which agents come and go. Workers import this module by name."""

from __future__ import annotations

import os
import signal
import zlib
from copy import deepcopy
from typing import Any

import numpy as np
from gymnasium import spaces
from pettingzoo import AECEnv, ParallelEnv

from tests.envs import fingerprint

FARMERS, GUARDS, BARD = ("farmer_0", "farmer_1"), ("guard_0", "guard_1", "guard_2"), "bard"
VILLAGERS = (FARMERS[0], GUARDS[0], FARMERS[1], BARD, GUARDS[1], GUARDS[2])
"""Not in the order of their groups."""

SPACES: dict[str, tuple[spaces.Space[Any], spaces.Space[Any]]] = {
    "farmer": (spaces.Box(0.5, 2.0, (2,), np.float32), spaces.Discrete(3)),
    "guard": (
        spaces.Dict(
            view=spaces.Box(-1, 1, (2, 2), np.float64),
            action_mask=spaces.Box(0, 1, (4,), np.int8),
            post=spaces.Discrete(5, start=1),
        ),
        spaces.Discrete(4),
    ),
    "bard": (
        spaces.Tuple((spaces.Text(6), spaces.Tuple((spaces.MultiBinary(2), spaces.MultiDiscrete([3, 4]))))),
        spaces.Dict(note=spaces.Box(-1, 1, (2,), np.float32), word=spaces.Text(4)),
    ),
}


def kind_of(agent: str) -> str:
    return agent.partition("_")[0]


class Life:
    """Common base of the two villages: agents of three kinds and one random number generator."""

    metadata: dict[str, Any] = {"name": "village", "is_parallelizable": False}  # noqa: RUF012
    render_mode = "rgb_array"

    def __init__(self, agents: tuple[str, ...] = VILLAGERS, length: int = 9, restless: float = 0.15) -> None:
        self.possible_agents, self.agents = list(agents), []
        self.length, self.restless, self.steps, self.resets = length, restless, 0, 0
        self.bonus, self.task = 0.0, 0.0
        self.rng = np.random.default_rng()

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return SPACES[kind_of(agent)][0]

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return SPACES[kind_of(agent)][1]

    def render(self) -> Any:
        return np.full((2, 3, 3), self.steps, np.uint8)

    def reset_task(self, task: float) -> None:
        self.task = task

    def add(self, a: int, b: int = 0) -> int:
        return a + b + self.steps

    def begin(self, seed: int | None) -> None:
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self.steps, self.resets = 0, self.resets + 1
        here = [agent for agent in self.possible_agents if self.rng.random() < 0.7]
        self.agents = here or [self.possible_agents[-1]]

    def happens(self) -> bool:
        return bool(self.rng.random() < self.restless)

    def see(self, agent: str) -> Any:
        rng = self.rng
        if kind_of(agent) == "farmer":
            return (0.5 + 1.5 * rng.random(2)).astype(np.float32)
        if kind_of(agent) == "guard":
            mask = rng.integers(0, 2, 4).astype(np.int8)
            mask[rng.integers(4)] = 1
            return {"view": rng.random((2, 2)), "action_mask": mask, "post": np.int64(1 + rng.integers(5))}
        word = "".join(rng.choice(list("xyz"), int(rng.integers(1, 6))))
        return word, (rng.integers(0, 2, 2).astype(np.int8), rng.integers(0, [3, 4]))

    def say(self, agent: str) -> dict[str, Any]:
        """Return infos of every kind; action masks of farmers are in some of them."""
        if kind_of(agent) == "bard" and self.steps % 2:
            return {}
        info: dict[str, Any] = {"steps": self.steps, "task": self.task, "mood": f"{agent} at {self.steps}"}
        if kind_of(agent) == "farmer" and self.steps % 3:
            info["action_mask"] = np.array([1, self.steps % 2, 1], np.int8)
        return info

    def earn(self, action: Any) -> float:
        """Reward that identifies the action that arrived and its type."""
        return zlib.crc32(fingerprint(action).encode()) / 2**32 + float(self.rng.random()) + self.bonus

    def close(self) -> None:
        pass


class Village(Life, ParallelEnv):
    """Parallel env in which agents end, come back and join late; even episodes terminate, odd ones are truncated."""

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        if options is not None:
            self.task = options.get("task", self.task)
        self.begin(seed)
        return {a: self.see(a) for a in self.agents}, {a: self.say(a) for a in self.agents}

    def step(self, actions: dict[str, Any]) -> Any:
        assert set(actions) == set(self.agents), (sorted(actions), self.agents)
        self.steps += 1
        over, even = self.steps >= self.length, self.resets % 2 == 1
        rewards = {a: self.earn(actions[a]) for a in self.agents}
        terminated = {a: (over and even) or self.happens() for a in self.agents}
        truncated = dict.fromkeys(self.agents, over and not even)
        absent = [a for a in self.possible_agents if a not in self.agents]
        joined = [a for a in absent if not over and self.happens()]
        for agent in joined:
            rewards[agent], terminated[agent], truncated[agent] = 0.0, False, False
        results = [a for a in self.possible_agents if a in self.agents or a in joined]
        observations, infos = {a: self.see(a) for a in results}, {a: self.say(a) for a in results}
        self.agents = [a for a in results if not (terminated[a] or truncated[a])]
        return observations, rewards, terminated, truncated, infos


class OptionVillage(Village):
    """Env that takes its task from the options of a reset."""

    reset_task = None  # type: ignore[assignment]


class Circle(Life, AECEnv):
    """AEC env in which agents end (several in one step), come back and join late."""

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        if options is not None:
            self.task = options.get("task", self.task)
        self.begin(seed)
        self._skip_agent_selection = None
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos = {agent: self.say(agent) for agent in self.agents}
        self.seen = {agent: self.see(agent) for agent in self.agents}
        self.agent_selection = self.agents[0]

    def observe(self, agent: str) -> Any:
        return self.seen[agent]

    def step(self, action: Any) -> None:
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            self._was_dead_step(action)
            return
        self.steps += 1
        self._cumulative_rewards[agent] = 0.0
        earned = self.earn(action)
        self.rewards = {a: earned * (1 if a == agent else -0.5) + float(self.rng.random()) for a in self.agents}
        for other in self.agents:
            self.terminations[other] = self.happens()
            self.truncations[other] = self.steps >= self.length and not self.terminations[other]
        self._accumulate_rewards()
        for newcomer in [a for a in self.possible_agents if a not in self.agents]:
            if self.steps < self.length and self.happens():
                self._add(newcomer)
        for other in self.agents:
            self.infos[other], self.seen[other] = self.say(other), self.see(other)
        self.agent_selection = self._after(agent)
        self._deads_step_first()

    def _after(self, agent: str) -> str:
        """The next agent that is present; at the end of an episode, any agent."""
        position = self.agents.index(agent) + 1
        in_order = self.agents[position:] + self.agents[:position]
        return next((a for a in in_order if not (self.terminations[a] or self.truncations[a])), agent)

    def _add(self, agent: str) -> None:
        self.agents.append(agent)
        self.rewards[agent] = self._cumulative_rewards[agent] = 0.0
        self.terminations[agent] = self.truncations[agent] = False


class Pair(ParallelEnv):
    """Env of two agents with equal spaces and the fault `fault` in step `at`."""

    metadata: dict[str, Any] = {"name": "pair"}  # noqa: RUF012
    render_mode = None

    def __init__(self, fault: str = "nothing", at: int = 3, length: int = 5, second_leaves_at: int = 99) -> None:
        self.possible_agents, self.agents = ["left", "right"], []
        self.fault, self.at, self.length, self.second_leaves_at = fault, at, length, second_leaves_at
        self.steps = 0
        self.rng = np.random.default_rng()

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Box(-np.inf, np.inf, (2,), np.float64)

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Discrete(3)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self.steps, self.agents = 0, list(self.possible_agents)
        return {a: self.rng.random(2) for a in self.agents}, {a: {} for a in self.agents}

    def step(self, actions: dict[str, Any]) -> Any:
        self.steps += 1
        there, over = self.agents, self.steps >= self.length
        result: list[Any] = [
            {a: self.rng.random(2) for a in there},
            {a: float(actions[a]) + float(self.rng.random()) for a in there},
            {a: over or (a == "right" and self.steps >= self.second_leaves_at) for a in there},
            dict.fromkeys(there, False),
            {a: {} for a in there},
        ]
        self.agents = [a for a in there if not result[2][a]]
        if self.steps == self.at:
            getattr(self, f"_{self.fault}")(result)
        return tuple(result)

    def method(self) -> int:
        return self.steps

    def close(self) -> None:
        pass

    def _nothing(self, result: list[Any]) -> None: ...

    def _raise(self, result: list[Any]) -> None:
        raise ZeroDivisionError("asked to fail")

    def _kill(self, result: list[Any]) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def _nan(self, result: list[Any]) -> None:
        result[0]["left"][1] = np.nan

    def _nan_reward(self, result: list[Any]) -> None:
        result[1]["left"] = np.nan

    def _text_reward(self, result: list[Any]) -> None:
        result[1]["left"] = "much"

    def _shape(self, result: list[Any]) -> None:
        result[0]["left"] = np.zeros(3)

    def _no_info(self, result: list[Any]) -> None:
        result[4]["left"] = None

    def _list_info(self, result: list[Any]) -> None:
        result[4]["left"] = []

    def _no_infos(self, result: list[Any]) -> None:
        result[4] = None

    def _mask_shape(self, result: list[Any]) -> None:
        result[4]["left"] = {"action_mask": np.ones(2)}

    def _unlisted(self, result: list[Any]) -> None:
        for part, value in zip(result, (np.zeros(2), 0.0, False, False, {})):
            part["unlisted"] = value
        self.agents.append("unlisted")

    def _no_observation(self, result: list[Any]) -> None:
        del result[0]["left"]

    def _no_reward(self, result: list[Any]) -> None:
        del result[1]["left"]

    def _no_end(self, result: list[Any]) -> None:
        del result[2]["left"]

    def _vanish(self, result: list[Any]) -> None:
        """The agent disappears from all results."""
        for part in result:
            del part["left"]
        self.agents.remove("left")

    def _slip_away(self, result: list[Any]) -> None:
        """The agent is still reported, but no longer in `agents`."""
        self.agents.remove("left")

    def _unseen_end(self, result: list[Any]) -> None:
        """The end of the agent is reported without an observation."""
        del result[0]["left"]
        result[3]["left"], result[1]["left"] = True, 7.0
        self.agents.remove("left")

    def _lingering_end(self, result: list[Any]) -> None:
        """The agent has ended but stays in `agents`."""
        result[2]["left"] = True


class Lingering(Pair):
    """Env that keeps reporting ended agents, with rewards and ends, and never removes them from `agents`."""

    def step(self, actions: dict[str, Any]) -> Any:
        self.steps += 1
        there = self.agents
        gone = {"left": self.steps >= 2, "right": self.steps >= 4}
        return (
            {a: self.rng.random(2) for a in there},
            {a: 1.0 + float(actions[a]) for a in there},
            gone,
            dict.fromkeys(there, False),
            {a: {} for a in there},
        )


class Alone(Pair):
    """A multi-agent env with one agent."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.possible_agents = ["left"]


class Numbered(Pair):
    """Env whose agents are numbers."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.possible_agents = [0, 1]  # type: ignore[list-item]


class Silent(Pair):
    """Env without `possible_agents`."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._names = self.possible_agents
        del self.possible_agents

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.possible_agents = self._names
        result = super().reset(seed, options)
        del self.possible_agents
        return result


class OddSpaces(ParallelEnv):
    """Env of two agents with one given space for observations and actions; the reward identifies the action."""

    metadata: dict[str, Any] = {"name": "odd"}  # noqa: RUF012
    render_mode = None

    def __init__(self, space: Any) -> None:
        self.possible_agents, self.agents = ["a_0", "a_1"], []
        self.space = deepcopy(space)  # its generator must not be shared with another thread's
        self.steps, self.rng = 0, np.random.default_rng()

    def observation_space(self, agent: str) -> Any:
        return self.space

    def action_space(self, agent: str) -> Any:
        return self.space

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self.steps, self.agents = 0, list(self.possible_agents)
        return {a: self._see() for a in self.agents}, {a: {} for a in self.agents}

    def step(self, actions: dict[str, Any]) -> Any:
        self.steps += 1
        there = self.agents
        rewards = {a: float(zlib.crc32(fingerprint(actions[a]).encode())) for a in there}
        terminated = {a: self.steps >= (3 if a == "a_0" else 4) for a in there}
        self.agents = [a for a in there if not terminated[a]]
        seen = {a: self._see() for a in there}
        return seen, rewards, terminated, dict.fromkeys(there, False), {a: {} for a in there}

    def _see(self) -> Any:
        self.space.seed(int(self.rng.integers(2**31)))
        return self.space.sample()


class FaultyCircle(Circle):
    """AEC env that has the fault in one step, counted over its life."""

    def __init__(self, fault: str = "nothing", at: int = 3, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.fault, self.at, self.calls = fault, at, 0

    def step(self, action: Any) -> None:
        self.calls += action is not None
        if action is not None and self.calls == self.at:
            getattr(self, f"_{self.fault}")()
        super().step(action)
        if self.fault == "abandon" and self.calls == self.at:
            self.agents = []

    def _nothing(self) -> None: ...

    def _abandon(self) -> None: ...

    def _raise(self) -> None:
        raise ZeroDivisionError("asked to fail")

    def _kill(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class Undying(Circle):
    """AEC env whose ended agents are never removed."""

    def _was_dead_step(self, action: Any) -> None:
        pass

"""Envs with action masks in every supported place. Workers import this file, hence it does not import pytest."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv

ALL = 4
LENGTH = 6


class Doors(gym.Env[Any, Any]):
    """Env with four doors, some of which are open; they change after every step, and a closed one is an error.

    `where`: the mask is in the "info", in the "observation", or "nowhere". `mask_at`: step → the mask that the
    env gives there instead (0 is the reset). `ends`: how episodes end.
    """

    def __init__(
        self,
        where: str = "info",
        mask_at: dict[int, Any] | None = None,
        ends: str = "truncated",
        tolerant: bool = False,
        length: int = LENGTH,
    ) -> None:
        self.where, self.mask_at, self.ends, self.tolerant = where, mask_at or {}, ends, tolerant
        self.length = length
        self.action_space: Any = spaces.Discrete(ALL)
        seen = spaces.Box(0.0, 1.0, (ALL + 1,), np.float32)
        self.observation_space: Any = seen
        if where == "observation":
            self.observation_space = spaces.Dict(doors=seen, action_mask=spaces.MultiBinary(ALL))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        self.worth = self.np_random.permutation(ALL)
        self.close_some()
        return self.shown()

    def close_some(self) -> None:
        self.open = self.np_random.random(ALL) < 0.4
        self.open[self.np_random.integers(ALL)] = True

    def mask(self) -> Any:
        return self.mask_at.get(self.steps, self.open.astype(np.int8))

    def shown(self) -> tuple[Any, dict[str, Any]]:
        doors = np.append(self.worth / ALL, self.steps / (self.length + 1)).astype(np.float32)
        if self.where == "observation":
            return {"doors": doors, "action_mask": np.asarray(self.mask(), np.int8)}, {}
        return doors, {"action_mask": self.mask()} if self.where == "info" else {}

    def is_closed(self, action: Any) -> bool:
        return not self.open[action]

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.is_closed(action) and not self.tolerant:
            raise RuntimeError(f"door {action} is closed")
        reward = float(np.sum(self.worth[action]))
        self.steps += 1
        self.close_some()
        over = self.steps >= self.length
        observation, info = self.shown()
        return observation, reward, over and self.ends == "terminated", over and self.ends == "truncated", info


class DoorsAsked(Doors):
    """Env with a method that returns which doors are open."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__("nowhere", **arguments)

    def action_masks(self) -> Any:
        return self.mask()


class Wrapped(gym.Wrapper[Any, Any, Any, Any]):
    """A wrapper that changes nothing."""


def wrapped_doors() -> gym.Env[Any, Any]:
    return Wrapped(DoorsAsked())


class DoorsSaved(Doors):
    """Env that can save its state."""

    def save_state(self) -> dict[str, Any]:
        return {"steps": self.steps, "worth": self.worth, "open": self.open, "rng": self.np_random.bit_generator.state}

    def restore_state(self, state: dict[str, Any]) -> None:
        self.steps, self.worth, self.open = int(state["steps"]), state["worth"].copy(), state["open"].copy()
        self.np_random.bit_generator.state = state["rng"]


class TwoDoors(DoorsAsked):
    """Env with a door of two and one of three, and the mask of both in one array."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.action_space = spaces.MultiDiscrete([2, 3])

    def close_some(self) -> None:
        self.open = self.np_random.random(5) < 0.4
        self.open[self.np_random.integers(2)] = self.open[2 + self.np_random.integers(3)] = True

    def is_closed(self, action: Any) -> bool:
        return not (self.open[action[0]] and self.open[2 + action[1]])


class Push(Doors):
    """Env with actions that no mask can close."""

    def __init__(self) -> None:
        super().__init__()
        self.action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def is_closed(self, action: Any) -> bool:
        return False

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return super().step(0)


class TeamDoors(ParallelEnv):
    """Two agents, each with four doors. `mask_at`: (agent, step) → the mask that it gets there instead."""

    metadata: ClassVar[dict[str, Any]] = {"name": "team_doors", "is_parallelizable": True}

    def __init__(self, where: str = "info", mask_at: dict[tuple[str, int], Any] | None = None) -> None:
        self.possible_agents = ["left", "right"]
        self.mask_at, self.where, self.render_mode = mask_at or {}, where, None
        self.doors = {agent: Doors(where) for agent in self.possible_agents}

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return self.doors[agent].observation_space

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return self.doors[agent].action_space

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        self.agents = list(self.possible_agents)
        for k, (agent, doors) in enumerate(self.doors.items()):
            doors.mask_at = {step: mask for (whose, step), mask in self.mask_at.items() if whose == agent}
            doors.reset(seed=None if seed is None else seed + k)
        shown = {agent: doors.shown() for agent, doors in self.doors.items()}
        return {agent: both[0] for agent, both in shown.items()}, {agent: both[1] for agent, both in shown.items()}

    def step(self, actions: dict[str, Any]) -> Any:
        outcomes = {agent: self.doors[agent].step(actions[agent]) for agent in self.agents}
        observations, rewards, terminated, truncated, infos = (
            {agent: one[k] for agent, one in outcomes.items()} for k in range(5)
        )
        if any(truncated.values()):
            self.agents = []
        return observations, rewards, terminated, truncated, infos

    def render(self) -> None: ...

    def close(self) -> None: ...


def doors_in_turn(**arguments: Any) -> Any:
    from pettingzoo.utils.conversions import parallel_to_aec

    return parallel_to_aec(TeamDoors(**arguments))

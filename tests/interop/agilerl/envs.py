"""Parallel envs that return all kinds of values. Workers import this module by name."""

from __future__ import annotations

import sys
import zlib
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv

from tests.envs import fingerprint
from tests.fault_envs import wait_at

SEEN: dict[str, spaces.Space[Any]] = {
    "vector": spaces.Box(-1, 1, (3,), np.float32),
    "image": spaces.Box(0, 255, (4, 5, 3), np.uint8),
    "number": spaces.Box(-1, 1, (), np.float64),
    "choice": spaces.Discrete(5),
    "switches": spaces.MultiBinary(4),
    "choices": spaces.MultiDiscrete([3, 4]),
    "dict": spaces.Dict(
        OrderedDict(  # not in alphabetical order
            view=spaces.Box(0, 255, (2, 2), np.uint8),
            place=spaces.Box(-1, 1, (2,), np.float32),
            mode=spaces.Discrete(3),
        )
    ),
    "tuple": spaces.Tuple((spaces.Box(-1, 1, (2,), np.float64), spaces.MultiDiscrete([2, 2]), spaces.Discrete(4))),
}
ACTED: dict[str, spaces.Space[Any]] = {
    "choice": spaces.Discrete(5),
    "shifted": spaces.Discrete(4, start=-2),
    "lever": spaces.Box(-1, 1, (1,), np.float32),
    "levers": spaces.Box(-1, 1, (2, 3), np.float32),
    "switches": spaces.MultiBinary(4),
    "choices": spaces.MultiDiscrete([3, 4]),
}
PAID: dict[str, Any] = {
    "float": float,
    "int": lambda x: int(8 * x),
    "bool": lambda x: x > 0.5,
    "float64": np.float64,
    "float32": np.float32,
    "int32": lambda x: np.int32(8 * x),
    "mixed": lambda x: int(8 * x) if x > 0.5 else np.float32(x),
    "sometimes a float": lambda x: float(x) if x > 0.9 else 0,
    "huge": lambda x: 2**60 + int(1000 * x),
    "array": lambda x: np.array([x, 1 - x]),
}
ENDED: dict[str, Any] = {"bool": bool, "np.bool": np.bool_, "int": int}


class Told(spaces.Space[Any]):
    """A custom space with a shape and a dtype."""

    def __init__(self) -> None:
        super().__init__((3,), np.int16)

    def sample(self, mask: Any = None, probability: Any = None) -> Any:
        return self.np_random.integers(-9, 9, 3, np.int16)

    def contains(self, x: Any) -> bool:
        return True

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Told)


class Troupe(ParallelEnv):
    """Three agents, one of which observes what no other does.

    The reward of each identifies the actions that arrived, their order and types. With `mortal`, agents end and
    may come back independently; otherwise they end with the episode.
    """

    metadata: dict[str, Any] = {"name": "troupe", "render_modes": ["rgb_array"]}  # noqa: RUF012

    def __init__(
        self,
        seen: str = "vector",
        acted: str = "choice",
        paid: str = "float",
        ended: str = "bool",
        talks: bool = False,
        mortal: bool = False,
        length: int = 7,
        render_mode: str | None = "rgb_array",
    ) -> None:
        self.possible_agents, self.render_mode = ["actor_0", "zoe", "actor_1"], render_mode
        self.seen, self.acted, self.paid, self.ended = seen, acted, PAID[paid], ENDED[ended]
        self.talks, self.mortal, self.length, self.steps, self.resets = talks, mortal, length, 0, 0
        self.asked: list[Any] = []
        self.rng = np.random.default_rng(0)

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return Told() if agent == "zoe" else SEEN[self.seen]

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return ACTED[self.acted]

    def reset(self, **asked: Any) -> Any:
        self.asked.append(asked)
        if asked.get("seed") is not None:
            self.rng = np.random.default_rng(asked["seed"])
        self.steps, self.resets = 0, self.resets + 1
        self.agents = [a for a in self.possible_agents if not self.mortal or self.rng.random() < 0.8]
        return self._observed(self.agents), self._told(self.agents)

    def step(self, actions: dict[str, Any]) -> Any:
        self.steps += 1
        there, over = self.agents, self.steps >= self.length
        arrived = zlib.crc32(f"{list(actions)}{fingerprint(actions)}".encode()) / 2**32
        rewards = {a: self.paid((arrived + self.rng.random()) % 1) for a in there}
        terminated = {a: self.ended(over or (self.mortal and self.rng.random() < 0.2)) for a in there}
        truncated = {a: self.ended(over and self.rng.random() < 0.5) for a in there}
        gone = [a for a in self.possible_agents if a not in there]
        self.agents = [a for a in there if not (terminated[a] or truncated[a])]
        if self.agents:
            self.agents += [a for a in gone if self.rng.random() < 0.3]
        return self._observed(there), rewards, terminated, truncated, self._told(there)

    def _observed(self, there: list[str]) -> dict[str, Any]:
        return {a: self._sampled(self.observation_space(a)) for a in there}

    def _sampled(self, space: spaces.Space[Any]) -> Any:
        space.seed(int(self.rng.integers(2**31)))
        return space.sample()

    def _told(self, there: list[str]) -> dict[str, Any]:
        if not self.talks:
            return {a: {} for a in there}
        said: dict[str, Any] = {a: {"step": self.steps, "half": self.steps / 2, "late": self.steps > 3} for a in there}
        for agent, info in said.items():
            if self.steps % 2:
                info.update(action_mask=np.array([1, 0, self.steps], np.int8), who=agent, deep={"er": [self.steps]})
            if self.rng.random() < 0.3:
                info.update(luck=np.float32(self.rng.random()), nothing=None, flag=np.bool_(True))
        return said

    def render(self) -> Any:
        return np.full((2, 3, 3), self.steps, np.uint8)

    def add(self, a: int, b: int = 0) -> int:
        return a + b + self.steps

    def close(self) -> None:
        pass


class Forgetful(Troupe):
    """Env that keeps the options of its last reset and writes into them."""

    def reset(self, **asked: Any) -> Any:
        self.notes = asked.get("options")
        return super().reset(**asked)

    def scribble(self, notes: dict[int, str] | None = None) -> int:
        """Add a note and return how many there are."""
        self.notes = self.notes if notes is None else notes
        self.notes[len(self.notes)] = "was here"
        return len(self.notes)


class Loaded(Troupe):
    """Env that reports which of torch, agilerl and tensordict its process has loaded."""

    def loaded(self) -> list[str]:
        return sorted({"torch", "agilerl", "tensordict"} & set(sys.modules))


class Reshaped(Troupe):
    """Env that returns observations of other shapes and dtypes than those of its space."""

    def _sampled(self, space: spaces.Space[Any]) -> Any:
        return super()._sampled(space)[None].astype(np.float64).tolist()


class Gated(Troupe):
    """Env that waits at a gate in the `at`-th call of `phase` until the test opens it."""

    def __init__(self, gate: str | None = None, phase: str = "step", at: int = 1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._gate, self._phase, self._at, self._calls = gate, phase, at, 0

    def _pass(self, phase: str) -> None:
        if self._gate is not None and phase == self._phase:
            self._calls += 1
            if self._calls == self._at:
                wait_at(Path(self._gate))

    def reset(self, **asked: Any) -> Any:
        self._pass("reset")
        return super().reset(**asked)

    def step(self, actions: dict[str, Any]) -> Any:
        self._pass("step")
        return super().step(actions)

    def add(self, a: int, b: int = 0) -> int:
        self._pass("call")
        return super().add(a, b)


class Stubborn(Troupe):
    """Env that raises in the given phase, from the `at`-th call on."""

    def __init__(self, phase: str = "step", error: str = "ZeroDivisionError", at: int = 1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._phase, self._error, self._left = phase, error, at

    def _count(self, phase: str) -> None:
        self._left -= phase == self._phase
        if phase == self._phase and self._left == 0:
            raise KINDS[self._error](f"asked to fail in {phase}")

    def reset(self, **asked: Any) -> Any:
        self._count("reset")
        return super().reset(**asked)

    def step(self, actions: dict[str, Any]) -> Any:
        self._count("step")
        return super().step(actions)

    def add(self, a: int, b: int = 0) -> int:
        self._count("call")
        return super().add(a, b)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "taboo":
            self._count("set")
        super().__setattr__(name, value)

    def close(self) -> None:
        self._count("close")


class OfMyOwn(Exception):
    """An exception type defined here."""


KINDS: dict[str, type[Exception]] = {
    "ZeroDivisionError": ZeroDivisionError,
    "ValueError": ValueError,
    "OfMyOwn": OfMyOwn,
}

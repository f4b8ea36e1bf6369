"""Small Gymnasium envs for the tests. Workers import this module by name, so everything in it can be sent to them."""

from __future__ import annotations

import os
import zlib
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class Walk(gym.Env):
    """Env that draws a random number at every reset and step, so that a step too many or too few changes the rest.

    Episodes take `length` steps; even ones terminate, odd ones are truncated.
    """

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012

    def __init__(self, length: int = 5, dtype: Any = np.float64, render_mode: str | None = None) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), dtype)
        self.action_space = spaces.Discrete(3)
        self.length, self.render_mode = length, render_mode
        self.bonus, self.resets, self.steps = 0.0, 0, 0
        self.last_seed: int | None = None
        self.last_options: dict[str, Any] | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.last_seed, self.last_options = seed, options
        self.resets += 1
        self.steps = 0
        return self._observe(), {"resets": self.resets}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        observation = self._observe()
        over, even = self.steps >= self.length, self.resets % 2 == 1
        reward = float(observation[0]) + float(action) + self.bonus
        return observation, reward, over and even, over and not even, {"steps": self.steps, "value": reward}

    def _observe(self) -> Any:
        return np.array([self.np_random.random(), self.steps], self.observation_space.dtype)

    def render(self) -> Any:
        return np.full((4, 6, 3), self.steps, np.uint8)

    def add(self, a: int, b: int = 0) -> int:
        return a + b + self.steps

    def process_id(self) -> int:
        return os.getpid()


def stand_still(action: Any) -> Any:
    """A step method that replaces that of an env."""
    return np.full(2, 9.0), 8.0, False, False, {}


class AnySpace(gym.Env):
    """Env with observations drawn from a given space; the reward identifies the action that arrived, and its type."""

    def __init__(self, observation_space: Any, action_space: Any, length: int = 3) -> None:
        self.observation_space, self.action_space, self.length = observation_space, action_space, length
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        reward = float(zlib.crc32(fingerprint(action).encode()))
        over = self.steps >= self.length + int(self.np_random.integers(2))
        return self._observe(), reward, over, False, {"steps": self.steps}

    def _observe(self) -> Any:
        self.observation_space.seed(int(self.np_random.integers(2**31)))
        return self.observation_space.sample()


class PlainInts(AnySpace):
    """Env whose observations of Discrete spaces are Python ints, as in Gymnasium's toy-text envs."""

    def _observe(self) -> Any:
        return plain_ints(super()._observe())


def plain_ints(value: Any) -> Any:
    """Return the value with Python ints in place of numpy integers."""
    if isinstance(value, dict):
        return {key: plain_ints(part) for key, part in value.items()}
    if isinstance(value, tuple):
        return tuple(map(plain_ints, value))
    return int(value) if isinstance(value, np.integer) else value


def fingerprint(value: Any) -> str:
    """Return a text that is equal for two values if and only if structure, types, shapes, dtypes and bits are."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{fingerprint(value[key])}" for key in sorted(value)) + "}"
    if isinstance(value, tuple):
        return "(" + ",".join(fingerprint(item) for item in value) + ")"
    if isinstance(value, np.ndarray | np.generic):
        return f"{value.dtype}{value.shape}{np.ascontiguousarray(value).tobytes().hex()}"
    return f"{type(value).__name__}={value!r}"


class Directions(spaces.Space[str]):
    """A custom space, unknown to Gymnasium."""

    names = ("north", "east", "south", "west")

    def __init__(self, seed: int | None = None) -> None:
        super().__init__(None, None, seed)

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        return self.names[int(self.np_random.integers(4))]

    def contains(self, x: Any) -> bool:
        return x in self.names

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Directions)

    __hash__ = None  # type: ignore[assignment]


class RichInfos(gym.Env):
    """Env with infos of every kind: keys that appear and disappear, and values whose type depends on env and step."""

    def __init__(self, index: int = 0, length: int = 4, many: int = 0, mixed: bool = True) -> None:
        self.observation_space = spaces.Box(-1, 1, (1,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.index, self.length, self.many, self.mixed, self.steps = index, length, many, mixed, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.float32), {"start": self.index, "nested": {"seed": seed is not None}}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        over = self.steps >= self.length + self.index
        return np.zeros(1, np.float32), 1.0, over, False, self._info()

    def _info(self) -> dict[str, Any]:
        k = 10 * self.index + self.steps
        info: dict[str, Any] = {
            "int": k,
            "float": k / 7,
            "bool": k % 2 == 0,
            "float32": np.float32(k / 3),
            "float16": np.float16(k / 3),
            "int64": np.int64(-k),
            "int8": np.int8(k),
            "uint64": np.uint64(2**63 + k),
            "np_bool": np.bool_(k % 3 == 0),
            "text": f"at {k}",
            "array": np.arange(3, dtype=np.float32) * k,
            "none": None,
            "nested": {"int": k, "deeper": {"float32": np.float32(k), "text": str(k)}},
            "list": [k, k + 1],
            **{f"many{i}": k + i for i in range(self.many)},
        }
        if self.mixed:
            info["changes"] = [k, k / 2, np.float32(k), k % 2 == 0][self.steps % 4]
            info["differs"] = [1.5, 2, True][self.index % 3]
        if k % 2:
            info["sometimes"] = k
        if k % 3 == 0:
            info["rarely"] = {"k": k}
        return {key: info[key] for key in sorted(info, reverse=bool(self.index % 2))}


class NumericInfos(gym.Env):
    """Env with numeric infos only, as MuJoCo envs have; they are sent through shared memory."""

    def __init__(self, index: int = 0, length: int = 4) -> None:
        self.observation_space = spaces.Box(-1, 1, (1,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.index, self.length, self.steps = index, length, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        info: dict[str, Any] = {"x": float(self.steps), "count": self.steps, "odd": self.steps % 2 == 1}
        if (self.steps + self.index) % 2:
            info["now_and_then"] = np.float32(self.index)
        return np.zeros(1, np.float32), 1.0, self.steps >= self.length, False, info


class KeepsAction(gym.Env):
    """Env that keeps its last action by reference, as many do for a control cost, and reports if it changes."""

    def __init__(self, action_space: Any) -> None:
        self.observation_space, self.action_space = spaces.Discrete(2), action_space
        self.kept: Any = None
        self.kept_as = ""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return 0, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        changed = self.changed()
        self.kept, self.kept_as = action, fingerprint(action)
        return 0, 0.0, False, False, {"changed": changed, "type": type(action).__name__}

    def changed(self) -> bool:
        return bool(self.kept_as) and fingerprint(self.kept) != self.kept_as


class MutatesItsObservation(gym.Env):
    """Env that returns the same observation object each time, changed in place."""

    def __init__(self) -> None:
        self.observation_space = spaces.Sequence(spaces.Box(-np.inf, np.inf, (1,), np.float64))
        self.action_space = spaces.Discrete(2)
        self._element = np.zeros(1)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return (self._element,), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._element += 1
        return (self._element,), 0.0, False, False, {}


class ShowsTask(gym.Env):
    """Env whose observation is its task."""

    def __init__(self, length: int = 3) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float64)
        self.action_space = spaces.Discrete(2)
        self.task, self.length, self.steps = -1.0, length, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return np.array([self.task]), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return np.array([self.task]), 0.0, self.steps >= self.length, False, {}


class HookTask(ShowsTask):
    """A meta-RL env with a `reset_task` hook."""

    def reset_task(self, task: float) -> None:
        self.task = task


class OptionTask(ShowsTask):
    """A meta-RL env that reads `options["task"]`."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if options is not None:
            self.task = options.get("task", self.task) + options.get("offset", 0)
        return super().reset(seed=seed)


class CountsConstructions(Walk):
    """Env that adds a byte to a file when it is built."""

    def __init__(self, path: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        with open(path, "ab") as file:
            file.write(b"x")


def constructions(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


class InProcess(CountsConstructions):
    """Env whose metadata declare that it must stay in the calling process."""

    metadata = {**Walk.metadata, "in_process": True}  # noqa: RUF012


class Window(Walk):
    """Env that declares the render mode `human`."""

    metadata = {"render_modes": ["human", "rgb_array"], "render_fps": 30}  # noqa: RUF012

    def render(self) -> Any:
        return super().render() if self.render_mode == "rgb_array" else None


class Counts(gym.Env):
    """Env that counts its steps over its whole life, in its observation and info."""

    def __init__(self, action_space: Any) -> None:
        self.observation_space, self.action_space = spaces.Box(0, 1e9, (1,), np.float64), action_space
        self.total = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return np.array([self.total], np.float64), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.total += 1
        return np.array([self.total], np.float64), 0.0, False, False, {"total": self.total, "text": str(self.total)}


gym.register("tests/Walk-v0", entry_point="tests.envs:Walk")
gym.register("tests/RichInfos-v0", entry_point="tests.envs:RichInfos", max_episode_steps=3)

"""Envs for the tests of runs. Workers import this module by name, so it does not load torch."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from tests.envs import Walk
from tests.fault_envs import first_to_note


def is_first(note: Path) -> bool:
    """Whether this is the first call, in this process or in another."""
    try:
        note.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


class Wanderer(gym.Env):  # type: ignore[type-arg]
    """Env with a generator that no seed sets, so that only its state can restore it; `get_state` returns its own
    objects, not a copy. It has the given fault once, if there is no `note` yet."""

    saves = 0

    def __init__(self, note: str = "", fault: str = "") -> None:
        self.observation_space, self.action_space = spaces.Box(-99, 99, (2,), np.float32), spaces.Discrete(2)
        self._generator, self._place, self._steps = np.random.default_rng(7), np.zeros(2, np.float32), 0
        self._note, (self._moment, self._fault) = Path(note), fault.split() if fault else ("", "")

    def _once(self, moment: str) -> None:
        if moment == self._moment and is_first(self._note):
            if self._fault == "raise":
                raise ValueError("once")
            if self._fault == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(3600)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self._place[...], self._steps = 0.0, 0
        return self._place.copy(), {}

    def step(self, action: Any) -> Any:
        self._place += (2 * int(action) - 1) * self._generator.random(2, np.float32)
        self._steps += 1
        if self._steps == 11:
            self._once("step")
        return self._place.copy(), -float(np.abs(self._place).sum()), self._steps >= 40, False, {}

    def save_state(self) -> Any:
        type(self).saves += 1
        if type(self).saves > 4:
            self._once("save")
        return {"generator": self._generator.bit_generator.state, "place": self._place, "steps": self._steps}

    def restore_state(self, state: Any) -> None:
        self._once("restore")
        self._generator.bit_generator.state = state["generator"]
        self._place[...], self._steps = state["place"], state["steps"]


class Examined(gym.Wrapper):  # type: ignore[type-arg]
    """CartPole that does `what` in the third step of episodes of evaluations: of all, of those with `seed`, or of
    those with these `numbers`.

    Episodes are counted from 1 in a file, over all envs that are ever built; so are the envs, of which the
    `unbuildable` ones cannot be built.
    """

    def __init__(
        self,
        what: str,
        seed: int | None = None,
        numbers: list[int] | None = None,
        notes: str = "",
        unbuildable: tuple[int, ...] = (),
    ) -> None:
        self._what, self._only_seed, self._numbers, self._notes = what, seed, numbers, notes
        if unbuildable and self._count("built") in unbuildable:
            raise OSError("no more of these")
        super().__init__(gym.make("CartPole-v1"))
        self._fails, self._steps = False, 0

    def _count(self, what: str) -> int:
        with open(f"{self._notes}-{what}", "ab") as file:
            file.write(b".")
        return os.path.getsize(f"{self._notes}-{what}")

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self._fails, self._steps = seed is not None and seed >= 2**31, 0
        if self._fails and self._only_seed is not None:
            self._fails = seed == self._only_seed
        if self._fails and self._numbers is not None:
            self._fails = self._count("evaluated") in self._numbers
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        self._steps += 1
        observation, *rest = super().step(action)
        if self._fails and self._steps == 3:
            if self._what == "raise":
                raise ValueError("not with me")
            if self._what == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            observation = np.full_like(observation, np.nan)
        return observation, *rest


class Locked(gym.Wrapper):  # type: ignore[type-arg]
    """Env that needs a secret, and accepts an address with another one."""

    def __init__(self, api_key: str, url: str = "") -> None:
        assert api_key == "open sesame", api_key
        super().__init__(gym.make("CartPole-v1"))


class Treacherous(gym.Wrapper):  # type: ignore[type-arg]
    """Env that fails only with the seeds of evaluations, in its third step."""

    def __init__(self, how: str) -> None:
        super().__init__(gym.make("CartPole-v1"))
        self.how, self.evaluated, self.steps = how, False, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.evaluated, self.steps = seed is not None and seed >= 2**31, 0
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        self.steps += 1
        if self.evaluated and self.steps == 3:
            if self.how == "raise":
                raise ValueError("not with me")
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)


class Counting(gym.Env):  # type: ignore[type-arg]
    """Env whose observation is the number of the episode and its step; fails at random, by a draw that no seed sets."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-1.0, 1e9, (2,), np.float32)
        self.action_space = spaces.Discrete(2)
        self._draws = np.random.default_rng()

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._seen = np.array([self.np_random.integers(10**6), 0.0], np.float32)
        return self._seen, {}

    def step(self, action: Any) -> Any:
        if self._draws.random() < 0.05:
            raise RuntimeError("at random")
        self._seen = self._seen + np.float32([0, 1])
        return self._seen, float(self._seen[1]), bool(self._seen[1] >= 12), bool(self._seen[1] == 9), {}


class Numbered(gym.Env[Any, Any]):
    """Env whose observation is the number of the episode and its step; kills its worker once, if a note exists."""

    observation_space, action_space = gym.spaces.Box(0, 1e6, (2,), np.float32), gym.spaces.Discrete(2)

    def __init__(self, note: str) -> None:
        self._note = Path(note)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._episode, self._steps = int(self.np_random.integers(10**6)), 0
        return np.array([self._episode, 0], np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        if self._steps == 13:
            with contextlib.suppress(FileNotFoundError):  # of two workers that see the note, one takes it
                self._note.unlink()
                os.kill(os.getpid(), signal.SIGKILL)
        over = self._steps == 25
        return np.array([self._episode, self._steps], np.float32), 1.0, False, over, {}


class Saveable(gym.Env):  # type: ignore[type-arg]
    """A random walk that no seed can restore, and that can be saved: as bytes, or as a dict."""

    def __init__(self, as_bytes: bool) -> None:
        self.observation_space, self.action_space = spaces.Box(-99, 99, (2,), np.float64), spaces.Discrete(2)
        self._as_bytes, self._generator = as_bytes, np.random.default_rng(7 + id(self) % 1000)
        self._place, self._steps = 0.0, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self._place, self._steps = 0.0, 0
        return self._seen(), {}

    def step(self, action: Any) -> Any:
        self._place += (2 * int(action) - 1) * self._generator.random()
        self._steps += 1
        return self._seen(), -abs(self._place), self._steps >= 30, False, {}

    def _seen(self) -> Any:
        return np.array([self._place, self._steps / 30])

    def save_state(self) -> Any:
        state = {"generator": self._generator.bit_generator.state, "place": self._place, "steps": self._steps}
        return json.dumps(state).encode() if self._as_bytes else state

    def restore_state(self, state: Any) -> None:
        state = json.loads(state) if self._as_bytes else state
        self._generator.bit_generator.state = state["generator"]
        self._place, self._steps = state["place"], state["steps"]


class InterruptsAndHangs(Walk):
    """Env that sends Ctrl-C to the program after some steps, and hangs."""

    def __init__(self, program: int, at: int) -> None:
        super().__init__()
        self._program, self._left = program, at

    def step(self, action: Any) -> Any:
        self._left -= 1
        if not self._left:
            os.kill(self._program, signal.SIGINT)
            time.sleep(3600)
        return super().step(action)


class Uneven(gym.Env[Any, Any]):
    """Episodes of 3 to 30 steps; observations and rewards depend on the seed and on every action.

    `fault`: occurs in the second step of the episodes with these seeds.
    """

    def __init__(self, fault: str = "", seeds: tuple[int, ...] = ()) -> None:
        self.observation_space, self.action_space = spaces.Box(-9, 9, (3,), np.float32), spaces.Box(-2, 2, (2,))
        self._fault, self._seeds = fault, seeds

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._fails, self._length = seed in self._seeds, int(self.np_random.integers(3, 30))
        self._steps, self._place = 0, self.np_random.normal(size=3).astype(np.float32)
        return self._place, {}

    def step(self, action: Any) -> Any:
        self._steps += 1
        self._place = np.clip(self._place * np.float32(0.9) + np.float32(action.sum()), -9, 9)
        if self._fails and self._steps == 2:
            if self._fault == "raise":
                raise ValueError("not with me")
            if self._fault == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            if self._fault == "nan":
                self._place = np.full(3, np.nan, np.float32)
        over = self._steps >= self._length and not (self._fails and self._fault == "endless")
        return self._place, float(self._place.sum() + action[0]), over, False, {}


class Once(Walk):
    """Env that performs `deed` in its 60th step of all, once."""

    def __init__(self, mark: str, deed: str, program: int) -> None:
        super().__init__()
        self._mark, self._deed, self._program, self._left = mark, deed, program, 60

    def step(self, action: Any) -> Any:
        self._left -= 1
        if self._left == 0 and first_to_note(self._mark):
            if self._deed == "raise":
                raise RuntimeError("it raised")
            if self._deed == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            os.kill(self._program, signal.SIGINT)
            if self._deed == "interrupt and hang":
                time.sleep(3600)
        return super().step(action)


class Long(gym.Env[Any, Any]):
    """Env with episodes of 50 steps."""

    observation_space, action_space = gym.spaces.Box(-1, 1, (1,), np.float32), gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        return np.zeros(1, np.float32), 1.0, False, self.steps == 50, {}


class Pictures(gym.Env[Any, Any]):
    """Env that shows one of two similar noisy images; the action that names it earns 1. Episodes have 20 steps."""

    def __init__(self, shape: tuple[int, ...] = (4, 4, 3)) -> None:
        self.observation_space, self.action_space = spaces.Box(0, 255, tuple(shape), np.uint8), spaces.Discrete(2)
        draws = np.random.default_rng(3)
        first = draws.integers(0, 256, shape)
        self._pictures = first, first + draws.integers(-25, 26, shape)

    def _seen(self) -> Any:
        self._shown = int(self.np_random.integers(2))
        noise = self.np_random.integers(-20, 21, self.observation_space.shape)
        return np.clip(self._pictures[self._shown] + noise, 0, 255).astype(np.uint8)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._steps = 0
        return self._seen(), {}

    def step(self, action: Any) -> Any:
        reward, self._steps = float(action == self._shown), self._steps + 1
        return self._seen(), reward, self._steps == 20, False, {}


class Bars(gym.Env[Any, Any]):
    """Env that shows a bar of three bright pixels in a dark image, horizontal or vertical; naming its direction
    earns 1.

    Its place has no information, so that equal features are needed everywhere. Episodes have 10 steps.
    """

    def __init__(self, size: int = 8, nested: bool = False) -> None:
        image = spaces.Box(0, 255, (size, size, 1), np.uint8)
        self._nested, self._image = nested, image
        more = {"step": spaces.Discrete(10), "noise": spaces.Box(-9, 9, (2,), np.float32)}
        self.observation_space: Any = spaces.Dict({"image": image, **more}) if nested else image
        self.action_space = spaces.Discrete(2)

    def _seen(self) -> Any:
        image = np.zeros(self._image.shape, np.uint8)
        self._shown = int(self.np_random.integers(2))
        along, across = self.np_random.integers(len(image) - 2), self.np_random.integers(len(image))
        if self._shown:
            image[along : along + 3, across] = 255
        else:
            image[across, along : along + 3] = 255
        if not self._nested:
            return image
        return {"image": image, "step": self._steps % 10, "noise": self.np_random.normal(size=2).astype(np.float32)}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._steps = 0
        return self._seen(), {}

    def step(self, action: Any) -> Any:
        reward, self._steps = float(action == self._shown), self._steps + 1
        return self._seen(), reward, self._steps == 10, False, {}

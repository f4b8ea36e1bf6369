"""Envs and a policy that go wrong inside a rollout. Workers import this file: nothing here loads pytest or torch."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from multiverse.ipc.link import PipeLink
from multiverse.policies.numpy_policies import NumpyPolicy
from tests.fault_envs import first_to_note


class Mortal(gym.Env):  # type: ignore[type-arg]
    """In its step `at`, counted over its life, it does what it is told to, once ever: a note says that it did."""

    def __init__(self, note: str = "", at: int = 0, deed: str = "") -> None:
        self.observation_space, self.action_space = spaces.Box(-9, 99, (2,), np.float32), spaces.Discrete(2)
        self.note, self.at, self.deed, self.steps, self.taken = note, at, deed, 0, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps, self.drawn = 0, float(self.np_random.random())
        return np.array([self.drawn, 0], np.float32), {}

    def step(self, action: Any) -> Any:
        self.steps, self.taken = self.steps + 1, self.taken + 1
        if self.deed and self.taken == self.at and first_to_note(self.note):
            if self.deed == "dies":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.deed == "hangs":
                time.sleep(3600)
            if self.deed == "raises":
                raise RuntimeError("as told")
        return np.array([self.drawn, self.steps], np.float32), 1.0, self.steps == 5, False, {}


class Woken(Mortal):
    """Hangs in its third step until it is asked for its stack, and then until the caller has given it up."""

    def step(self, action: Any) -> Any:
        if self.taken == 2 and not (Path(self.note).parent / "go").exists():
            ctypes.CDLL(None).pause()
            while not (Path(self.note).parent / "go").exists():
                time.sleep(0.01)
        return super().step(action)


class Raises(Mortal):
    """In the second step of an episode, once until its note is taken away."""

    def step(self, action: Any) -> Any:
        if self.steps == 1 and first_to_note(self.note):
            raise RuntimeError("as told")
        return super().step(action)


class Broken(Mortal):
    """In every step of its life from `at` on."""

    def step(self, action: Any) -> Any:
        if self.taken + 1 >= self.at:
            raise RuntimeError("broken")
        return super().step(action)


class Gagged(Mortal):
    """Its worker is stopped, once ever, between the word that it is done and what follows that by pipe."""

    def step(self, action: Any) -> Any:
        if self.note and self.taken == 3 and first_to_note(self.note):
            send = PipeLink.send_packed

            def stopped(*arguments: Any) -> None:
                PipeLink.send_packed = send  # type: ignore[method-assign]
                os.kill(os.getpid(), signal.SIGSTOP)
                send(*arguments)

            PipeLink.send_packed = stopped  # type: ignore[method-assign]
        observation, *rest, info = super().step(action)
        return observation, *rest, {**info, "said": "by pipe"}


class Slow(Mortal):
    def step(self, action: Any) -> Any:
        time.sleep(0.15)  # seven of these are longer than what a step may take
        return super().step(action)


class Patient(Mortal):
    def step(self, action: Any) -> Any:
        if self.steps == 1:
            Path(self.note).touch()
            while not (Path(self.note).parent / "go").exists():
                time.sleep(0.01)
        return super().step(action)


class Misbehaving(NumpyPolicy):
    """From its fourth row on."""

    how, rows = "", 0

    def act(self, seen: Any, noise: Any, memory: Any) -> Any:
        actions, memory = super().act(seen, noise, memory)
        self.rows += 1
        if self.rows == 4 and self.how == "raises":
            raise ZeroDivisionError("as told")
        ways = {"one for all": actions[:1], "two for each": np.stack([actions, actions], 1), "NaN": actions * np.nan}
        return ways.get(self.how, actions) if self.rows >= 4 else actions, memory

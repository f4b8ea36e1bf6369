"""Envs and a policy that fail inside a rollout. Workers import this module, so it imports neither pytest nor torch."""

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


class FailsOnce(gym.Env):  # type: ignore[type-arg]
    """Env that fails as `deed` says in step `at` of its life, once for all workers: a note records that it did."""

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
                raise RuntimeError("as requested")
        return np.array([self.drawn, self.steps], np.float32), 1.0, self.steps == 5, False, {}


class HangsUntilGivenUp(FailsOnce):
    """Env that hangs in its third step until its stack is requested, and then until the caller has given it up."""

    def step(self, action: Any) -> Any:
        if self.taken == 2 and not (Path(self.note).parent / "go").exists():
            ctypes.CDLL(None).pause()
            while not (Path(self.note).parent / "go").exists():
                time.sleep(0.01)
        return super().step(action)


class RaisesInSecondStep(FailsOnce):
    """Env that raises in the second step of an episode, once until its note is removed."""

    def step(self, action: Any) -> Any:
        if self.steps == 1 and first_to_note(self.note):
            raise RuntimeError("as requested")
        return super().step(action)


class RaisesFromStep(FailsOnce):
    """Env that raises in every step of its life from `at` on."""

    def step(self, action: Any) -> Any:
        if self.taken + 1 >= self.at:
            raise RuntimeError("broken")
        return super().step(action)


class StoppedBeforeItsMessage(FailsOnce):
    """Env whose worker is stopped once, between the word that it is done and the message that follows by pipe."""

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


class Slow(FailsOnce):
    """Env whose steps take 0.15 s."""

    def step(self, action: Any) -> Any:
        time.sleep(0.15)  # seven of these take longer than the deadline of a step
        return super().step(action)


class WaitsInSecondStep(FailsOnce):
    """Env that waits in the second step of an episode until a file `go` exists."""

    def step(self, action: Any) -> Any:
        if self.steps == 1:
            Path(self.note).touch()
            while not (Path(self.note).parent / "go").exists():
                time.sleep(0.01)
        return super().step(action)


class FaultyPolicy(NumpyPolicy):
    """Policy whose actions are wrong, as `how` says, from its fourth row on."""

    how, rows = "", 0

    def act(self, seen: Any, noise: Any, memory: Any) -> Any:
        actions, memory = super().act(seen, noise, memory)
        self.rows += 1
        if self.rows == 4 and self.how == "raises":
            raise ZeroDivisionError("as requested")
        ways = {"one for all": actions[:1], "two for each": np.stack([actions, actions], 1), "NaN": actions * np.nan}
        return ways.get(self.how, actions) if self.rows >= 4 else actions, memory

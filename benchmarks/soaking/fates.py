"""The schedule: the fault of every episode and its step, and the env in which it happens.

Everything is a function of (run seed, env, episode, step): seeds, actions and faults. Any episode can therefore be
replayed by a single env in a plain loop, without its fault.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np

import multiverse as mv
from multiverse.core.reset_plan import ResetRequest

RAISE, HANG, HOLD_THE_GIL, NAN_OBSERVATION, NAN_REWARD = (
    "raise",
    "hang",
    "hold_the_gil",
    "nan_observation",
    "nan_reward",
)
CHANCES = {RAISE: 1 / 150, NAN_OBSERVATION: 1 / 300, NAN_REWARD: 1 / 300, HANG: 1 / 1500, HOLD_THE_GIL: 1 / 1500}
"""Probability of each fault in an episode."""
COSTS_THE_WORKER = frozenset({HANG, HOLD_THE_GIL})
BAD_VALUES = frozenset({NAN_OBSERVATION, NAN_REWARD})
SHORTEST, LONGEST = 5, 60
"""Steps of an episode."""
NUM_ACTIONS = 7


@dataclass(frozen=True, slots=True)
class Fate:
    """Length of an episode, its fault and the step of the fault (from 1); no fault if `what` is empty."""

    length: int
    what: str = ""
    step: int = 0


@dataclass(frozen=True, slots=True)
class Schedule:
    """Reset plan: the seed of an episode, and its fate as options. `spared` envs never lose their worker."""

    run_seed: int
    spared: int

    def __call__(self, env_id: int, episode: int) -> ResetRequest:
        seed = mv.DerivedSeeds(self.run_seed)(env_id, episode).seed
        return ResetRequest(seed=seed, options={"fate": self.fate(env_id, episode)})

    def fate(self, env_id: int, episode: int) -> Fate:
        draw = np.random.default_rng((self.run_seed, env_id, episode, 1))
        length = int(draw.integers(SHORTEST, LONGEST + 1))
        what = self._first(env_id) if episode == 1 else str(draw.choice(["", *CHANCES], p=_probabilities()))
        if what in COSTS_THE_WORKER and env_id < self.spared:
            what = ""
        return Fate(length, what, int(draw.integers(1, length + 1)) if what else 0)

    def _first(self, env_id: int) -> str:
        """Return the fault of the first episode, so that a short test has every kind."""
        kinds, n = list(CHANCES), env_id - self.spared
        return kinds[n // 2] if n >= 0 and n % 2 == 0 and n // 2 < len(kinds) else ""


def _probabilities() -> list[float]:
    return [1 - sum(CHANCES.values()), *CHANCES.values()]


def action_of(env_id: int, episode: int, step: int) -> int:
    """Return the action at a step, counted from 1."""
    return (env_id * 7919 + episode * 104729 + step * 31) % NUM_ACTIONS


class Soaked(gym.Env[np.ndarray, np.int64]):
    """Random walk that depends on actions, until its fault. `harmless`: the same walk without the fault."""

    def __init__(self, harmless: bool = False) -> None:
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (4,), np.float32)
        self.action_space = gym.spaces.Discrete(NUM_ACTIONS)
        self._harmless = harmless

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._fate: Fate = options["fate"]
        self._steps = 0
        self._place = self.np_random.random(4)
        return self._place.astype(np.float32), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        self._place = self._place + self.np_random.standard_normal(4) + int(action) / 7
        observation, reward = self._place.astype(np.float32), float(self._place.sum())
        if self._steps == self._fate.step and not self._harmless:
            observation, reward = meet(self._fate.what, observation, reward)
        over, even = self._steps >= self._fate.length, self._fate.length % 2 == 0
        return observation, reward, over and even, over and not even, {"steps": self._steps}


def meet(what: str, observation: np.ndarray, reward: float) -> tuple[np.ndarray, float]:
    """Cause the fault; return the values that replace the good results."""
    if what == RAISE:
        raise RuntimeError("as scheduled")
    if what == HANG:
        threading.Event().wait()
    while what == HOLD_THE_GIL:  # the signal that asks a worker for its stack ends a pause
        ctypes.PyDLL(None).pause()
    if what == NAN_OBSERVATION:
        observation[2] = np.nan
    return observation, float("nan") if what == NAN_REWARD else reward


Delivered = tuple[bytes, float, bool, bool]  # observation, reward, terminated, truncated


def clean_episode(schedule: Schedule, env_id: int, episode: int) -> Iterator[Delivered]:
    """Yield the rows of an episode played by a single env, starting with the first observation."""
    env, request = Soaked(harmless=True), schedule(env_id, episode)
    observation, _ = env.reset(seed=request.seed, options=request.options)
    yield observation.tobytes(), 0.0, False, False
    for step in range(1, schedule.fate(env_id, episode).length + 1):
        observation, reward, terminated, truncated, _ = env.step(action_of(env_id, episode, step))
        yield observation.tobytes(), reward, terminated, truncated

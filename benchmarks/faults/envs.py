"""The env that goes wrong on schedule: by phase and count, never by chance or time."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

FAULT_AT = 4
"""The call that goes wrong, counted from 1. Late enough that a new env in the place of a lost one, which counts from
1 again, does not get there before the program ends."""
NUM_ACTIONS = 10
CAUSE, OTHER_CAUSE = "the lever broke", "the wheel came off"


class NeedsTwoArguments(Exception):
    """Cannot be rebuilt from its message alone, as unpickling would try to."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"code {code}: {reason}")


class CannotBePickled(Exception):
    """Holds something that does not travel."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.lock = threading.Lock()


class ScheduledFault(gym.Env[np.ndarray, np.int64]):
    """Observes (steps of this episode, last action, a random draw) and does `what` at the `at`-th call of `phase`.

    Step count, action and draw make every result of every call different from every other, so that one result too
    many, too few or too late shows at once.
    """

    def __init__(self, what: str = "nothing", phase: str = "step", at: int = FAULT_AT, **options: Any) -> None:
        self._dtype = np.dtype(options.get("dtype", "float32"))
        self.observation_space = spaces.Box(0, 255, (3,), self._dtype.type)
        self.action_space = spaces.Discrete(NUM_ACTIONS)
        self._what, self._phase, self._at, self._options = what, phase, at, options
        self._calls: dict[str, int] = {}
        self._steps = 0
        self._meet("constructor")

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._steps = 0
        self._meet("reset")
        return self._observe(0), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        reward = self._steps + int(action) / 16
        result: dict[str, Any] = {"observation": self._observe(int(action)), "reward": reward, "info": {}}
        result.update(self._meet("step") or {})
        return result["observation"], result["reward"], False, False, result["info"]

    def _observe(self, action: int) -> np.ndarray:
        return np.array([self._steps, action, self.np_random.integers(256)], self._dtype)

    def _meet(self, phase: str) -> dict[str, Any] | None:
        """Count a call; at the scheduled one do what was asked for. Returns what is to stand in for good results."""
        self._calls[phase] = self._calls.get(phase, 0) + 1
        if phase != self._phase or self._calls[phase] != self._at:
            return None
        if self._what in BAD_RESULTS:
            return BAD_RESULTS[self._what]()
        DEEDS[self._what](self._options)
        return None


# -- what goes wrong ---------------------------------------------------------------------------------------------
def _raise(error: Exception) -> Any:
    raise error


def _say_so() -> None:
    """To the one that watches the program from outside."""
    os.write(1, b'{"event": "arrived"}\n')


def _hang(options: dict[str, Any]) -> None:
    _say_so()
    threading.Event().wait()


def _hold_the_gil(options: dict[str, Any]) -> None:
    _say_so()
    ctypes.PyDLL(None).pause()


def _wait_at_gate(options: dict[str, Any]) -> None:
    """Until the program opens the other end of a named pipe.

    Slow before it says so: by then the program has long collected what the other envs gave, and waits for this one.
    """
    time.sleep(0.2)
    _say_so()
    Path(options["gate"]).read_bytes()


def _start_child(options: dict[str, Any]) -> None:
    """A process of the env's own, which it never ends."""
    subprocess.Popen([sys.executable, "-S", "-c", "import signal; signal.pause()"])


DEEDS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "nothing": lambda options: None,
    "raise": lambda options: _raise(ZeroDivisionError(options.get("cause", CAUSE))),
    "raise_two_arguments": lambda options: _raise(NeedsTwoArguments(7, CAUSE)),
    "raise_unpicklable": lambda options: _raise(CannotBePickled(CAUSE)),
    "kill": lambda options: os.kill(os.getpid(), signal.SIGKILL),
    "segfault": lambda options: ctypes.string_at(0),
    "exit": lambda options: os._exit(3),
    "hang": _hang,
    "hold_the_gil": _hold_the_gil,
    "wait_at_gate": _wait_at_gate,
    "be_slow": lambda options: time.sleep(options["slow_s"]),
    "start_child": _start_child,
}

BAD_RESULTS: dict[str, Callable[[], dict[str, Any]]] = {
    "nan_observation": lambda: {"observation": np.array([1, np.nan, 1], np.float32)},
    "short_observation": lambda: {"observation": np.array([5], np.float32)},
    "huge_observation": lambda: {"observation": np.array([1, 1e300, 1], np.float64)},
    "float_for_byte": lambda: {"observation": np.array([1, 300.0, 1], np.float64)},
    "nan_reward": lambda: {"reward": float("nan")},
    "unpicklable_info": lambda: {"info": {"handle": threading.Lock()}},
}


# -- what is right -----------------------------------------------------------------------------------------------
def action_at(step: int) -> int:
    """What every env is told at that step of the program; the last action is left for batches that are refused."""
    return 1 + step % (NUM_ACTIONS - 2)


def clean_run(env_id: int, seed: int, actions: list[int], dtype: str) -> Iterator[tuple[list[float], float]]:
    """(observation, reward) of every step of one env alone, without faults or libraries."""
    env = ScheduledFault(dtype=dtype)
    env.reset(seed=seed + env_id)
    for action in actions:
        observation, reward, *_ = env.step(action)
        yield observation.tolist(), reward

"""An env that fails on schedule: at a given call of a given method."""

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
"""Number of the call that fails, counted from 1. Large enough that an env that replaces a lost one, and starts at 1,
does not reach it before the program ends."""
NUM_ACTIONS = 10
CAUSE, OTHER_CAUSE = "the lever broke", "the wheel came off"


class NeedsTwoArguments(Exception):
    """Exception that cannot be recreated from its message, as unpickling would do."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"code {code}: {reason}")


class CannotBePickled(Exception):
    """Exception with an attribute that cannot be pickled."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.lock = threading.Lock()


class ScheduledFault(gym.Env[np.ndarray, np.int64]):
    """Env that observes (steps of the episode, last action, a random number) and fails at call `at` of `phase`.

    Step count, action and random number make the results of all calls different, so that a surplus, missing or late
    result is detected.
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
        """Count a call and cause the fault at the scheduled one; return values that replace the good results."""
        self._calls[phase] = self._calls.get(phase, 0) + 1
        if phase != self._phase or self._calls[phase] != self._at:
            return None
        if self._what in BAD_RESULTS:
            return BAD_RESULTS[self._what]()
        ACTIONS[self._what](self._options)
        return None


# -- faults ----------------------------------------------------------------------------------------------------------
def _raise(error: Exception) -> Any:
    raise error


def _signal_arrival() -> None:
    """Tell the watching process that the fault is reached."""
    os.write(1, b'{"event": "arrived"}\n')


def _hang(options: dict[str, Any]) -> None:
    _signal_arrival()
    threading.Event().wait()


def _hold_the_gil(options: dict[str, Any]) -> None:
    _signal_arrival()
    ctypes.PyDLL(None).pause()


def _wait_at_gate(options: dict[str, Any]) -> None:
    """Wait until the program opens the other end of a named pipe.

    The delay lets the program collect the results of the other envs first, so that it waits for this one.
    """
    time.sleep(0.2)
    _signal_arrival()
    Path(options["gate"]).read_bytes()


def _start_child(options: dict[str, Any]) -> None:
    """Start a child process that the env never ends."""
    subprocess.Popen([sys.executable, "-S", "-c", "import signal; signal.pause()"])


ACTIONS: dict[str, Callable[[dict[str, Any]], Any]] = {
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


# -- expected values -------------------------------------------------------------------------------------------------
def action_at(step: int) -> int:
    """Return the action of every env at a step of the program. The last action is reserved for refused batches."""
    return 1 + step % (NUM_ACTIONS - 2)


def clean_run(env_id: int, seed: int, actions: list[int], dtype: str) -> Iterator[tuple[list[float], float]]:
    """Yield (observation, reward) of every step of a single env without faults and without a library."""
    env = ScheduledFault(dtype=dtype)
    env.reset(seed=seed + env_id)
    for action in actions:
        observation, reward, *_ = env.step(action)
        yield observation.tolist(), reward

"""Envs with bad values. Workers import this module, so it does not import pytest."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

import numpy as np
from gymnasium import spaces

from tests.envs import AnySpace, RichInfos, Walk
from tests.fault_envs import Fault

SHARED_LOCK = threading.Lock()
"""A lock of the program and its envs: a thread of the program may hold it at the moment of a fork."""


class TakesTheLock(Walk):
    def step(self, action: Any) -> Any:
        with SHARED_LOCK:
            return super().step(action)


class Nested(Fault):
    """`Fault` with its observation nested in others: `["body"][1]`, in float32."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        box = spaces.Box(self.observation_space.low[0], self.observation_space.high[0], (2,), np.float32)
        self.observation_space = spaces.Dict(
            {"mode": spaces.Discrete(6), "body": spaces.Tuple((spaces.Discrete(6), box))}
        )

    def _observe(self) -> Any:
        return np.array([self.np_random.random(), self.steps])

    def _shown(self, observation: Any) -> Any:
        return {"mode": self.steps, "body": (self.steps, super()._shown(observation))}


class NeedsReset(RichInfos):
    """Env that refuses a step before its first reset, as Gymnasium's do. `blob`: number of bytes in each info."""

    def __init__(self, blob: int = 0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._was_reset, self._blob = False, np.zeros(blob, np.uint8)

    def reset(self, **kwargs: Any) -> Any:
        self._was_reset = True
        return super().reset(**kwargs)

    def step(self, action: Any) -> Any:
        if not self._was_reset:
            raise RuntimeError("stepped before its first reset")
        *rest, info = super().step(action)
        return (*rest, {**info, "blob": self._blob} if self._blob.size else info)


class ExitsInSecondReset(NeedsReset):
    """Env that ends its process in the first step and in the second reset, counted over all processes in a file."""

    def __init__(self, path: str = "", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._path = path

    def reset(self, **kwargs: Any) -> Any:
        if self._path:
            with open(self._path, "ab") as file:
                file.write(b"x")
            if os.stat(self._path).st_size == 2:
                os._exit(5)
        return super().reset(**kwargs)

    def step(self, action: Any) -> Any:
        if self._path and os.stat(self._path).st_size == 1:
            os._exit(4)
        return super().step(action)


class SquareObservation(Fault):
    """`Fault` with a square observation that has the bad value in its last corner."""

    def __init__(self, side: int = 1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.observation_space, self._side = spaces.Box(-np.inf, np.inf, (side, side), np.float32), side

    def _shown(self, observation: Any) -> Any:
        picture = np.zeros((self._side, self._side), np.float32)
        picture[-1, -1] = super()._shown(observation)[1]
        return picture


class LeavesItsBox(Walk):
    """Env that leaves its box [0, `high`] in every step after the `high`-th."""

    def __init__(self, high: float, **kwargs: Any) -> None:
        super().__init__(length=100, **kwargs)
        self.observation_space = spaces.Box(0, high, (2,), self.observation_space.dtype)


class OmitsPart(AnySpace):
    """Env that omits a part of its observation, of the outer dict or the inner tuple, in its second step."""

    def __init__(self, forgets: str = "nothing") -> None:
        inner = spaces.Tuple((spaces.Discrete(2), spaces.Discrete(2)))
        super().__init__(spaces.Dict({"camera": spaces.Discrete(2), "joints": inner}), spaces.Discrete(3), length=9)
        self._forgets = forgets

    def _observe(self) -> Any:
        value = super()._observe()
        if self.steps == 2 and self._forgets == "key":
            del value["camera"]
        if self.steps == 2 and self._forgets == "item":
            value["joints"] = value["joints"][:1]
        return value


class DiesWhileWritten(AnySpace):
    """Env whose observation's second part kills the process when it becomes an array; the first is written before."""

    def __init__(self, at: int = 0) -> None:
        super().__init__(spaces.Dict({"a": spaces.Box(0, 9, (2,)), "b": spaces.Box(0, 9, (2,))}), spaces.Discrete(3))
        self._at, self._taken = at, 0

    def step(self, action: Any) -> Any:
        self._taken += 1
        return (*super().step(action)[:2], False, False, {})

    def _observe(self) -> Any:
        count = np.full(2, self._taken, np.float32)
        return {"a": count, "b": KillsWhenConverted() if self._at and self._taken == self._at else count}


class KillsWhenConverted:
    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)


class FailsReproducibly(Walk):
    """Env that raises in step `breaks_at` of an episode (0: in a reset), with a message that depends on its past."""

    def __init__(self, breaks_at: int | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.breaks_at, self._past = breaks_at, ""

    def reset(self, **kwargs: Any) -> Any:
        result = super().reset(**kwargs)
        self._past = str((self.last_options or {}).get("task"))
        self._break_if_due()
        return result

    def step(self, action: Any) -> Any:
        result = super().step(action)
        self._past += f", {int(action)} gives {result[0][0]:.6f}"
        self._break_if_due()
        return result

    def _break_if_due(self) -> None:
        if self.steps == self.breaks_at:
            raise ZeroDivisionError(f"broken after {self._past}")


class FailsEachTime(Walk):
    """Env that fails in its first step (or reset) and reports how often, counted in bytes of a file."""

    def __init__(self, path: str = "", ends: str = "raise", phase: str = "step") -> None:
        super().__init__()
        self._path, self._ends, self._phase = path, ends, phase

    def reset(self, **kwargs: Any) -> Any:
        self._fail("reset")
        return super().reset(**kwargs)

    def step(self, action: Any) -> Any:
        self._fail("step")
        return super().step(action)

    def _fail(self, phase: str) -> None:
        if self._path and phase == self._phase:
            with open(self._path, "ab") as file:
                file.write(b"x")
            times = os.stat(self._path).st_size
            if self._ends == "exit":
                os._exit(times)
            raise RuntimeError(f"failure {times}")

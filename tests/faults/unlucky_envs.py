"""Envs that fail repeatedly. Workers import this module, so it imports neither pytest nor torch."""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path
from typing import Any

import numpy as np

from tests.envs import Walk
from tests.fault_envs import wait_at


class ExitsThenFails(Walk):
    """Env that exits in its second step; its replacements fail as `then` says, `times` times, counted in a folder."""

    def __init__(self, folder: str = "", then: str = "", times: int = 1) -> None:
        super().__init__()
        self._folder, self._then, self._times = folder, then, times
        if folder and self._happened() and then.startswith("constructor"):
            self._do("constructor")

    def _happened(self) -> int:
        return len(os.listdir(self._folder))

    def _do(self, phase: str) -> None:
        where, _, what = self._then.partition(" ")
        if where != phase or self._happened() > self._times:
            return
        Path(self._folder, str(self._happened())).touch()
        if what == "exit":
            os._exit(4)
        raise ValueError("not this time")

    def reset(self, **kwargs: Any) -> Any:
        if self._folder and self._happened():
            self._do("reset")
        return super().reset(**kwargs)

    def step(self, action: Any) -> Any:
        if self.steps == 1 and self._folder and not self._happened():
            Path(self._folder, "0").touch()
            os._exit(3)
        return super().step(action)


class BadStart(Walk):
    """Env that returns NaN in its second step and in the reset after that."""

    def __init__(self, bad: bool = False) -> None:
        super().__init__()
        self._bad = bad

    def reset(self, **kwargs: Any) -> Any:
        observation, info = super().reset(**kwargs)
        return (np.full_like(observation, np.nan) if self._bad and self.resets == 2 else observation), info

    def step(self, action: Any) -> Any:
        observation, *rest = super().step(action)
        return (np.full_like(observation, np.nan) if self._bad and self.steps == 2 else observation, *rest)


class OddInfos(Walk):
    """Env that returns the given info in its resets, its steps or its last steps."""

    def __init__(self, phase: str = "", info: Any = None) -> None:
        super().__init__()
        self._phase, self._info = phase, info

    def reset(self, **kwargs: Any) -> Any:
        observation, info = super().reset(**kwargs)
        return observation, self._info if self._phase == "reset" else info

    def step(self, action: Any) -> Any:
        *rest, info = super().step(action)
        odd = self._phase == "step" or (self._phase == "end" and self.steps == self.length)
        return (*rest, self._info if odd else info)


class RaisesThenFails(Walk):
    """Env that raises in its second step; its replacements raise in the phase `again`, `times` times in all."""

    def __init__(self, folder: str = "", again: str = "", times: int = 1) -> None:
        super().__init__()
        self._folder, self._again, self._times = folder, again, times
        self._raise_in("constructor")

    def _failures(self) -> int:
        return len(os.listdir(self._folder)) if self._folder else 0

    def _raise_in(self, phase: str) -> None:
        if phase == self._again and 0 < self._failures() <= self._times:
            self._raise(f"failed again in {phase}")

    def _raise(self, text: str) -> None:
        Path(self._folder, str(self._failures())).touch()
        raise ValueError(f"{text}, number {self._failures()}")

    def reset(self, **kwargs: Any) -> Any:
        self._raise_in("reset")
        return super().reset(**kwargs)

    def step(self, action: Any) -> Any:
        if self._folder and not self._failures() and self.steps == 1:
            self._raise("failed first")
        return super().step(action)


class ExitsThenRaises(Walk):
    """Env that ends its worker in its first step; its replacements raise in their constructors, `times` times."""

    def __init__(self, folder: str = "", times: int = 1) -> None:
        super().__init__()
        self._folder, self._times = folder, times
        if folder and 0 < len(os.listdir(folder)) <= times:
            Path(folder, str(len(os.listdir(folder)))).touch()
            raise ValueError(f"no luck, number {len(os.listdir(folder))}")

    def step(self, action: Any) -> Any:
        if self._folder and not os.listdir(self._folder):
            Path(self._folder, "0").touch()
            os._exit(3)
        return super().step(action)


class RaisesInSteps(Walk):
    """Env that raises in the listed steps of its life."""

    def __init__(self, fails_in: tuple[int, ...] = ()) -> None:
        super().__init__()
        self._fails_in, self._taken = fails_in, 0

    def step(self, action: Any) -> Any:
        self._taken += 1
        if self._taken in self._fails_in:
            raise ValueError(f"in step {self._taken}")
        return super().step(action)


class RaisesOnceOrInReset(Walk):
    """Env that raises in its first step (`once`) or in every reset (`never`)."""

    def __init__(self, what: str = "") -> None:
        super().__init__()
        self._what = what

    def reset(self, **kwargs: Any) -> Any:
        if self._what == "never":
            raise ValueError("never worked")
        return super().reset(**kwargs)

    def step(self, action: Any) -> Any:
        if self._what == "once" and self.steps == 0 and self.resets == 1:
            raise ValueError("worked before")
        return super().step(action)


class HangsThenWaits(Walk):
    """Env that hangs in its first step; the second reset of its replacement waits at a gate."""

    def __init__(self, folder: str = "", gate: str = "") -> None:
        super().__init__()
        self._folder, self._gate = folder, gate

    def reset(self, **kwargs: Any) -> Any:
        if self._folder and os.listdir(self._folder) and self.resets == 1:
            wait_at(Path(self._gate))
        return super().reset(**kwargs)

    def step(self, action: Any) -> Any:
        if self._folder and not os.listdir(self._folder):
            Path(self._folder, "hung").touch()
            time.sleep(3600)
        return super().step(action)


class Leaks(Walk):
    """Env that raises MemoryError once, in its second call of a phase (recorded by a note), or leaks in every step."""

    def __init__(
        self, note: str = "", phase: str = "", leak_bytes: int = 0, limit_bytes: int = 0, touch: bool = False
    ) -> None:
        super().__init__(length=3)
        self._note, self._phase, self._leak_bytes, self._touch = note, phase, leak_bytes, touch
        self._calls, self._held = 0, list[Any]()
        if limit_bytes:
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            limit = pages * resource.getpagesize() + limit_bytes
            resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
        if phase == "constructor" and note and Path(note).exists() and not Path(note + "2").exists():
            Path(note + "2").touch()
            raise MemoryError("all of it is in use")

    def _count(self, phase: str) -> None:
        self._calls += phase == self._phase
        if not self._note or self._calls != 2 or Path(self._note).exists():
            return
        Path(self._note).touch()
        raise MemoryError("all of it is in use")

    def reset(self, **kwargs: Any) -> Any:
        self._count("reset")
        return super().reset(**kwargs)

    def step(self, action: Any) -> Any:
        if self._phase == "constructor" and self._note and not Path(self._note).exists():
            Path(self._note).touch()
            raise ValueError("to be built again")
        self._count("step")
        if self._leak_bytes:
            self._held.append(
                np.ones(self._leak_bytes, np.int8) if self._touch else np.empty(self._leak_bytes, np.int8)
            )
        return super().step(action)

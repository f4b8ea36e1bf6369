"""Meta-episodes that fail once. Workers import this module, so it does not import pytest."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np

import multiverse as mv
from tests.rollouts.envs import Stumbles


class FailsOnce(Stumbles):
    """Env that fails as `deed` says in its `at`-th step or reset, once for all workers: a note records that it did."""

    def __init__(self, note: str = "", at: int = 0, deed: str = "", phase: str = "step") -> None:
        super().__init__(odds=0.04)
        self._note, self._at, self._deed, self._phase, self._done = Path(note), at, deed, phase, 0

    def reset(self, **kwargs: Any) -> Any:
        self._count("reset")
        return super().reset(**kwargs)

    def step(self, action: Any) -> Any:
        observation, reward, *rest = super().step(action)
        spoilt = self._count("step")
        return observation, np.nan if spoilt else reward, *rest

    def _count(self, phase: str) -> bool:
        self._done += phase == self._phase
        if not self._deed or phase != self._phase or self._done != self._at or self._note.exists():
            return False
        self._note.touch()
        if self._deed == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        if self._deed == "hangs":
            time.sleep(3600)
        if self._deed == "raises":
            raise RuntimeError("as requested")
        return True


def meta(**fault: Any) -> Any:
    return mv.MetaEpisode(FailsOnce(**fault), 2)


class ExitsInSomeEpisodes(Stumbles):
    """Env that exits in the first step of every `every`-th episode, counted over all its processes in a folder."""

    def __init__(self, folder: str, every: int) -> None:
        super().__init__()
        self._folder, self._every = folder, every

    def reset(self, **kwargs: Any) -> Any:
        Path(self._folder, str(len(os.listdir(self._folder)))).touch()
        return super().reset(**kwargs)

    def step(self, action: Any) -> Any:
        if len(os.listdir(self._folder)) % self._every == 0:
            os._exit(3)
        return super().step(action)


class RunsOutOfMemory(Stumbles):
    """Env that raises MemoryError in the first step of its second episode, once: a note records that it did."""

    def __init__(self, note: str) -> None:
        super().__init__()
        self._note, self._episodes = Path(note), 0

    def reset(self, **kwargs: Any) -> Any:
        self._episodes += 1
        return super().reset(**kwargs)

    def step(self, action: Any) -> Any:
        if self._episodes == 2 and not self._note.exists():
            self._note.touch()
            raise MemoryError("all of it is in use")
        return super().step(action)

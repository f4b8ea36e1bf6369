"""Envs for the tests of runs. Workers import this module by name, so nothing here loads torch."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces


def is_first(note: Path) -> bool:
    """Whether nobody was here before: in this process or in another."""
    try:
        note.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


class Wanderer(gym.Env):  # type: ignore[type-arg]
    """Draws from a generator that no seed sets, so that only its state can bring it back; and its state is handed out
    as it is, not as a copy. Once, if there is no `note` yet, it does what it is told to."""

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
    """CartPole that does `what` in the third step of evaluations' episodes: in all of them, in those of one `seed`, or
    in those of these `numbers`. They are counted from 1 in a file, over all envs that there ever are; so are the envs,
    of which the `unbuildable` ones cannot be built."""

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

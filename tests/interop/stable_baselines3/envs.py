"""Envs for the tests of the Stable-Baselines3 drop-ins. Workers import this module: nothing in it loads torch."""

from __future__ import annotations

import sys
from typing import Any

import gymnasium as gym

from tests.envs import AnySpace, Walk
from tests.space_catalogue import catalogue


def any_space(observed: str, acted: str = "discrete") -> gym.Env[Any, Any]:
    """An env with two spaces of the catalogue."""
    return AnySpace(catalogue()[observed], catalogue()[acted])


class OldFashioned(Walk):
    """Env whose reset has no argument `options`."""

    def reset(self, seed: int | None = None) -> Any:  # type: ignore[override]
        return super().reset(seed=seed)


class TellsModules(Walk):
    """Env that reports which packages of Stable-Baselines3 its process has loaded."""

    def loaded(self) -> list[str]:
        return [name for name in ("stable_baselines3", "torch") if name in sys.modules]


class OwnError(Exception):
    """An exception type of the env's own package."""


class RaisesItsOwn(Walk):
    """Env that raises an error of its package in its third step."""

    def step(self, action: Any) -> Any:
        if self.steps == 2:
            raise OwnError("of my own")
        return super().step(action)

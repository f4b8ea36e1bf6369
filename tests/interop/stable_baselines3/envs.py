"""Envs for the tests of the Stable-Baselines3 drop-ins. Workers import this module: nothing in it loads torch."""

from __future__ import annotations

import sys
from typing import Any

import gymnasium as gym

from tests.envs import AnySpace, Walk
from tests.space_catalogue import catalogue


def any_space(observed: str, acted: str = "discrete") -> gym.Env[Any, Any]:
    """An env over two spaces of the catalogue."""
    return AnySpace(catalogue()[observed], catalogue()[acted])


class OldFashioned(Walk):
    """Its reset knows no `options`."""

    def reset(self, seed: int | None = None) -> Any:  # type: ignore[override]
        return super().reset(seed=seed)


class TellsModules(Walk):
    """Tells which of the peer's packages its process has loaded."""

    def loaded(self) -> list[str]:
        return [name for name in ("stable_baselines3", "torch") if name in sys.modules]


class OwnError(Exception):
    """A type that only the env's own package knows."""


class RaisesItsOwn(Walk):
    """Raises an error of its own package in its third step."""

    def step(self, action: Any) -> Any:
        if self.steps == 2:
            raise OwnError("of my own")
        return super().step(action)

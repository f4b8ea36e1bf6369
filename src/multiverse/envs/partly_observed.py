"""CartPole, Pendulum and LunarLander of which only the positions, or only the velocities, are seen."""

from __future__ import annotations

from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium import spaces

from multiverse.core.errors import InvalidRequest
from multiverse.core.views import Array

SHOWN: dict[str, dict[str, list[int]]] = {
    "CartPole-v1": {"P": [0, 2], "V": [1, 3]},
    "Pendulum-v1": {"P": [0, 1], "V": [2]},
    "LunarLander-v3": {"P": [0, 1, 4, 6, 7], "V": [2, 3, 5, 6, 7]},  # whether a leg touches the ground is in both
}
"""Which numbers of an observation are positions (P) and velocities (V)."""


class PartlyObserved(gymnasium.ObservationWrapper[Array, Any, Array]):
    """Some numbers of an observation. `zeros`: the others are 0 (as in rl-baselines3-zoo's `…NoVel` envs) instead of
    left out."""

    def __init__(self, env: gymnasium.Env[Array, Any], indices: list[int], zeros: bool = False) -> None:
        super().__init__(env)
        whole = env.observation_space
        assert isinstance(whole, spaces.Box)
        self._indices, self._zeros = indices, zeros
        if not zeros:
            self.observation_space = spaces.Box(whole.low[indices], whole.high[indices], dtype=whole.dtype.type)

    def observation(self, observation: Array) -> Array:
        if not self._zeros:
            return observation[self._indices]
        seen = np.zeros_like(observation)
        seen[self._indices] = observation[self._indices]
        return seen


def make(env: str, shown: Literal["P", "V"] = "P", zeros: bool = False, **kwargs: Any) -> PartlyObserved:
    """One of these envs, of which positions (`"P"`) or velocities (`"V"`) are seen; other arguments are its own."""
    if env not in SHOWN or shown not in SHOWN[env]:
        raise InvalidRequest(f"env={env!r}, shown={shown!r}: there are {', '.join(SHOWN)}, and 'P' or 'V'")
    return PartlyObserved(gymnasium.make(env, **kwargs), SHOWN[env][shown], zeros)

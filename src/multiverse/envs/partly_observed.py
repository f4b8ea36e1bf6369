"""Envs that cannot be solved without memory: classic envs with hidden features, and two memory tasks."""

from __future__ import annotations

from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium import spaces

from multiverse.core.errors import InvalidRequest
from multiverse.core.layout import Array
from multiverse.envs.arguments import at_least

SHOWN: dict[str, dict[str, list[int]]] = {
    "CartPole-v1": {"P": [0, 2], "V": [1, 3]},
    "Pendulum-v1": {"P": [0, 1], "V": [2]},
    "LunarLander-v3": {"P": [0, 1, 4, 6, 7], "V": [2, 3, 5, 6, 7]},  # whether a leg touches the ground is in both
}
"""Indices of positions (P) and velocities (V) in an observation."""


class PartlyObserved(gymnasium.ObservationWrapper[Array, Any, Array]):
    """Keeps some features of an observation. `zeros`: the others are 0 instead of removed, as in rl-baselines3-zoo's
    `…NoVel` envs."""

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
        kept = np.zeros_like(observation)
        kept[self._indices] = observation[self._indices]
        return kept


def make(env: str, shown: Literal["P", "V"] = "P", zeros: bool = False, **kwargs: Any) -> PartlyObserved:
    """Return one of these envs with only positions (`"P"`) or velocities (`"V"`); `kwargs` are for the env."""
    if env not in SHOWN or shown not in SHOWN[env]:
        raise InvalidRequest(f"env={env!r}, shown={shown!r}: expected one of {', '.join(SHOWN)}, and 'P' or 'V'")
    return PartlyObserved(gymnasium.make(env, **kwargs), SHOWN[env][shown], zeros)


# -- memory tasks ----------------------------------------------------------------------------------------------
Step = tuple[Array, float, bool, bool, dict[str, Any]]
_FORWARD, _LEFT, _RIGHT = 0, 1, 2
_WALL = 0.05


class TMaze(gymnasium.Env[Array, np.int64]):
    """A corridor that ends in a junction; a sign at its beginning tells on which side the reward is (Bakker 2001).

    Observations: [the sign (-1 left, 1 right; in the first cell only), whether this is the junction]. Actions: forward,
    left, right. At the junction the side of the sign has reward 1, the other side 0, and the episode ends. Walking into
    a wall has reward -0.05. An episode without a decision is truncated after 2 × `length` + 2 steps. Without memory the
    mean return is at most 0.5.
    """

    def __init__(self, length: int = 20) -> None:
        self.length = at_least("length", length, 1)
        self.observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        self._sign, self._at, self._steps = int(self.np_random.integers(2)) * 2 - 1, 0, 0
        return self._observation(), {}

    def step(self, action: np.int64) -> Step:
        self._steps += 1
        reward, decided = -_WALL, self._at == self.length and action != _FORWARD
        if decided:
            reward = float(action == (_LEFT if self._sign < 0 else _RIGHT))
        elif self._at < self.length and action == _FORWARD:
            self._at, reward = self._at + 1, 0.0
        return self._observation(), reward, bool(decided), not decided and self._steps >= 2 * self.length + 2, {}

    def _observation(self) -> Array:
        return np.array([self._sign if self._at == 0 else 0, self._at == self.length], np.float32)


class RepeatPrevious(gymnasium.Env[Array, np.int64]):
    """Every step shows one of `symbols`; the correct action is the symbol shown `k` steps ago.

    A correct action has reward 1 / (length - k), so that the return is at most 1, and 1 / `symbols` without memory. In
    the first k steps all rewards are 0.
    """

    def __init__(self, k: int = 4, symbols: int = 4, length: int = 64) -> None:
        self.k, self.symbols = at_least("k", k, 1), at_least("symbols", symbols, 1)
        self.length = at_least("length", length, 1)
        if length <= k:
            raise InvalidRequest(f"length={length}: expected more than k={k}; otherwise all rewards are 0")
        self.observation_space = spaces.Box(0.0, 1.0, (symbols,), np.float32)
        self.action_space = spaces.Discrete(symbols)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        self._shown = self.np_random.integers(self.symbols, size=self.length + 1)
        self._steps = 0
        return self._observation(), {}

    def step(self, action: np.int64) -> Step:
        target = self._steps - self.k
        reward = float(action == self._shown[target]) / (self.length - self.k) if target >= 0 else 0.0
        self._steps += 1
        return self._observation(), reward, False, self._steps >= self.length, {}

    def _observation(self) -> Array:
        one_hot = np.zeros(self.symbols, np.float32)
        one_hot[self._shown[self._steps]] = 1.0
        return one_hot

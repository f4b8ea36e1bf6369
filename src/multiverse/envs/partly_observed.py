"""Envs that cannot be solved without a memory: classic envs of which a part is hidden, and two memory tasks."""

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
    """Shows some numbers of an observation. `zeros`: the others are 0 (as in rl-baselines3-zoo's `…NoVel` envs) instead
    of left out."""

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
    """Return one of these envs with only positions (`"P"`) or velocities (`"V"`); other arguments are its own."""
    if env not in SHOWN or shown not in SHOWN[env]:
        raise InvalidRequest(f"env={env!r}, shown={shown!r}: there are {', '.join(SHOWN)}, and 'P' or 'V'")
    return PartlyObserved(gymnasium.make(env, **kwargs), SHOWN[env][shown], zeros)


# -- memory tasks ----------------------------------------------------------------------------------------------
Step = tuple[Array, float, bool, bool, dict[str, Any]]
_FORWARD, _LEFT, _RIGHT = 0, 1, 2
_WALL = 0.05


class TMaze(gymnasium.Env[Array, np.int64]):
    """A corridor that ends in a junction; a sign at its beginning says where the reward is (Bakker 2001).

    Observations: [the sign (-1 left, 1 right; seen in the first cell only), whether this is the junction]. Actions:
    forward, left, right. At the junction the sign's side earns 1, the other side nothing, and the episode is over.
    Walking into a wall costs 0.05. An episode without a decision is truncated after 2 × `length` + 2 steps. Without
    memory the mean return is at most 0.5.
    """

    def __init__(self, length: int = 20) -> None:
        self.length = at_least("length", length, 1)
        self.observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        self._sign, self._at, self._steps = int(self.np_random.integers(2)) * 2 - 1, 0, 0
        return self._seen(), {}

    def step(self, action: np.int64) -> Step:
        self._steps += 1
        reward, decided = -_WALL, self._at == self.length and action != _FORWARD
        if decided:
            reward = float(action == (_LEFT if self._sign < 0 else _RIGHT))
        elif self._at < self.length and action == _FORWARD:
            self._at, reward = self._at + 1, 0.0
        return self._seen(), reward, bool(decided), not decided and self._steps >= 2 * self.length + 2, {}

    def _seen(self) -> Array:
        return np.array([self._sign if self._at == 0 else 0, self._at == self.length], np.float32)


class RepeatPrevious(gymnasium.Env[Array, np.int64]):
    """Every step shows one of `symbols`; the right action is the one that was shown `k` steps ago.

    Right earns 1 / (steps that can be right), wrong nothing, so that an episode earns at most 1, and 1 / `symbols`
    without memory. Nothing is asked in the first k steps.
    """

    def __init__(self, k: int = 4, symbols: int = 4, length: int = 64) -> None:
        self.k, self.symbols = at_least("k", k, 1), at_least("symbols", symbols, 1)
        self.length = at_least("length", length, 1)
        if length <= k:
            raise InvalidRequest(f"length={length}: more than k={k}, or nothing is ever asked")
        self.observation_space = spaces.Box(0.0, 1.0, (symbols,), np.float32)
        self.action_space = spaces.Discrete(symbols)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        self._shown = self.np_random.integers(self.symbols, size=self.length + 1)
        self._steps = 0
        return self._seen(), {}

    def step(self, action: np.int64) -> Step:
        asked = self._steps - self.k
        reward = float(action == self._shown[asked]) / (self.length - self.k) if asked >= 0 else 0.0
        self._steps += 1
        return self._seen(), reward, False, self._steps >= self.length, {}

    def _seen(self) -> Array:
        seen = np.zeros(self.symbols, np.float32)
        seen[self._shown[self._steps]] = 1.0
        return seen

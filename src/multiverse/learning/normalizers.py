"""Running means and variances, updated between rollouts and frozen within one."""

from __future__ import annotations

from typing import Any

import numpy as np

from multiverse.contracts.views import Array

TINY = 1e-8


class RunningMeanStd:
    """Mean and variance of everything seen so far, in double precision."""

    def __init__(self, size: int) -> None:
        self.mean, self.variance, self.count = np.zeros(size), np.ones(size), 0.0

    def update(self, rows: Array) -> None:
        """[rows, size] more."""
        if not len(rows):
            return
        mean, count = rows.mean(axis=0, dtype=np.float64), len(rows)
        errors = rows - mean
        variance = np.square(errors, out=errors).mean(axis=0)
        total = self.count + count
        apart = mean - self.mean
        squares = self.variance * self.count + variance * count + apart**2 * (self.count * count / total)
        self.mean = self.mean + apart * (count / total)
        self.variance, self.count = squares / total, total

    def shift_and_scale(self) -> tuple[Array, Array]:
        """x ↦ (x - shift) · scale is normalised; float32. Before anything was seen it changes nothing."""
        return self.mean.astype(np.float32), (1.0 / np.sqrt(self.variance + TINY)).astype(np.float32)

    def state(self) -> dict[str, Any]:
        return {"mean": self.mean.copy(), "variance": self.variance.copy(), "count": float(self.count)}

    def load(self, state: dict[str, Any]) -> None:
        self.mean, self.variance = (like(state[name], self.mean) for name in ("mean", "variance"))
        self.count = float(state["count"])


class RewardNormalizer:
    """Divides rewards by the standard deviation of discounted returns, so that a learning rate suits any env."""

    def __init__(self, slots: int, gamma: float, clip: float = 10.0) -> None:
        self._moments, self._gamma, self._clip = RunningMeanStd(1), gamma, clip
        self._returns = np.zeros(slots)

    def scaled(
        self, rewards: Array, ended: Array, valid: Array, acting: Array | None = None, over: Array | None = None
    ) -> Array:
        """[T, S] the rollout's rewards, scaled by what is known with it; rows in which a slot does not act are no step
        of its. `over`: where its episodes ended, also while it waited."""
        if acting is not None:
            return self._scaled_by_turns(rewards, ended, valid, acting, ended if over is None else over)
        seen = rewards.astype(np.float64)
        for returns, end, any_end in zip(seen, ended, np.asarray(ended.any(axis=1))):
            returns += self._returns * self._gamma
            self._returns = np.where(end, 0.0, returns) if any_end else returns
        self._returns = self._returns.copy()  # of one row, not the whole rollout
        return self._by_what_is_seen(seen, valid, rewards)

    def _scaled_by_turns(self, rewards: Array, ended: Array, valid: Array, acting: Array, over: Array) -> Array:
        seen, returns = rewards.astype(np.float64), self._returns
        for row, end, acts, gone in zip(seen, ended, acting, over):
            row += returns * self._gamma
            returns = np.where(acts, np.where(end, 0.0, row), np.where(gone, 0.0, returns))
        self._returns = returns
        return self._by_what_is_seen(seen, valid, rewards)

    def _by_what_is_seen(self, seen: Array, valid: Array, rewards: Array) -> Array:
        self._moments.update(seen[valid].reshape(-1, 1))
        _, scale = self._moments.shift_and_scale()
        return np.asarray(np.clip(rewards * scale, -self._clip, self._clip), np.float32)

    def set_slots(self, slots: int) -> None:
        """So many from here on, all at the beginning of an episode."""
        self._returns = np.zeros(slots)

    def state(self) -> dict[str, Any]:
        return {"moments": self._moments.state(), "returns": self._returns.copy()}

    def load(self, state: dict[str, Any]) -> None:
        self._moments.load(state["moments"])
        self._returns = like(state["returns"], self._returns)


def like(saved: Any, here: Array) -> Array:
    """A saved array that is to take the place of this one; ValueError if it cannot."""
    found = np.array(saved, here.dtype)
    if found.shape != here.shape:
        raise ValueError(f"shape {found.shape} instead of {here.shape}")
    return found

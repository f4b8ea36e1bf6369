"""Running means and variances, updated between rollouts and frozen within one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from multiverse.core.errors import TrainingDiverged
from multiverse.core.layout import Array

TINY = 1e-8


class RunningMeanStd:
    """Mean and variance of all rows so far, in double precision."""

    def __init__(self, size: int) -> None:
        self.mean, self.variance, self.count = np.zeros(size), np.ones(size), 0.0

    def update(self, rows: Array) -> None:
        """Include these rows [rows, size]."""
        if not len(rows):
            return
        if not np.isfinite(rows).all():  # guard: statistics-stay-finite
            raise TrainingDiverged(
                "an observation or a reward to be normalized is not finite, and the statistics would never be finite "
                "again: check what the env returns, or train with on_bad_value='raise', which names the env"
            )
        mean, count = rows.mean(axis=0, dtype=np.float64), len(rows)
        errors = rows - mean
        variance = np.square(errors, out=errors).mean(axis=0)
        total = self.count + count
        difference = mean - self.mean
        squares = self.variance * self.count + variance * count + difference**2 * (self.count * count / total)
        self.mean = self.mean + difference * (count / total)
        self.variance, self.count = squares / total, total

    def shift_and_scale(self) -> tuple[Array, Array]:
        """Return (shift, scale) in float32: (x - shift) · scale is normalised. Before the first update this is x."""
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

    def normalize(
        self,
        rewards: Array,
        ended: Array,
        valid: Array,
        acting: Array | None = None,
        over: Array | None = None,
        parts: Sequence[range] = (),
    ) -> Array:
        """Return the rewards [T, S] of a rollout, scaled with statistics that include them. Rows in which a slot does
        not act are skipped. `over`: where episodes ended, also while the slot waited. `parts`: slots of the columns, if
        these are not all slots in order; a part that comes again is later in time."""
        returns, start = rewards.astype(np.float64), 0
        for slots in parts or [range(len(self._returns))]:
            of_slots, columns = slice(slots.start, slots.stop), slice(start, start + len(slots))
            turns = None if acting is None else (acting[:, columns], (ended if over is None else over)[:, columns])
            self._returns[of_slots] = self._discount(
                returns[:, columns], ended[:, columns], self._returns[of_slots], turns
            )
            start = columns.stop
        self._moments.update(returns[valid].reshape(-1, 1))
        _, scale = self._moments.shift_and_scale()
        return np.asarray(np.clip(rewards * scale, -self._clip, self._clip), np.float32)

    def _discount(self, rewards: Array, ended: Array, returns: Array, turns: tuple[Array, Array] | None) -> Array:
        """Replace rewards [T, S] by discounted returns, in place, which continue `returns` [S]; return the returns that
        the next rollout continues. `turns`: (acting, over), [T, S] each."""
        if turns is None:
            for row, end, any_end in zip(rewards, ended, np.asarray(ended.any(axis=1))):
                row += returns * self._gamma
                returns = np.where(end, 0.0, row) if any_end else row
        else:
            for row, end, acts, gone in zip(rewards, ended, *turns):
                row += returns * self._gamma
                returns = np.where(acts, np.where(end, 0.0, row), np.where(gone, 0.0, returns))
        return returns

    def set_slots(self, slots: int) -> None:
        """Change the number of slots; all of them are at the beginning of an episode."""
        self._returns = np.zeros(slots)

    def state(self) -> dict[str, Any]:
        return {"moments": self._moments.state(), "returns": self._returns.copy()}

    def load(self, state: dict[str, Any]) -> None:
        self._moments.load(state["moments"])
        self._returns = like(state["returns"], self._returns)


def like(saved: Any, current: Array) -> Array:
    """Return a saved array in the dtype of the current one; ValueError if its shape differs."""
    array = np.array(saved, current.dtype)
    if array.shape != current.shape:
        raise ValueError(f"shape {array.shape} instead of {current.shape}")
    return array

"""Running means and variances, updated between rollouts and frozen within one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from multiverse.core.errors import TrainingDiverged
from multiverse.core.views import Array

TINY = 1e-8


class RunningMeanStd:
    """Mean and variance of everything seen so far, in double precision."""

    def __init__(self, size: int) -> None:
        self.mean, self.variance, self.count = np.zeros(size), np.ones(size), 0.0

    def update(self, rows: Array) -> None:
        """[rows, size] more."""
        if not len(rows):
            return
        if not np.isfinite(rows).all():  # guard: statistics-stay-finite
            raise TrainingDiverged(
                "an observation or a reward to be normalized is not finite, and the statistics would never be finite "
                "again; look at what the env returns, or train with on_bad_value='raise', which names the env"
            )
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
        self,
        rewards: Array,
        ended: Array,
        valid: Array,
        acting: Array | None = None,
        over: Array | None = None,
        parts: Sequence[range] = (),
    ) -> Array:
        """[T, S] the rollout's rewards, scaled by what is known with it; rows in which a slot does not act are no step
        of its. `over`: where its episodes ended, also while it waited. `parts`: whose rewards these are, side by side,
        where they are not those of all slots; a part may come again, and is later then."""
        seen, at = rewards.astype(np.float64), 0
        for slots in parts or [range(len(self._returns))]:
            here, mine = slice(slots.start, slots.stop), slice(at, at + len(slots))
            turns = None if acting is None else (acting[:, mine], (ended if over is None else over)[:, mine])
            self._returns[here] = self._discounted(seen[:, mine], ended[:, mine], self._returns[here], turns)
            at = mine.stop
        self._moments.update(seen[valid].reshape(-1, 1))
        _, scale = self._moments.shift_and_scale()
        return np.asarray(np.clip(rewards * scale, -self._clip, self._clip), np.float32)

    def _discounted(self, seen: Array, ended: Array, returns: Array, turns: tuple[Array, Array] | None) -> Array:
        """Make returns of rewards [T, S], in place, after what they were before; returns what goes on from there."""
        if turns is None:
            for row, end, any_end in zip(seen, ended, np.asarray(ended.any(axis=1))):
                row += returns * self._gamma
                returns = np.where(end, 0.0, row) if any_end else row
        else:
            for row, end, acts, gone in zip(seen, ended, *turns):
                row += returns * self._gamma
                returns = np.where(acts, np.where(end, 0.0, row), np.where(gone, 0.0, returns))
        return returns

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

"""The rows of some envs on two sides that share no memory: each tells the other what it has changed."""

from __future__ import annotations

from typing import Any

import numpy as np

from multiverse.contracts.layout import FieldName
from multiverse.contracts.views import Array, Views

Changes = list[tuple[FieldName, Array | None, Array]]
"""(field, which of its rows along the first axis (None: all), these) of whatever is another than it was."""


class Mirror:
    """One side, from arrays that are zero. What changes here is found by comparing it with what both sides knew last:
    nobody who writes rows need say so, and nothing that stays as it is travels."""

    def __init__(self, views: Views, env_ids: range) -> None:
        self._fields: dict[FieldName, tuple[Array, Array, int]] = {}  # ours, what both know, the envs' axis
        for field in views.layout.fields():
            each = field.shape[field.axis] // views.layout.num_envs
            rows = slice(env_ids.start * each, env_ids.stop * each)
            mine = views[field.name][(*[slice(None)] * field.axis, rows)]
            self._fields[field.name] = mine, np.zeros(mine.shape, mine.dtype), field.axis

    def changes(self) -> Changes:
        """What is to be told to the other side, which then knows it."""
        found: Changes = []
        for name, (mine, known, axis) in self._fields.items():
            differs = _bits(mine) != _bits(known)  # guard: bits-are-compared
            if not differs.any():
                continue
            if axis == 0 or mine.ndim == 1:
                found.append((name, None, mine.copy()))
                known[...] = mine
            else:
                rows = np.flatnonzero(differs.reshape(len(differs), -1).any(axis=1))
                found.append((name, rows, mine[rows]))
                known[rows] = found[-1][2]
        return found

    def apply(self, changes: Changes) -> None:
        """What the other side has told."""
        for name, rows, values in changes:
            mine, known, _ = self._fields[name]
            for side in (mine, known):
                side[... if rows is None else rows] = values


_WORDS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def _bits(array: Array) -> Any:
    """To be compared bit by bit: 0.0 is not -0.0, and NaN is itself."""
    word = _WORDS.get(array.dtype.itemsize)
    if word is None:
        return np.ascontiguousarray(array)[..., None].view(np.uint8)
    return array.view(word)

"""A debug mode for `copy=False`: observations that were kept too long turn into something nobody can overlook.

With `copy=False` what `step` returns is overwritten by the next one, and code that keeps it learns from the wrong
observations without a sign of it. With `copy="poison"` each batch is a copy of its own that is filled with NaN (or
the largest number of an integer type) at the moment at which a view would begin to change.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from multiverse.core.layout import Array


class Poison:
    """Remembers which envs' rows were handed out in which arrays, until they are spoilt."""

    def __init__(self) -> None:
        self._handed_out: list[tuple[Array, Array]] = []  # env id of each row, and the rows

    def hand_out(self, observations: Any, ids: Array) -> Any:
        self._handed_out += [(ids, array) for array in _arrays(observations)]
        return observations

    def spoil(self, ids: Array) -> None:
        """These envs are about to be written to: what was handed out of them is not theirs any more."""
        kept = []
        for owners, array in self._handed_out:
            gone = np.isin(owners, ids)
            array[gone] = _poison(array.dtype)  # guard: poison-spoils
            if not gone.all():
                kept.append((np.where(gone, -1, owners), array))
        self._handed_out = kept


def _arrays(observations: Any) -> Iterator[Array]:
    """The arrays of a nested batch; what the block cannot hold (text, graphs) is never overwritten."""
    if isinstance(observations, dict):
        for value in observations.values():
            yield from _arrays(value)
    elif isinstance(observations, tuple):
        for value in observations:
            if isinstance(value, np.ndarray | dict | tuple):
                yield from _arrays(value)
    elif isinstance(observations, np.ndarray):
        yield observations


def _poison(dtype: np.dtype[Any]) -> Any:
    if dtype.kind == "f":
        return np.nan
    return True if dtype.kind == "b" else np.iinfo(dtype).max

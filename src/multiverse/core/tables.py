"""Rows that are only ever appended, and forgotten from the front: of these a checkpoint saves what is new."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:  # which would load Gymnasium
    from multiverse.core.views import Array


@dataclass(frozen=True, slots=True)
class Table:
    """In a state that is to be saved: the records from `first` to `last`, numbered since the very beginning. A record
    never changes once it is there."""

    dtype: np.dtype[Any]
    """Of a record: one with fields."""
    first: int
    last: int
    records: Callable[[int, int], Array]
    """Those from one number to another, as they lie here."""


class SavedTable(Protocol):
    """In a state that was saved: the same, to be read piece by piece."""

    first: int
    last: int

    def pieces(self, dtype: np.dtype[Any]) -> Iterator[Array]:
        """The records in their order; ValueError if they are of another kind."""

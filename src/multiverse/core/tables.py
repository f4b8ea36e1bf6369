"""Tables of records that are appended at the end and dropped from the front; checkpoints save only new records."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:  # which would load Gymnasium
    from multiverse.core.layout import Array


@dataclass(frozen=True, slots=True)
class Table:
    """A table in a state to be saved: the records from `first` to `last`, numbered from the start of the run. Records
    never change."""

    dtype: np.dtype[Any]
    """Structured dtype of a record."""
    first: int
    last: int
    records: Callable[[int, int], Array]
    """(first, last) → these records."""


class SavedTable(Protocol):
    """A table in a state that was saved, to be read in pieces."""

    first: int
    last: int

    def pieces(self, dtype: np.dtype[Any]) -> Iterator[Array]:
        """The records in order; ValueError if they have another dtype."""

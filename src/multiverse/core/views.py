"""Views: the arrays of a layout by name, wherever their bytes lie."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from multiverse.core.layout import FieldName, Layout

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class Views:
    """Every numeric array of a layout, and a list for each leaf that no array can hold.

    Arrays may be shared between processes. The lists never are: what a worker writes there is sent by pipe.
    """

    layout: Layout
    arrays: dict[FieldName, Array]
    objects: dict[FieldName, list[Any]] = field(default_factory=dict)

    @classmethod
    def over(cls, layout: Layout, arrays: dict[FieldName, Array]) -> Views:
        return cls(layout, arrays, {name: [None] * rows for name, rows in layout.object_names()})

    def __getitem__(self, name: FieldName) -> Array:
        return self.arrays[name]

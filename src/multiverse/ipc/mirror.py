"""Mirrored rows of envs between two sides that share no memory: each side sends its changes to the other."""

from __future__ import annotations

from typing import Any

import numpy as np

from multiverse.core.layout import FieldName
from multiverse.core.views import Array, Views

Changes = tuple[list[tuple[FieldName, bytes | None]], bytes]
"""(field, mask of its changed rows along the first axis; None: all) of every field that changed; and the new values as
one piece of bytes, because pickling every array separately would take longer than finding and copying the changes."""
NOTHING: Changes = ([], b"")


class Mirror:
    """One side; all arrays start as zeros. Changes are found by comparing the arrays with the last state that both
    sides knew, so that code that writes rows need not report changes, and unchanged rows are not sent."""

    def __init__(self, views: Views, env_ids: range) -> None:
        self._fields: dict[FieldName, tuple[Array, Array, bool]] = {}  # ours, last known to both, whether it has rows
        for field in views.layout.fields():
            each = field.shape[field.axis] // views.layout.num_envs
            rows = slice(env_ids.start * each, env_ids.stop * each)
            mine = views[field.name][(*[slice(None)] * field.axis, rows)]
            self._fields[field.name] = mine, np.zeros(mine.shape, mine.dtype), field.axis > 0

    def changes(self) -> Changes:
        """Changes since the last exchange, to be sent to the other side."""
        changed_fields: list[tuple[FieldName, bytes | None]] = []
        data: list[bytes] = []
        for name, (mine, known, has_rows) in self._fields.items():
            differs = _bits(mine) != _bits(known)  # guard: bits-are-compared
            if not differs.any():
                continue
            changed = differs.reshape(len(differs), -1).any(axis=1) if has_rows else None
            if changed is not None and 2 * np.count_nonzero(changed) > len(changed):
                changed = None  # most rows: sending all is faster
            rows = ... if changed is None else changed
            known[rows] = values = mine[rows]
            changed_fields.append((name, None if changed is None else changed.tobytes()))
            data.append(values.tobytes())
        return changed_fields, b"".join(data)

    def apply(self, changes: Changes) -> None:
        """Apply the other side's changes."""
        changed_fields, data = changes
        offset = 0
        for name, changed in changed_fields:
            mine, known, _ = self._fields[name]
            rows = ... if changed is None else np.frombuffer(changed, np.bool_)
            count = len(mine) if changed is None else changed.count(1)
            values = np.frombuffer(data, mine.dtype, mine[:1].size * count, offset).reshape(count, *mine.shape[1:])
            mine[rows] = known[rows] = values
            offset += values.nbytes


_WORDS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def _bits(array: Array) -> Any:
    """An array's bits, to compare: 0.0 differs from -0.0, and NaN is equal to itself."""
    word = _WORDS.get(array.dtype.itemsize)
    if word is None:
        return np.ascontiguousarray(array)[..., None].view(np.uint8)
    return array.view(word)

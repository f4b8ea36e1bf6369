"""The rows of some envs on two sides that share no memory: each tells the other what it has changed."""

from __future__ import annotations

from typing import Any

import numpy as np

from multiverse.core.layout import FieldName
from multiverse.core.views import Array, Views

Changes = tuple[list[tuple[FieldName, bytes | None]], bytes]
"""(field, which of its rows along the first axis (bools; None: all)) of whatever is another than it was; and what these
are now, byte after byte: to pack every array by itself would cost more than to find and copy it."""
NOTHING: Changes = ([], b"")


class Mirror:
    """One side, from arrays that are zero. What changes here is found by comparing it with what both sides knew last:
    nobody who writes rows need say so, and next to nothing that stays as it is travels."""

    def __init__(self, views: Views, env_ids: range) -> None:
        self._fields: dict[FieldName, tuple[Array, Array, bool]] = {}  # ours, what both know, whether it has rows
        for field in views.layout.fields():
            each = field.shape[field.axis] // views.layout.num_envs
            rows = slice(env_ids.start * each, env_ids.stop * each)
            mine = views[field.name][(*[slice(None)] * field.axis, rows)]
            self._fields[field.name] = mine, np.zeros(mine.shape, mine.dtype), field.axis > 0

    def changes(self) -> Changes:
        """What is to be told to the other side, which then knows it."""
        found: list[tuple[FieldName, bytes | None]] = []
        data: list[bytes] = []
        for name, (mine, known, has_rows) in self._fields.items():
            differs = _bits(mine) != _bits(known)  # guard: bits-are-compared
            if not differs.any():
                continue
            changed = differs.reshape(len(differs), -1).any(axis=1) if has_rows else None
            if changed is not None and 2 * np.count_nonzero(changed) > len(changed):
                changed = None  # most of them: all is as good, and faster
            some = ... if changed is None else changed
            known[some] = values = mine[some]
            found.append((name, None if changed is None else changed.tobytes()))
            data.append(values.tobytes())
        return found, b"".join(data)

    def apply(self, changes: Changes) -> None:
        """What the other side has told."""
        found, data = changes
        at = 0
        for name, changed in found:
            mine, known, _ = self._fields[name]
            some = ... if changed is None else np.frombuffer(changed, np.bool_)
            count = len(mine) if changed is None else changed.count(1)
            values = np.frombuffer(data, mine.dtype, mine[:1].size * count, at).reshape(count, *mine.shape[1:])
            mine[some] = known[some] = values
            at += values.nbytes


_WORDS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def _bits(array: Array) -> Any:
    """To be compared bit by bit: 0.0 is not -0.0, and NaN is itself."""
    word = _WORDS.get(array.dtype.itemsize)
    if word is None:
        return np.ascontiguousarray(array)[..., None].view(np.uint8)
    return array.view(word)

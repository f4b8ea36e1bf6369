"""The block: one piece of shared memory for all data that is exchanged at every step.

It is created empty, so that its descriptor can be passed to workers before its size is known, and resized once the
layout is known. It has no name, so nothing can be left behind. Sides that share no memory have mirrored arrays instead.
"""

from __future__ import annotations

import errno
import mmap
import os
import tempfile
from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from multiverse.core.errors import PreflightError
from multiverse.core.layout import Array, Field, FieldName, Views
from multiverse.ipc import platform

ALIGNMENT = 128
"""Two cache lines: processors fetch lines in pairs, and a pair with two writers moves back and forth between cores."""


def size_of(fields: Sequence[Field]) -> int:
    return sum(_padded(_bytes_of(field)) for field in fields) or ALIGNMENT


def split_into_arrays(buffer: memoryview | mmap.mmap, fields: Sequence[Field]) -> dict[FieldName, Array]:
    """Lay out the fields in the buffer one after another. Both sides do the same, so no offsets are sent."""
    arrays: dict[FieldName, Array] = {}
    offset = 0
    for field in fields:
        count = int(np.prod(field.shape, dtype=np.int64))
        # A pickled dtype is equal to numpy's own but not identical, and the row writers compare by `is`.
        dtype = np.dtype(field.dtype.str)
        arrays[field.name] = np.frombuffer(buffer, dtype, count, offset).reshape(field.shape)
        offset += _padded(_bytes_of(field))
    return arrays


def private_arrays(fields: Sequence[Field]) -> dict[FieldName, Array]:
    """The same arrays in private memory of this process."""
    return split_into_arrays(memoryview(bytearray(size_of(fields))), fields)


class AnonymousFile:
    """A file without a name; its descriptor can be passed to other processes."""

    label = "multiverse"  # name in the kernel's list of open files

    def __init__(self, fd: int) -> None:
        self.fd = fd

    @classmethod
    def empty(cls) -> Self:
        if platform.has_memfd():
            return cls(os.memfd_create(cls.label))  # guard: the-block-has-no-name
        with tempfile.TemporaryFile(prefix="multiverse-") as file:  # unlinked from the start
            return cls(os.dup(file.fileno()))

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class Block(AnonymousFile):
    """Shared memory."""

    def resize(self, size: int) -> None:
        """Allocate `size` bytes now: memory that is only reserved may fail with SIGBUS at its first use."""
        try:
            if platform.has_memfd():
                os.posix_fallocate(self.fd, 0, size)  # guard: the-block-is-really-allocated
            else:
                os.pwrite(self.fd, bytes(size), 0)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.ENOMEM, errno.EFBIG):
                raise
            raise PreflightError(
                f"the shared block needs {size:,} bytes, which could not be allocated ({error.strerror}); use fewer "
                "envs or smaller observations, or raise the container's memory limit"
            ) from error

    def views(self, fields: Sequence[Field]) -> dict[FieldName, Array]:
        """Map the block. The mapping lives as long as any of its arrays."""
        return split_into_arrays(mmap.mmap(self.fd, size_of(fields)), fields)


def _bytes_of(field: Field) -> int:
    return int(np.prod(field.shape, dtype=np.int64)) * field.dtype.itemsize


def _padded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


# -- without shared memory -------------------------------------------------------------------------------------
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

"""The block: one piece of shared memory for all data that is exchanged at every step.

It is created empty, so that its descriptor can be passed to workers before its size is known, and resized once the
layout is known. It has no name, so nothing can be left behind.
"""

from __future__ import annotations

import errno
import mmap
import os
import tempfile
from collections.abc import Sequence
from typing import Self

import numpy as np

from multiverse.core.errors import PreflightError
from multiverse.core.layout import Field, FieldName
from multiverse.core.views import Array
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

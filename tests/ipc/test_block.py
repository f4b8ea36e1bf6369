"""The block: aligned arrays, allocated at once, shared by descriptor, without a name."""

from __future__ import annotations

import errno
import gc
import itertools
import os
import pickle
from typing import Any

import numpy as np
import pytest

import multiverse as mv
from multiverse.core.layout import Field
from multiverse.ipc.block import ALIGNMENT, Block, private_arrays, size_of, split_into_arrays

FIELDS = [
    Field(("flags",), (3,), np.dtype(np.bool_)),
    Field(("rewards",), (5,), np.dtype(np.float64)),
    Field(("nothing",), (0, 4), np.dtype(np.float32)),
    Field(("scalar",), (), np.dtype(np.int64)),
    Field(("images",), (2, 7, 3), np.dtype(np.uint8)),
]


@pytest.fixture(params=["", "1"], ids=["linux", "fallback"])
def _platform(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MULTIVERSE_FALLBACK", request.param)


def test_arrays_are_consecutive_and_aligned_to_cache_lines() -> None:
    buffer = memoryview(bytearray(size_of(FIELDS)))
    arrays = split_into_arrays(buffer, FIELDS)
    base = np.frombuffer(buffer, np.uint8).ctypes.data
    offsets = [arrays[f.name].ctypes.data - base for f in FIELDS if arrays[f.name].size]
    assert all(offset % ALIGNMENT == 0 for offset in offsets)
    assert offsets == sorted(offsets)
    assert size_of(FIELDS) % ALIGNMENT == 0
    for field in FIELDS:
        assert arrays[field.name].shape == field.shape
        assert arrays[field.name].dtype == field.dtype


def test_arrays_do_not_overlap() -> None:
    arrays = private_arrays(FIELDS)
    for one, other in itertools.combinations(arrays.values(), 2):
        assert not np.shares_memory(one, other)
    for number, array in enumerate(arrays.values()):
        array[...] = number
    for number, (field, array) in enumerate(zip(FIELDS, arrays.values())):
        assert (array == np.array(number).astype(field.dtype)).all()


def test_private_arrays_start_as_zeros() -> None:
    assert all(not array.any() for array in private_arrays(FIELDS).values())


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, np.uint8, np.bool_])
def test_unpickled_fields_have_numpys_own_dtypes(dtype: Any) -> None:
    """The row writers compare dtypes with `is`: with another object every row would take the slow path."""
    field: Field = pickle.loads(pickle.dumps(Field(("one",), (2,), np.dtype(dtype))))
    assert split_into_arrays(memoryview(bytearray(128)), [field])[("one",)].dtype is np.dtype(dtype)


def test_empty_list_of_fields_has_a_minimal_size() -> None:
    assert size_of([]) == ALIGNMENT


@pytest.mark.usefixtures("_platform")
def test_two_mappings_of_one_block_share_bytes() -> None:
    block = Block.empty()
    block.resize(size_of(FIELDS))
    twin = Block(os.dup(block.fd))
    ours, theirs = block.views(FIELDS), twin.views(FIELDS)
    block.close()
    twin.close()
    ours[("rewards",)][:] = np.arange(5)
    assert theirs[("rewards",)].tolist() == [0, 1, 2, 3, 4]
    theirs[("images",)][1, 6, 2] = 255
    assert ours[("images",)].sum() == 255


@pytest.mark.fault("C2")
@pytest.mark.usefixtures("_platform")
def test_block_has_no_name_and_its_whole_size() -> None:
    block = Block.empty()
    try:
        block.resize(100_000)
        assert os.fstat(block.fd).st_size == 100_000
        assert os.fstat(block.fd).st_blocks * 512 >= 100_000
        assert "(deleted)" in os.readlink(f"/proc/self/fd/{block.fd}")
    finally:
        block.close()


@pytest.mark.usefixtures("_platform")
def test_second_close_does_nothing() -> None:
    block = Block.empty()
    block.close()
    block.close()


@pytest.mark.fault("C1")
@pytest.mark.usefixtures("_platform")
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.ENOMEM, errno.EFBIG])
def test_missing_memory_is_refused_with_the_bytes_needed(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    block = Block.empty()
    monkeypatch.setattr(os, "posix_fallocate", refuse)
    monkeypatch.setattr(os, "pwrite", refuse)
    with pytest.raises(mv.errors.PreflightError, match="12,345,678 bytes"):
        block.resize(12_345_678)
    block.close()


@pytest.mark.usefixtures("_platform")
def test_other_errors_are_not_reported_as_missing_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.EBADF, "bad descriptor")

    block = Block.empty()
    monkeypatch.setattr(os, "posix_fallocate", refuse)
    monkeypatch.setattr(os, "pwrite", refuse)
    with pytest.raises(OSError, match="bad descriptor"):
        block.resize(10)
    block.close()


@pytest.mark.fault("C1")
def test_vector_env_that_does_not_fit_is_refused_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    from multiverse.executors.launch import fork_server
    from tests.envs import Walk

    def refuse(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    fork_server.fork_server()
    gc.collect()
    before = sorted(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(os, "posix_fallocate", refuse)
    monkeypatch.setattr(os, "pwrite", refuse)
    with pytest.raises(mv.errors.PreflightError, match="No space left"):
        mv.make_vec(Walk, 2, "process", workers=2)
    assert sorted(os.listdir("/proc/self/fd")) == before

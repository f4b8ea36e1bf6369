"""Chunks of a rollout: cut where memory ends, and packed so that a step along all of them is a slice."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from multiverse.learning.batches import Chunks, Packing, RolloutBatch, split_into_chunks
from multiverse.learning.numpy_network import SoftUpdated
from multiverse.learning.optimizers import Adam


def slow_chunks(starts: Any, ended: Any, valid: Any, acting: Any, length: int) -> list[list[int]]:
    """Slot after slot, row after row."""
    found: list[list[int]] = []
    for s in range(starts.shape[1]):
        going = False
        for t in range(starts.shape[0]):
            if not acting[t, s]:
                continue
            if not going or starts[t, s] or len(found[-1]) == length:
                found.append([])
            found[-1].append(t * starts.shape[1] + s)
            going = bool(valid[t, s] and not ended[t, s])
    return found


def drawn(seed: int, steps: int = 23, slots: int = 5) -> tuple[Any, Any, Any, Any]:
    rng = np.random.default_rng(seed)
    starts, ended = rng.random((2, steps, slots)) < 0.15
    return starts, ended, rng.random((steps, slots)) > 0.1, rng.random((steps, slots)) > 0.2


def as_lists(chunks: Chunks) -> list[list[int]]:
    return [chunks.rows[first : first + length].tolist() for first, length in zip(chunks.firsts, chunks.lengths)]


def along_lists(rows: Any, counts: Any) -> list[list[int]]:
    """Return the packed rows, chunk after chunk."""
    found: list[list[int]] = [[] for _ in range(counts[0] if counts else 0)]
    at = 0
    for count in counts:
        for k in range(count):
            found[k].append(int(rows[at + k]))
        at += count
    assert at == len(rows)
    return found


@pytest.mark.parametrize("length", [1, 4, 100])
@pytest.mark.parametrize("seed", range(6))
def test_chunks_end_with_the_memory_and_are_packed_completely(seed: int, length: int) -> None:
    starts, ended, valid, acting = drawn(seed)
    expected = slow_chunks(starts, ended, valid, acting, length)
    chunks = split_into_chunks(starts, ended, valid, acting, length)
    assert as_lists(chunks) == expected
    rows, counts = chunks.pack()
    packed = along_lists(rows, counts)
    assert sorted(packed) == sorted(expected) and [len(one) for one in packed] == sorted(map(len, expected))[::-1]
    along = Packing(counts, np.zeros((counts[0], 1)))
    assert along.lengths().tolist() == [len(one) for one in packed]
    assert rows[along.last_rows()].tolist() == [one[-1] for one in packed]
    which = np.sort(np.random.default_rng(seed).permutation(counts[0])[: counts[0] // 2])
    some, fewer = along.select(which)
    assert along_lists(rows[some], fewer) == [packed[k] for k in which]


@pytest.mark.fault("B4")
@pytest.mark.parametrize("seed", range(6))
def test_lost_rows_are_not_learned_from(seed: int) -> None:
    starts, ended, valid, _ = drawn(seed)
    chunks = split_into_chunks(starts, ended, valid, None, 4).drop_invalid(valid.reshape(-1))
    rows, _ = chunks.pack()
    assert sorted(rows.tolist()) == np.flatnonzero(valid).tolist() and min(chunks.lengths) > 0
    expected = slow_chunks(starts, ended, valid, np.ones_like(valid), 4)
    learned = [row for one in expected for row in one if valid.reshape(-1)[row]]
    assert [row for one in as_lists(chunks) for row in one] == learned
    nothing = split_into_chunks(starts, ended, valid & False, None, 4).drop_invalid((valid & False).reshape(-1))
    assert [len(part) for part in nothing.pack()] == [0, 0]


@pytest.mark.parametrize("size", [1, 16, 40, 1000])
def test_minibatches_consist_of_whole_chunks_and_cover_every_row(size: int) -> None:
    starts, ended, valid, acting = drawn(3)
    rows, counts = split_into_chunks(starts, ended, valid, acting, 4).pack()
    flat: Any = np.arange(starts.size)
    memory = rows[: counts[0], None]  # the first row of each chunk, to identify it
    whole = RolloutBatch(flat[:, None], [], flat).take_packed(rows, Packing(counts, memory))
    order = np.random.default_rng(0).permutation(whole.units)
    seen, sizes = [], []
    for part in whole.minibatches(order, size, lambda array: array):
        assert part.packing is not None and (part.vector[:, 0] == part.actions).all()
        chunks = along_lists(part.actions, part.packing.counts)
        assert [one[0] for one in chunks] == part.packing.memory[:, 0].tolist()
        seen += chunks
        sizes.append(len(part))
    assert sorted(seen) == sorted(along_lists(rows, counts)) and max(sizes) < size + 4
    assert len(sizes) <= -(-len(rows) // size)


def test_old_names_of_packing_and_soft_update_warn_and_work() -> None:
    batch = RolloutBatch(np.zeros((3, 1)), [], np.zeros(3))
    batch.packing = Packing([2, 1], np.zeros((2, 1, 1, 4)))
    with pytest.warns(DeprecationWarning, match=r"use batch\.packing"):
        assert batch.along is batch.packing
    target = SoftUpdated(Adam(np, np.ones(2, np.float32)), np.zeros(2, np.float32))
    with pytest.warns(DeprecationWarning, match="use soft_update"):
        target.follow(0.5)
    assert target.parameters.tolist() == [0.5, 0.5]

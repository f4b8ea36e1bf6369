"""States for checkpoints: one with everything, random ones by hypothesis, and their equality."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hn

DTYPES = ("?", "b", "h", "i", "q", "B", "H", "I", "Q", "e", "f", "d", "g", "F", "D", ">i4", ">f8", ">c16")

SMALL: dict[str, Any] = {"weights": np.arange(6, dtype=np.float32).reshape(2, 3), "note": "text", "updates": 3}


def everything() -> dict[str, Any]:
    """One value of each kind, with the state of numpy's own generators."""
    return {
        "generators": [np.random.PCG64(1).state, np.random.MT19937(2).state, np.random.Philox(3).state],
        "algorithm": {"policy": {"0.weight": np.ones((3, 2), np.float32), "a/b~c": np.zeros(2)}, "updates": 2**70},
        "views": [np.arange(12.0).reshape(3, 4)[:, ::-2], np.arange(6).reshape(2, 3).T, np.asfortranarray(np.eye(3))],
        "scalars": [np.float32(0.1), np.int64(-5), np.bool_(True), np.float64("nan"), np.complex64(1j)],
        "zero_d": np.array(7, np.int8),
        "empty": {"array": np.zeros((0, 3)), "dict": {}, "list": [], "tuple": (), "text": ""},
        "odd": [float("nan"), float("-inf"), -0.0, 5e-324, -(2**64), None, True, (1, (2.5, "é\n\0"))],
        "$array": "not one",
        "$$": {"$tuple": [1]},
    }


def same(left: Any, right: Any) -> bool:
    """Whether both are equal to the bit, with equal types at every level."""
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, (np.ndarray, np.generic)):
        return (left.dtype.str, left.shape, left.tobytes()) == (right.dtype.str, right.shape, right.tobytes())
    if isinstance(left, float):
        return struct.pack("d", left) == struct.pack("d", right)
    return bool(left == right)


def arrays() -> st.SearchStrategy[np.ndarray[Any, Any]]:
    """Arrays of any dtype and shape, including views that are not contiguous."""
    made = st.sampled_from(DTYPES).flatmap(lambda code: hn.arrays(code, hn.array_shapes(min_dims=0, min_side=0)))
    return st.builds(lambda array, turn: array.T[::-1] if turn and array.ndim else array, made, st.booleans())


def states() -> st.SearchStrategy[dict[str, Any]]:
    keys = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
    numbers = st.integers() | st.integers(-(2**200), 2**200) | st.floats()
    leaves = st.none() | st.booleans() | numbers | st.text() | arrays()
    inner = st.recursive(
        leaves, lambda below: st.lists(below, max_size=4) | st.dictionaries(keys, below, max_size=4), max_leaves=12
    )
    return st.dictionaries(keys, inner, max_size=5)

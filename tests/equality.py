"""Exact equality of the results of vector envs: structure, dtypes, shapes and bits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np


def assert_same(found: Any, expected: Any, where: str = "") -> None:
    """Assert equal structure, dtypes and values. A zero-dimensional array equals a numpy scalar."""
    if isinstance(expected, Mapping):
        assert isinstance(found, Mapping), f"{where}: {type(found)} instead of a dict"
        assert found.keys() == expected.keys(), f"{where}: keys {sorted(found)} instead of {sorted(expected)}"
        for key in expected:
            assert_same(found[key], expected[key], f"{where}[{key!r}]")
    elif isinstance(expected, tuple | list):
        assert type(found) is type(expected), f"{where}: {type(found)} instead of {type(expected)}"
        assert len(found) == len(expected), f"{where}: {len(found)} items instead of {len(expected)}"
        for i, (one, other) in enumerate(zip(found, expected)):
            assert_same(one, other, f"{where}[{i}]")
    elif isinstance(expected, np.ndarray | np.generic):
        assert isinstance(found, np.ndarray | np.generic), f"{where}: {type(found)} instead of {type(expected)}"
        _assert_same_array(np.asarray(found), np.asarray(expected), where)
    else:
        assert type(found) is type(expected), f"{where}: {type(found)} instead of {type(expected)}"
        both_nan = isinstance(expected, float) and found != found and expected != expected
        assert both_nan or found == expected, f"{where}: {found!r} instead of {expected!r}"


def _assert_same_array(found: Any, expected: Any, where: str) -> None:
    assert found.dtype == expected.dtype, f"{where}: {found.dtype} instead of {expected.dtype}"
    assert found.shape == expected.shape, f"{where}: shape {found.shape} instead of {expected.shape}"
    if expected.dtype == object:
        for i, (one, other) in enumerate(zip(found.tolist(), expected.tolist())):
            assert_same(one, other, f"{where}[{i}]")
    else:
        assert found.tobytes() == expected.tobytes(), f"{where}: {found} instead of {expected}"


def same(found: Any, expected: Any) -> bool:
    try:
        assert_same(found, expected)
    except AssertionError:
        return False
    return True

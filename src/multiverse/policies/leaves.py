"""Leaves of observation spaces that algorithms learn from, and their arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from multiverse.core.errors import InvalidRequest
from multiverse.core.layout import Leaf, Path, leaves


def numeric_leaves(space: spaces.Space[Any]) -> list[Leaf]:
    """The leaves of an observation space that algorithms can learn from, all of which are numbers."""
    found = list(leaves(space))
    empty = [leaf for leaf in found if leaf.numeric and 0 in shape_of(leaf)]
    if not found or empty:
        part = f" at {_name_of(empty[0])}" if found and empty[0].path else ""
        raise InvalidRequest(f"algorithms learn from what they see, and an observation of {space} shows nothing{part}")
    strange = [leaf for leaf in found if not leaf.numeric]
    if strange:
        names = ", ".join(f"{_name_of(leaf)} ({leaf.space})" for leaf in strange)
        raise InvalidRequest(f"algorithms learn from numbers: {names} must be made a Box first, by a wrapper of yours")
    return found


def _name_of(leaf: Leaf) -> str:
    return ".".join(map(str, leaf.path)) or "the observation"


def shape_of(leaf: Leaf) -> tuple[int, ...]:
    return tuple(leaf.space.shape or ())


def dtype_of(leaf: Leaf) -> np.dtype[Any]:
    """Bytes and whole numbers as they are, everything else as float32."""
    dtype = np.dtype(leaf.space.dtype)
    return dtype if dtype.kind in "biu" else np.dtype(np.float32)


def leaf_of(observation: Any, path: Path) -> Any:
    for key in path:
        observation = observation[key]
    return observation

"""The rows of the AgileRL drop-in: how values of any space lie in the block, and what kind of number each one was.

Observations are arrays of their space's dtype, whatever else the space says, with at least one dimension. Rewards and
ends lie in the engine's own columns, as floats and bools; what they were (an int, a float32, nothing at all) is told
beside them, in one row per env that belongs to no agent: `EVERYBODY`. Knows neither side of a worker's pipe.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import spaces

from multiverse.core.layout import Group, Leaf, from_leaves, leaves
from multiverse.core.views import Array

EVERYBODY = "(everybody)"
"""The group, and its one row in every env, that is about all agents."""

REWARD, TERMINATED, TRUNCATED = 0, 1, 2
"""What is told of every agent, in this order."""

MISSING, ODD = 0, 255
"""Codes: the env said nothing of the agent; it said something that no column holds, which came by pipe."""

ODDITIES = "(odd values)"
"""The info key under which such things travel: (agent, which of the three) → value."""

Codes = tuple[int, int, int]
"""What kind of things an agent's reward, terminated and truncated were."""

_FLOATS: tuple[type, ...] = (float, np.float64, np.float32, np.float16)
_BOOLS: tuple[type, ...] = (bool, np.bool_)
_SIGNED: tuple[type, ...] = (int, np.int64, np.int32, np.int16, np.int8)
_UNSIGNED: tuple[type, ...] = (np.uint64, np.uint32, np.uint16, np.uint8)
_INTEGERS = (*_SIGNED, *_UNSIGNED)
_TYPES = (*_FLOATS, *_BOOLS, *_INTEGERS)
_CODES = {kind: code for code, kind in enumerate(_TYPES, start=1)}
USUAL: dict[tuple[type, type, type], Codes] = {
    (reward, end, cut): (_CODES[reward], _CODES[end], _CODES[cut])
    for reward in _FLOATS
    for end in _BOOLS
    for cut in _BOOLS
}
"""By their types, what needs no second look: the columns hold all of it."""

_WHOLE = frozenset(_CODES[kind] for kind in _INTEGERS)
_EXACT = 2**53  # a float64 holds every whole number up to this


# -- numbers -----------------------------------------------------------------------------------------------------
def code_of_reward(reward: Any) -> int:
    """What kind of number it is; ODD if a float64 could not give it back."""
    code = _CODES.get(type(reward), ODD)
    return ODD if code in _WHOLE and not -_EXACT <= reward <= _EXACT else code


def code_of_end(end: Any) -> int:
    """The same for terminated and truncated; ODD if a bool could not give it back."""
    code = _CODES.get(type(end), ODD)
    return code if code == ODD or end in (0, 1) else ODD


def dtype_of(codes: Array) -> np.dtype[Any]:
    """What numpy makes of a list of such numbers; one that is missing is a NaN, which is a float."""
    kinds = [np.dtype(float if code == MISSING else _TYPES[code - 1]) for code in sorted(set(codes.tolist()))]
    return np.result_type(*kinds)


def as_it_was(value: Any, code: int) -> Any:
    """One number out of its column."""
    return np.nan if code == MISSING else _TYPES[code - 1](value)


# -- observations and actions --------------------------------------------------------------------------------------
def stored(space: spaces.Space[Any]) -> spaces.Space[Any]:
    """The space as it lies in the block: of every leaf only its shape and dtype; what no array holds, as it is."""
    if isinstance(space, spaces.Dict):
        return spaces.Dict(OrderedDict((key, stored(child)) for key, child in space.spaces.items()))
    if isinstance(space, spaces.Tuple):
        return spaces.Tuple([stored(child) for child in space.spaces])
    return plain(space, space.shape or (1,)) if is_array(space) else space


def is_array(space: spaces.Space[Any]) -> bool:
    """Whether its values are arrays of one shape and a numeric dtype, also if the space is of the user's own."""
    if space.dtype is None or space.shape is None:
        return False
    return np.dtype(space.dtype).kind in "iufb"


def plain(space: spaces.Space[Any], shape: tuple[int, ...]) -> spaces.Box:
    """A Box of that shape and the space's dtype, without bounds."""
    dtype = np.dtype(space.dtype)
    if dtype.kind in "iu":
        return spaces.Box(np.iinfo(dtype).min, np.iinfo(dtype).max, shape, dtype.type)
    return spaces.Box(-np.inf, np.inf, shape, dtype.type) if dtype.kind == "f" else spaces.Box(0, 1, shape, dtype.type)


def fitted(space: spaces.Space[Any]) -> Callable[[Any], Any]:
    """A function: what an env observed → the same as its stored space has it. Cast, and reshaped, as need be."""
    if isinstance(space, spaces.Dict):
        items = [(key, fitted(child)) for key, child in space.spaces.items()]
        return lambda value: {key: fit(value[key]) for key, fit in items}
    if isinstance(space, spaces.Tuple):
        parts = [fitted(child) for child in space.spaces]
        return lambda value: tuple(fit(value[i]) for i, fit in enumerate(parts))
    if not Leaf((), space).numeric:
        return lambda value: value
    shape, dtype = space.shape or (), space.dtype
    return lambda value: np.asarray(value, dtype=dtype).reshape(shape)


def placeholder(space: spaces.Space[Any]) -> Any:
    """What an absent agent sees: NaN or, in integers, what becomes of one."""

    def of_leaf(leaf: Leaf) -> Any:
        return np.full(leaf.space.shape or (), np.nan).astype(leaf.space.dtype) if leaf.numeric else None

    with np.errstate(invalid="ignore"):
        return from_leaves(space, {leaf.path: of_leaf(leaf) for leaf in leaves(space)})


def nested(space: spaces.Space[Any], of_leaf: Callable[[Leaf], Callable[[], Any]], leaf: Leaf) -> Callable[[], Any]:
    """A function that nests what `of_leaf` gives for every leaf as the space is; dicts in the space's order."""
    if isinstance(space, spaces.Dict):
        items = [(k, nested(child, of_leaf, Leaf((*leaf.path, k), child))) for k, child in space.spaces.items()]
        return lambda: OrderedDict((key, take()) for key, take in items)
    if isinstance(space, spaces.Tuple):
        parts = [nested(child, of_leaf, Leaf((*leaf.path, i), child)) for i, child in enumerate(space.spaces)]
        return lambda: tuple([take() for take in parts])
    return of_leaf(leaf)


def action_row(space: spaces.Space[Any]) -> spaces.Space[Any]:
    """An action as it lies in the block; where no array holds one it always goes by pipe."""
    return plain(space, space.shape or ()) if is_array(space) else spaces.Discrete(1)


def everybody(agents: int) -> Group:
    """The row about all agents. Its observation: three codes for each agent; its action: whom one was given."""
    seen, given = spaces.Box(0, 255, (agents, 3), np.uint8), spaces.Box(0, 1, (agents,), np.uint8)
    return Group(EVERYBODY, (EVERYBODY,), seen, given, may_be_absent=True)

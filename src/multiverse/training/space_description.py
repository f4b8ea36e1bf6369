"""Descriptions of spaces and groups of agents as JSON, and their decoding, so that a policy can act without its env.
Descriptions name no code; independent of files."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from multiverse.core.errors import InvalidRequest
from multiverse.core.layout import SINGLE_AGENT, Array, Group, Layout

MAX_NUMBERS = 2**24
"""Maximum size of a space, about a hundred times that of a stack of large images: a file of a few bytes could otherwise
request any amount of memory."""
MAX_DEPTH = 40

Description = dict[str, Any]
NO_SPACES = (ValueError, TypeError, LookupError, ArithmeticError, AssertionError, AttributeError, RecursionError)


def described(space: spaces.Space[Any]) -> Description:
    """Return a description from which `space_from` makes an equal space; `InvalidRequest` for unknown kinds."""
    match space:
        case spaces.Box():
            return {**_kind(space), "shape": list(space.shape), "low": _bounds(space.low), "high": _bounds(space.high)}
        case spaces.Discrete():
            return {**_kind(space), "n": int(space.n), "start": int(space.start)}
        case spaces.MultiDiscrete():
            return {**_kind(space), "nvec": space.nvec.tolist(), "start": space.start.tolist()}
        case spaces.MultiBinary():
            return {"kind": "MultiBinary", "n": space.n if isinstance(space.n, int) else [int(n) for n in space.n]}
        case spaces.Dict() if all(isinstance(key, str) for key in space.spaces):
            return {"kind": "Dict", "spaces": [[key, described(inner)] for key, inner in space.spaces.items()]}
        case spaces.Tuple():
            return {"kind": "Tuple", "spaces": [described(inner) for inner in space.spaces]}
    raise InvalidRequest(f"{space} cannot be described in a file")


def space_from(description: Any) -> spaces.Space[Any]:
    """Return the described space; ValueError, TypeError or LookupError if the description is invalid or too large."""
    return _Reading().space(description, 0)


def described_groups(layout: Layout, single: bool) -> Description:
    """Return a description from which `groups_from` makes equal groups, with the space of `state()` if there is one."""
    groups = [
        {
            "group": group.name,
            "agents": list(group.agents),
            "observation": described(group.observation_space),
            "action": described(group.action_space),
        }
        for group in layout.groups
    ]
    state = {} if layout.state_space is None else {"state": described(layout.state_space)}
    return {name: groups[0][name] for name in ("observation", "action")} if single else {"groups": groups, **state}


def groups_from(description: Any) -> tuple[Group, ...]:
    """Return the described groups; any of `NO_SPACES` if the description is invalid."""
    groups = description.get("groups") or [{"group": SINGLE_AGENT, "agents": [SINGLE_AGENT], **description}]
    return tuple(
        Group(str(each["group"]), tuple(each["agents"]), space_from(each["observation"]), space_from(each["action"]))
        for each in groups
    )


def _kind(space: spaces.Space[Any]) -> Description:
    kind = next(known for known in (spaces.Box, spaces.Discrete, spaces.MultiDiscrete) if isinstance(space, known))
    return {"kind": kind.__name__, "dtype": np.dtype(space.dtype).name}


def _bounds(values: Array) -> Any:
    """One number if all are equal, as in images; else a list."""
    if values.size and (values == values.flat[0]).all():
        return _number(values.flat[0].item())
    return [_number(one) for one in values.reshape(-1).tolist()]


def _number(value: Any) -> Any:
    return value if math.isfinite(value) else str(value)  # JSON has no infinities


class _Reading:
    """Decodes one description, with a limit on the size of the result."""

    def __init__(self) -> None:
        self._numbers = 0

    def space(self, description: Any, depth: int) -> spaces.Space[Any]:
        if depth > MAX_DEPTH:
            raise ValueError(f"nested more than {MAX_DEPTH} deep")
        if not isinstance(description, Mapping):
            raise ValueError("not a description of a space")
        match description["kind"]:
            case "Box":
                shape, dtype = self._shape(description["shape"]), _dtype(description["dtype"])
                low, high = (_array(description[name], shape, dtype) for name in ("low", "high"))
                return spaces.Box(low, high, shape, dtype.type)
            case "Discrete":
                kind = _dtype(description["dtype"])
                more: dict[str, Any] = {} if kind == np.int64 else {"dtype": kind.type}  # Gymnasium 1.1 has no others
                return spaces.Discrete(_whole(description["n"]), start=_whole(description["start"]), **more)
            case "MultiDiscrete":
                nvec, start = np.array(description["nvec"]), np.array(description["start"])
                self._shape(list(nvec.shape))
                return spaces.MultiDiscrete(nvec, _dtype(description["dtype"]).type, start=start)
            case "MultiBinary":
                shape = self._shape(description["n"] if isinstance(description["n"], list) else [description["n"]])
                return spaces.MultiBinary(shape if isinstance(description["n"], list) else shape[0])
            case "Dict":
                return spaces.Dict([(str(key), self.space(inner, depth + 1)) for key, inner in description["spaces"]])
            case "Tuple":
                return spaces.Tuple([self.space(inner, depth + 1) for inner in description["spaces"]])
        raise ValueError(f"the kind {str(description['kind'])[:40]!r} is unknown")

    def _shape(self, sizes: Any) -> tuple[int, ...]:
        shape = tuple(map(_whole, sizes))
        if any(size < 0 for size in shape):
            raise ValueError(f"the shape {shape} is invalid")
        self._numbers += math.prod(shape)
        if self._numbers > MAX_NUMBERS:  # guard: spaces-are-bounded
            raise ValueError(f"more than {MAX_NUMBERS:,} numbers")
        return shape


def _array(description: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    listed = description if isinstance(description, list) else [description]
    values = [float(value) if isinstance(value, str) else value for value in listed]
    array = np.array(values).astype(dtype) if dtype.kind == "f" else np.array(values, dtype)
    return array.reshape(shape) if isinstance(description, list) else np.full(shape, array[0], dtype)


def _dtype(name: Any) -> np.dtype[Any]:
    """Return a numeric dtype by its plain name; numpy's other names may mean records or objects."""
    if name not in _DTYPES:
        raise ValueError(f"{str(name)[:40]!r} is not a numeric dtype")
    return np.dtype(str(name))


_DTYPES = ("bool", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)), "float16", "float32",
           "float64")  # fmt: skip


def _whole(value: Any) -> int:
    if type(value) is not int:
        raise TypeError(f"{str(value)[:40]!r} is not an integer")
    return value

"""Spaces, and groups of agents with theirs, as JSON can hold them, and back: so that a policy can act without its env.
Names no code, knows no files."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from multiverse.core.errors import InvalidRequest
from multiverse.core.layout import SINGLE_AGENT, Array, Group, Layout

MOST_NUMBERS = 2**24
"""Of one space: some hundred times what a stack of large images has. A file of a few bytes could ask for any memory."""
DEEPEST = 40

Description = dict[str, Any]
NO_SPACES = (ValueError, TypeError, LookupError, ArithmeticError, AssertionError, AttributeError, RecursionError)


def described(space: spaces.Space[Any]) -> Description:
    """What `space_from` makes an equal space of; `InvalidRequest` for a kind that it does not know."""
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
    """The space that was described; ValueError, TypeError or LookupError if this describes none, or one too large."""
    return _Reading().space(description, 0)


def described_groups(layout: Layout, single: bool) -> Description:
    """What `groups_from` makes equal groups of, with the space of `state()` where the envs show it."""
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


def groups_from(said: Any) -> tuple[Group, ...]:
    """The groups that were described; any of `NO_SPACES` if there are none."""
    each = said.get("groups") or [{"group": SINGLE_AGENT, "agents": [SINGLE_AGENT], **said}]
    return tuple(
        Group(str(one["group"]), tuple(one["agents"]), space_from(one["observation"]), space_from(one["action"]))
        for one in each
    )


def _kind(space: spaces.Space[Any]) -> Description:
    kind = next(known for known in (spaces.Box, spaces.Discrete, spaces.MultiDiscrete) if isinstance(space, known))
    return {"kind": kind.__name__, "dtype": np.dtype(space.dtype).name}


def _bounds(values: Array) -> Any:
    """One number where all are equal, as in images."""
    if values.size and (values == values.flat[0]).all():
        return _number(values.flat[0].item())
    return [_number(one) for one in values.reshape(-1).tolist()]


def _number(value: Any) -> Any:
    return value if math.isfinite(value) else str(value)  # JSON knows no infinities


class _Reading:
    """One walk over a description, with a limit on how much may come out of it."""

    def __init__(self) -> None:
        self._numbers = 0

    def space(self, said: Any, depth: int) -> spaces.Space[Any]:
        if not isinstance(said, Mapping) or depth > DEEPEST:
            raise ValueError("no description of a space" if depth <= DEEPEST else f"nested more than {DEEPEST} deep")
        match said["kind"]:
            case "Box":
                shape, dtype = self._shape(said["shape"]), _dtype(said["dtype"])
                low, high = (_array(said[name], shape, dtype) for name in ("low", "high"))
                return spaces.Box(low, high, shape, dtype.type)
            case "Discrete":
                kind = _dtype(said["dtype"])
                more: dict[str, Any] = {} if kind == np.int64 else {"dtype": kind.type}  # Gymnasium 1.1 has no others
                return spaces.Discrete(_whole(said["n"]), start=_whole(said["start"]), **more)
            case "MultiDiscrete":
                nvec, start = np.array(said["nvec"]), np.array(said["start"])
                self._shape(list(nvec.shape))
                return spaces.MultiDiscrete(nvec, _dtype(said["dtype"]).type, start=start)
            case "MultiBinary":
                shape = self._shape(said["n"] if isinstance(said["n"], list) else [said["n"]])
                return spaces.MultiBinary(shape if isinstance(said["n"], list) else shape[0])
            case "Dict":
                return spaces.Dict([(str(key), self.space(inner, depth + 1)) for key, inner in said["spaces"]])
            case "Tuple":
                return spaces.Tuple([self.space(inner, depth + 1) for inner in said["spaces"]])
        raise ValueError(f"the kind {str(said['kind'])[:40]!r} is unknown")

    def _shape(self, said: Any) -> tuple[int, ...]:
        shape = tuple(_whole(one) for one in said)
        if any(one < 0 for one in shape):
            raise ValueError(f"the shape {shape} is none")
        self._numbers += math.prod(shape)
        if self._numbers > MOST_NUMBERS:  # guard: spaces-are-bounded
            raise ValueError(f"more than {MOST_NUMBERS:,} numbers")
        return shape


def _array(said: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    values = [float(one) if isinstance(one, str) else one for one in (said if isinstance(said, list) else [said])]
    found = np.array(values).astype(dtype) if dtype.kind == "f" else np.array(values, dtype)
    return np.full(shape, found[0], dtype) if not isinstance(said, list) else found.reshape(shape)


def _dtype(name: Any) -> np.dtype[Any]:
    """Of numbers, by its plain name: numpy's other names can also mean records and objects."""
    if name not in _DTYPES:
        raise ValueError(f"{str(name)[:40]!r} is no dtype of numbers")
    return np.dtype(str(name))


_DTYPES = ("bool", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)), "float16", "float32",
           "float64")  # fmt: skip


def _whole(value: Any) -> int:
    if type(value) is not int:
        raise TypeError(f"{str(value)[:40]!r} is no whole number")
    return value

"""Several agents' values and one row of numbers, without loss: their observations, and their actions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import DTypeLike, NDArray

from multiverse.core.errors import InvalidActions, InvalidRequest
from multiverse.core.layout import Path, leaves

Row = NDArray[Any]
ByAgent = dict[Any, Any]


@dataclass(frozen=True, slots=True)
class _Part:
    """Where in a row one array of one agent's observation is."""

    keys: Path
    space: spaces.Space[Any]
    part: slice
    plain: bool  # its numbers stand in the row as they are


class FlatObservations:
    """From a dict of observations to one row."""

    def __init__(self, by_agent: Mapping[Any, spaces.Space[Any]], dtype: DTypeLike | None) -> None:
        self._leaves: dict[Any, list[_Part]] = {}
        width = 0
        for agent, space in by_agent.items():
            self._leaves[agent] = []
            for leaf in leaves(space):
                if not leaf.numeric:
                    words = f"agent {agent!r} observes {leaf.space}, which does not fit into a row of fixed length"
                    raise InvalidRequest(words)
                part = slice(width, width + spaces.flatdim(leaf.space))
                plain = isinstance(leaf.space, spaces.Box | spaces.MultiBinary)
                self._leaves[agent].append(_Part(leaf.path, leaf.space, part, plain))
                width = part.stop
        everything = [part for parts in self._leaves.values() for part in parts]
        boxes = [leaf.space for leaf in everything if isinstance(leaf.space, spaces.Box)]
        self._width, self._dtype = width, _row_dtype(boxes, dtype)
        self.space = _row_space(everything, width, self._dtype)

    def joined(self, observations: Mapping[Any, Any]) -> Row:
        row = np.zeros(self._width, self._dtype)
        for agent, observation in observations.items():
            for leaf in self._leaves[agent]:
                value = observation
                for key in leaf.keys:
                    value = value[key]
                if leaf.plain:
                    row[leaf.part] = np.asarray(value).reshape(-1)
                else:
                    _mark(row[leaf.part], leaf.space, value)
        return row


def _mark(part: Row, space: spaces.Space[Any], value: Any) -> None:
    """One-hot."""
    if isinstance(space, spaces.Discrete):
        part[int(value) - int(space.start)] = 1
    else:
        part[:] = spaces.flatten(space, value)


def _row_space(leaves: Sequence[_Part], width: int, dtype: np.dtype[Any]) -> spaces.Box:
    """Bounds are the agents' own, widened to hold an absent agent's zeros."""
    low, high = np.zeros(width, dtype), np.ones(width, dtype)
    for leaf in leaves:
        if isinstance(leaf.space, spaces.Box):
            low[leaf.part] = np.minimum(leaf.space.low, 0).reshape(-1)
            high[leaf.part] = np.maximum(leaf.space.high, 0).reshape(-1)
    return spaces.Box(low, high, (width,), dtype.type)


def _row_dtype(boxes: Sequence[spaces.Box], wanted: DTypeLike | None) -> np.dtype[Any]:
    """The dtype asked for, or the first of float32 and the common ones, that holds every value exactly."""
    if wanted is not None:
        return _exact_dtype(boxes, [np.dtype(wanted)])
    own = [box.dtype for box in boxes]
    return _exact_dtype(boxes, [np.dtype(np.float32), np.result_type(np.float32, *own), np.result_type(np.int8, *own)])


def _exact_dtype(boxes: Sequence[spaces.Box], candidates: Sequence[np.dtype[Any]]) -> np.dtype[Any]:
    for candidate in candidates:
        if all(_holds(candidate, box) for box in boxes):
            return candidate
    raise InvalidRequest(
        f"one row of {candidates[-1]} would not hold all agents' values exactly: "
        f"theirs are {', '.join(sorted({str(box.dtype) for box in boxes}))}"
    )


def _holds(dtype: np.dtype[Any], box: spaces.Box) -> bool:
    if np.issubdtype(box.dtype, np.floating):
        return bool(np.can_cast(box.dtype, dtype, "safe"))
    if np.issubdtype(dtype, np.floating):
        low, high = -(2 ** (np.finfo(dtype).nmant + 1)), 2 ** (np.finfo(dtype).nmant + 1)
    else:
        low, high = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    lowest, highest = int(box.low.min(initial=0)), int(box.high.max(initial=0))
    return bool(low <= lowest and highest <= high)


# -- actions ---------------------------------------------------------------------------------------------------
class FlatChoices:
    """All agents' actions are Discrete: one number each."""

    def __init__(self, by_agent: Mapping[Any, spaces.Discrete]) -> None:
        self._agents = list(by_agent)
        starts = [int(space.start) for space in by_agent.values()]
        self.space = spaces.MultiDiscrete([int(space.n) for space in by_agent.values()], start=starts)
        self._shape = (len(starts),)

    def split(self, action: Any) -> ByAgent:
        numbers = np.array(action)  # a copy, so that an env may keep its action
        if numbers.shape != self._shape or numbers.dtype.kind not in "iu":
            raise InvalidActions(f"action {action!r}: expected {len(self._agents)} whole numbers, one for each agent")
        return dict(zip(self._agents, numbers.astype(np.int64, copy=False)))


class FlatVectors:
    """All agents' actions are Boxes: their numbers one after the other."""

    def __init__(self, by_agent: Mapping[Any, spaces.Box]) -> None:
        self._boxes = dict(by_agent)
        boxes = list(by_agent.values())
        self._ends = np.cumsum([math.prod(box.shape) for box in boxes])[:-1]
        dtype = _exact_dtype(boxes, [np.result_type(*(box.dtype for box in boxes))])
        low, high = (np.concatenate([side.reshape(-1) for side in s]) for s in zip(*((b.low, b.high) for b in boxes)))
        self.space = spaces.Box(low.astype(dtype), high.astype(dtype), dtype=dtype.type)

    def split(self, action: Any) -> ByAgent:
        numbers = np.asarray(action)
        if numbers.shape != self.space.shape or numbers.dtype.kind not in "iuf":
            raise InvalidActions(f"action of shape {numbers.shape}: expected {self.space.shape[0]} numbers")
        parts = np.split(numbers, self._ends)
        return {a: part.astype(box.dtype).reshape(box.shape) for part, (a, box) in zip(parts, self._boxes.items())}


def flat_actions(by_agent: Mapping[Any, spaces.Space[Any]]) -> FlatChoices | FlatVectors:
    """What splits these agents' actions; refuses kinds that do not mix."""
    choices = {agent: space for agent, space in by_agent.items() if isinstance(space, spaces.Discrete)}
    vectors = {agent: space for agent, space in by_agent.items() if isinstance(space, spaces.Box)}
    if len(choices) == len(by_agent):
        return FlatChoices(choices)
    if len(vectors) == len(by_agent):
        return FlatVectors(vectors)
    kinds = ", ".join(f"{agent!r} {space}" for agent, space in by_agent.items())
    raise InvalidRequest(f"flatten_agents needs action spaces that are all Discrete or all Box, and these are {kinds}")

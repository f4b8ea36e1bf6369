"""Features of observations of any space: one float vector, images, and an action mask."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np
from gymnasium import spaces

from multiverse.core.env import observed_mask
from multiverse.core.errors import InvalidRequest
from multiverse.core.layout import Array, Leaf, Path, leaves
from multiverse.core.policy import Leaves, Seen
from multiverse.ipc.link import PackedOnce

SMALLEST_IMAGE = 36
"""Smallest height and width of an image for three convolutions of the usual sizes."""
LARGEST_BYTE = 255
SCALED_BYTES = "scaled_bytes"
"""Key of saved policies and checkpoints: whether bytes are scaled. Absent from runs of earlier versions: False."""
_scales_bytes = ContextVar("scales_bytes", default=True)


@contextmanager
def byte_scaling(enabled: bool) -> Iterator[None]:
    """Set the default of `Features(scale_bytes=…)` in this context; False suits weights learned from raw bytes."""
    before = _scales_bytes.set(enabled)
    try:
        yield
    finally:
        _scales_bytes.reset(before)


# -- leaves of observations --------------------------------------------------------------------------------------
def numeric_leaves(space: spaces.Space[Any]) -> list[Leaf]:
    """Leaves of an observation space, which must all be numeric."""
    every = list(leaves(space))
    empty = [leaf for leaf in every if leaf.numeric and 0 in shape_of(leaf)]
    if not every or empty:
        part = f" at {_name_of(empty[0])}" if every and empty[0].path else ""
        raise InvalidRequest(f"algorithms cannot learn from observations of {space}, which are empty{part}")
    if others := [leaf for leaf in every if not leaf.numeric]:
        names = ", ".join(f"{_name_of(leaf)} ({leaf.space})" for leaf in others)
        raise InvalidRequest(f"algorithms learn from numbers: convert {names} to a Box, with a wrapper of the env")
    return every


def _name_of(leaf: Leaf) -> str:
    return ".".join(map(str, leaf.path)) or "the observation"


def shape_of(leaf: Leaf) -> tuple[int, ...]:
    """Shape of one value of this leaf."""
    return tuple(leaf.space.shape or ())


def dtype_of(leaf: Leaf) -> np.dtype[Any]:
    """dtype of this leaf in rollouts: its own for bytes and integers, else float32."""
    dtype = np.dtype(leaf.space.dtype)
    return dtype if dtype.kind in "biu" else np.dtype(np.float32)


def leaf_of(observation: Any, path: Path) -> Any:
    """The leaf at this path of an observation."""
    for key in path:
        observation = observation[key]
    return observation


# -- features ---------------------------------------------------------------------------------------------------
Previous = tuple[Array, Array, Array]
"""[rows] whether the row is its episode's first, [rows, …] the previous actions, [rows] the previous rewards."""


def previous_of(seen: Seen) -> Previous | None:
    """Starts, previous actions and previous rewards; None if the policy is not given them."""
    if seen.previous_actions is None or seen.previous_rewards is None:
        return None
    return seen.starts, seen.previous_actions, seen.previous_rewards


class Features(PackedOnce):
    """Converts observations, except images, to one vector [rows, size]: discrete values become one-hot vectors.

    Bytes (uint8) whose upper bound is 255 are divided by 255; those with a smaller bound are counts or ids, and are not
    scaled. A leaf of bytes with three axes, two of them at least `SMALLEST_IMAGE`, is an image. A Dict's `action_mask`
    is not part of the vector: it marks the open ones of the Discrete actions. `see_previous`: the slot's previous
    action and reward are part of the vector. `scale_bytes`: by default as set by `byte_scaling`.
    """

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        see_previous: bool = False,
        scale_bytes: bool | None = None,
        small_images: bool = False,
    ) -> None:
        """`small_images`: bytes of three axes with the bounds 0 and 255 are images of any size."""
        self.all_leaves = numeric_leaves(observation_space)
        self.mask = observed_mask(observation_space, action_space)
        self.leaves = [leaf for leaf in self.all_leaves if self.mask is None or leaf.path != self.mask.path]
        self.images = [leaf for leaf in self.leaves if _is_image(leaf, small_images)]
        self._flat = [leaf for leaf in self.leaves if leaf not in self.images]
        scale_bytes = _scales_bytes.get() if scale_bytes is None else scale_bytes
        divisors = {leaf.path: _byte_divisor(leaf) for leaf in self._flat if scale_bytes}
        self._divisors = {path: divisor for path, divisor in divisors.items() if divisor is not None}
        self._plain = len(self._flat) == 1 and isinstance(self._flat[0].space, spaces.Box)
        self._numbers: list[tuple[Leaf, slice]] = []  # not converted; and their columns
        self._discrete: list[tuple[Leaf, int]] = []  # converted to one-hot vectors; and their number of values
        self.columns: dict[Path, slice] = {}  # of the vector, by leaf
        self.size, counts = 0, []
        for leaf in self._flat:
            first, self.size = self.size, self.size + _size(leaf.space)
            self.columns[leaf.path] = slice(first, self.size)
            if isinstance(leaf.space, spaces.Discrete | spaces.MultiDiscrete):
                counts.append(_counts(leaf.space, first))
                self._discrete.append((leaf, len(counts[-1][0])))
            else:
                self._numbers.append((leaf, slice(first, self.size)))
        self._counts = [np.concatenate(column) for column in zip(*counts)]
        self.see_previous, self._observed_size, self._actions = see_previous, self.size, None
        if see_previous:
            self.size += _size(action_space) + 1
            if isinstance(action_space, spaces.Discrete | spaces.MultiDiscrete):
                smallest, _, to_column = _counts(action_space, 0)
                self._actions = to_column + smallest  # policies count actions from 0

    @property
    def board(self) -> tuple[int, ...] | None:
        """Shape of the observations in the vector if they are one Box of three axes: a board or a small picture."""
        shape = self._flat[0].space.shape if self._plain and not self.see_previous else None
        return shape if shape is not None and len(shape) == 3 else None

    @property
    def scales_bytes(self) -> bool:
        """Whether the vector contains scaled bytes."""
        return bool(self._divisors)

    def is_equal(self, other: Features) -> bool:
        """Whether both convert equal observations to equal vectors."""
        mine, theirs = (
            (type(each), each.all_leaves, each.see_previous, each.size, each.scales_bytes) for each in (self, other)
        )
        return mine == theirs

    @property
    def parts(self) -> tuple[int, int, int]:
        """Sizes of the observation, the previous action and the previous reward in the vector."""
        return self._observed_size, max(0, self.size - self._observed_size - 1), int(self.see_previous)

    def vector(self, observations: Leaves, previous: Previous | None = None) -> Array:
        """[rows, size] float32; `previous`: see `previous_of`."""
        if self._plain and not self.see_previous:
            path = self._flat[0].path
            part = observations[path].reshape(len(observations[path]), self.size)
            if path in self._divisors:
                return np.asarray(np.divide(part, self._divisors[path], dtype=np.float32))
            return part if part.dtype == np.float32 else part.astype(np.float32)
        rows = len(next(iter(observations.values())))
        vector = np.zeros((rows, self.size), np.float32)
        for leaf, place in self._numbers:
            vector[:, place] = observations[leaf.path].reshape(rows, place.stop - place.start)
            if leaf.path in self._divisors:
                vector[:, place] /= self._divisors[leaf.path]
        if self._discrete:
            values = np.concatenate([observations[leaf.path].reshape(rows, n) for leaf, n in self._discrete], axis=1)
            smallest, beyond, to_column = self._counts
            which, column = np.nonzero((values >= smallest) & (values < beyond))
            vector[which, (values + to_column)[which, column]] = 1.0  # values outside of their space have none
        if self.see_previous:
            assert previous is not None
            starts, actions, rewards = previous
            self._write_previous(vector[:, self._observed_size :], starts, actions, rewards)
        return vector

    def _write_previous(self, room: Array, starts: Array, actions: Array, rewards: Array) -> None:
        """Write previous actions and rewards; zeros where an episode starts, also where 0 is an action."""
        values = actions.reshape(len(room), -1)
        if self._actions is None:
            room[:, :-1] = values
        else:
            np.put_along_axis(room, values + self._actions, 1.0, axis=1)
        room[:, -1] = rewards
        room[starts] = 0.0

    def description(self, flattened: str = "flattened") -> str:
        """Describe the inputs that an observation becomes; "" if it has no images, bytes or arrays of several axes.
        `flattened`: how arrays reach the dense layers."""
        boxes = [leaf.space for leaf in self.leaves if isinstance(leaf.space, spaces.Box)]
        if not any(space.dtype == np.uint8 or len(space.shape) > 1 for space in boxes):
            return ""
        parts = [self._description_of(leaf, flattened) for leaf in self.leaves]
        beside = " beside the convolutions'" if self.images else ""
        return "; ".join([*parts, *([f"{self.size:,} inputs to the dense layers{beside}"] if self.size else [])])

    def _description_of(self, leaf: Leaf, flattened: str) -> str:
        name = "".join(f"{key}." for key in leaf.path)[:-1] + ": " * bool(leaf.path)
        space = leaf.space
        if not isinstance(space, spaces.Box):
            return f"{name}{space}"
        is_bytes = space.dtype == np.uint8
        kind = "array" if not is_bytes else "image" if len(space.shape) < 4 else "stack of images"
        array = f"{name}{kind} {'×'.join(map(str, space.shape))}"
        if leaf in self.images:
            return f"{array} through convolutions"
        text = f"{array} {flattened}" if len(space.shape) > 1 else f"{name}{_size(space):,} numbers"
        if leaf.path in self._divisors:
            every = "bytes" if np.ndim(self._divisors[leaf.path]) == 0 else f"bytes up to {LARGEST_BYTE}"
            return f"{text}, {every} scaled to [0, 1]"
        before = ", as in runs of earlier versions" if _byte_divisor(leaf) is not None else ""
        bounded = space.is_bounded() and space.low.size
        return (
            f"{text}, not scaled ({f'{space.low.min():g} to {space.high.max():g}' if bounded else 'no bounds'}{before})"
        )

    def open_actions(self, observations: Leaves) -> Array | None:
        """[rows, actions] bool action mask; None if all actions are always open."""
        return None if self.mask is None else observations[self.mask.path].astype(np.bool_)


def num_logits(space: spaces.Discrete | spaces.MultiDiscrete) -> int:
    """Number of logits for an action of this space."""
    return int(space.n) if isinstance(space, spaces.Discrete) else int(np.sum(space.nvec))


def channels_last(shape: Sequence[int]) -> bool:
    """Whether the last axis of an image of this shape [3] has the channels, being shorter than the first."""
    return shape[2] < shape[0]


def _is_image(leaf: Leaf, small_images: bool) -> bool:
    space, shape = leaf.space, leaf.space.shape or ()
    if space.dtype != np.uint8 or len(shape) != 3:
        return False
    whole = small_images and isinstance(space, spaces.Box) and (space.low == 0).all() and (space.high == 255).all()
    return bool(whole) or sorted(shape)[1] >= SMALLEST_IMAGE


def _byte_divisor(leaf: Leaf) -> Any:
    """Divisor of a leaf's numbers that scales bytes to [0, 1]; None if the leaf has none with an upper bound of 255."""
    if leaf.space.dtype != np.uint8 or not isinstance(leaf.space, spaces.Box):
        return None
    whole = leaf.space.high.reshape(-1) == LARGEST_BYTE
    if whole.all():
        return np.float32(LARGEST_BYTE)
    return np.where(whole, LARGEST_BYTE, 1).astype(np.float32) if whole.any() else None


def _size(space: spaces.Space[Any]) -> int:
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        return num_logits(space)
    return int(np.prod(space.shape or ()))


def _counts(space: spaces.Discrete | spaces.MultiDiscrete, first: int) -> tuple[Array, Array, Array]:
    """Of discrete values whose one-hot vectors begin at column `first`, [values] each: smallest value, largest + 1, and
    difference of column and value."""
    number = np.reshape(space.n if isinstance(space, spaces.Discrete) else space.nvec, -1)
    start = np.reshape(space.start, -1)
    return start, start + number, np.cumsum(number) - number - start + first

"""From observations of any space to what networks take: one float vector, images, and a mask of open actions."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from multiverse.contracts.env import observed_mask
from multiverse.contracts.layout import Leaf
from multiverse.contracts.policy import Leaves, Seen
from multiverse.contracts.views import Array
from multiverse.experience.rollout import numeric_leaves
from multiverse.memory.link import PackedOnce

SMALLEST_IMAGE = 36
"""The smallest height and width that three convolutions of the usual kind can look at."""


Previous = tuple[Array, Array, Array]
"""[rows] whether the row is its episode's first, [rows, …] the previous actions, [rows] the previous rewards."""


def previous_of(seen: Seen) -> Previous | None:
    """What a policy is shown of them."""
    if seen.previous_actions is None or seen.previous_rewards is None:
        return None
    return seen.starts, seen.previous_actions, seen.previous_rewards


class Features(PackedOnce):
    """Everything but images as one vector [rows, size]: numbers as they are, Discrete ones as one-hot vectors.

    A leaf of bytes with three axes is an image. A Dict's `action_mask` is no observation: it tells which of the
    Discrete actions are open. `see_previous`: the slot's previous action and reward belong to the vector too.
    """

    def __init__(
        self, observation_space: spaces.Space[Any], action_space: spaces.Space[Any], see_previous: bool = False
    ) -> None:
        found = numeric_leaves(observation_space)
        self.all_leaves = found
        self.mask = observed_mask(observation_space, action_space)
        self.leaves = [leaf for leaf in found if self.mask is None or leaf.path != self.mask.path]
        self.images = [leaf for leaf in self.leaves if _is_image(leaf)]
        self._flat = [leaf for leaf in self.leaves if leaf not in self.images]
        self._plain = len(self._flat) == 1 and isinstance(self._flat[0].space, spaces.Box)
        self._numbers: list[tuple[Leaf, slice]] = []  # as they are, and their columns
        self._counted: list[tuple[Leaf, int]] = []  # and how many numbers it has
        self.size, counts = 0, []
        for leaf in self._flat:
            first, self.size = self.size, self.size + _size(leaf.space)
            if isinstance(leaf.space, spaces.Discrete | spaces.MultiDiscrete):
                counts.append(_counts(leaf.space, first))
                self._counted.append((leaf, len(counts[-1][0])))
            else:
                self._numbers.append((leaf, slice(first, self.size)))
        self._counts = [np.concatenate(column) for column in zip(*counts)]
        self.see_previous, self._seen, self._actions = see_previous, self.size, None
        if see_previous:
            self.size += _size(action_space) + 1
            if isinstance(action_space, spaces.Discrete | spaces.MultiDiscrete):
                smallest, _, to_column = _counts(action_space, 0)
                self._actions = to_column + smallest  # as policies have them: from 0

    @property
    def board(self) -> tuple[int, ...] | None:
        """The shape of what is in the vector, where that is one Box of three axes: a board, a grid, a small picture."""
        shape = self._flat[0].space.shape if self._plain and not self.see_previous else None
        return shape if shape is not None and len(shape) == 3 else None

    @property
    def parts(self) -> tuple[int, int, int]:
        """How many numbers of the vector are the observation's, the previous action's and the previous reward's."""
        return self._seen, max(0, self.size - self._seen - 1), int(self.see_previous)

    def vector(self, observations: Leaves, previous: Previous | None = None) -> Array:
        """[rows, size] float32; `previous`: as the policy was shown it."""
        if self._plain and not self.see_previous:
            part = observations[self._flat[0].path]
            part = part.reshape(len(part), self.size)
            return part if part.dtype == np.float32 else part.astype(np.float32)
        rows = len(next(iter(observations.values())))
        found = np.zeros((rows, self.size), np.float32)
        for leaf, place in self._numbers:
            found[:, place] = observations[leaf.path].reshape(rows, place.stop - place.start)
        if self._counted:
            values = np.concatenate([observations[leaf.path].reshape(rows, n) for leaf, n in self._counted], axis=1)
            smallest, beyond, to_column = self._counts
            which, column = np.nonzero((values >= smallest) & (values < beyond))
            found[which, (values + to_column)[which, column]] = 1.0  # what is outside its space is none of them
        if self.see_previous:
            assert previous is not None
            self._write_previous(found[:, self._seen :], *previous)
        return found

    def _write_previous(self, room: Array, starts: Array, actions: Array, rewards: Array) -> None:
        """Where an episode starts there was none: 0 everywhere, also where 0 is an action."""
        values = actions.reshape(len(room), -1)
        if self._actions is None:
            room[:, :-1] = values
        else:
            np.put_along_axis(room, values + self._actions, 1.0, axis=1)
        room[:, -1] = rewards
        room[starts] = 0.0

    def open_actions(self, observations: Leaves) -> Array | None:
        """[rows, actions] bool; None where everything is always open."""
        return None if self.mask is None else observations[self.mask.path].astype(np.bool_)


def num_logits(space: spaces.Discrete | spaces.MultiDiscrete) -> int:
    """How many logits it takes."""
    return int(space.n) if isinstance(space, spaces.Discrete) else int(np.sum(space.nvec))


def _is_image(leaf: Leaf) -> bool:
    shape = leaf.space.shape or ()
    if leaf.space.dtype != np.uint8 or len(shape) != 3:
        return False
    return sorted(shape)[1] >= SMALLEST_IMAGE


def _size(space: spaces.Space[Any]) -> int:
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        return num_logits(space)
    return int(np.prod(space.shape or ()))


def _counts(space: spaces.Discrete | spaces.MultiDiscrete, first: int) -> tuple[Array, Array, Array]:
    """Of numbers that become one-hot vectors from column `first` on, [numbers] each: the smallest value, the first one
    beyond the largest, and what is added to a value to have its column."""
    number = np.reshape(space.n if isinstance(space, spaces.Discrete) else space.nvec, -1)
    start = np.reshape(space.start, -1)
    return start, start + number, np.cumsum(number) - number - start + first

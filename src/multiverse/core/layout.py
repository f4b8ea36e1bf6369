"""The layout: which arrays a batch consists of, with their shapes and dtypes, and views of them wherever they lie.

A batch row is a slot, one (env, agent) pair. Agents with equal spaces that share a policy form a group. Every group
has its own arrays, with rows ordered by env (slot = env × agents + agent), so that a worker's contiguous range of
envs is a contiguous range of rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from gymnasium import spaces

Path = tuple[str | int, ...]
"""Position of a leaf in a nested space: keys of Dicts and positions in Tuples, outermost first."""

FieldName = tuple[str | int, ...]

Array = np.ndarray[Any, np.dtype[Any]]

OBSERVATIONS, ACTIONS, FINAL_OBSERVATIONS = "observations", "actions", "final_observations"
ACTION_MASKS, FINAL_ACTION_MASKS = "action_masks", "final_action_masks"
PYTHON_INTS = "python_ints"
"""Per slot, for every Discrete leaf that may become a final observation: whether the env returned a Python int."""
VALUES, ENDED, PRESENT = "values", "ended", "present"
"""Per slot, one array each, so that a host publishes its rows in one copy (rows of the arrays below)."""
REWARD, EPISODE_LENGTH, EPISODE_RETURN = 0, 1, 2  # of VALUES, float64
TERMINATED, TRUNCATED = 0, 1  # of ENDED, bool
ALIVE, ACTING = 0, 1  # of PRESENT, bool
EPISODES: FieldName = ("episodes",)
STEPPING: FieldName = ("stepping",)
COUNTS: FieldName = ("counts",)
BAD_VALUES, OUT_OF_BOUNDS, ENV_RESTARTS = 0, 1, 2  # of COUNTS: per env, over the vector env's life, not a worker's
COMPLETED_EPISODES, EARLIER_STEPS = 3, 4  # likewise; EARLIER_STEPS: steps of the env's episodes before the current
INFO_VALUES: FieldName = ("info_values",)
INFO_MASKS: FieldName = ("info_masks",)

STATE = "state()"
"""Group name of the global state, which has one row per env (PettingZoo's `state()`)."""

SINGLE_AGENT = "agent"
"""Name of the only group, and of the only agent, of a single-agent env."""

MAX_INFO_COLUMNS = 64
"""Numeric info keys beyond this number are sent by pipe; 64 columns take 576 bytes per env."""


@dataclass(frozen=True, slots=True)
class Field:
    """One array of the block."""

    name: FieldName
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    axis: int = 0  # of envs, or of their slots


@dataclass(frozen=True, slots=True)
class Leaf:
    """One leaf of a nested space: an array of the block if numeric, else objects that are sent by pipe."""

    path: Path
    space: spaces.Space[Any]

    @property
    def numeric(self) -> bool:
        return isinstance(self.space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary)


def leaves(space: spaces.Space[Any], path: Path = ()) -> Iterator[Leaf]:
    """Every leaf of a space, depth first. Dict and Tuple are nodes, everything else is a leaf."""
    if isinstance(space, spaces.Dict):
        for key, child in space.spaces.items():
            yield from leaves(child, (*path, key))
    elif isinstance(space, spaces.Tuple):
        for position, child in enumerate(space.spaces):
            yield from leaves(child, (*path, position))
    else:
        yield Leaf(path, space)


def from_leaves(space: spaces.Space[Any], values: dict[Path, Any], path: Path = ()) -> Any:
    """The nested dict/tuple of a space from one value per leaf: the inverse of `leaves`."""
    if isinstance(space, spaces.Dict):
        return {key: from_leaves(child, values, (*path, key)) for key, child in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(from_leaves(child, values, (*path, i)) for i, child in enumerate(space.spaces))
    return values[path]


@dataclass(frozen=True, slots=True)
class Group:
    """Agents with equal spaces that share a policy."""

    name: str
    agents: tuple[str, ...]
    observation_space: spaces.Space[Any]
    action_space: spaces.Space[Any]
    may_be_absent: bool = False  # agents die and come back, or act in turn
    masks: int = 0  # number of actions in a mask; 0 without masks
    ignores_masks: bool = False  # the caller has disabled masks, also those in observations


@dataclass(frozen=True, slots=True)
class Layout:
    """The arrays of one vector env."""

    num_envs: int
    groups: tuple[Group, ...]
    with_final_observations: bool
    more: tuple[Field, ...] = ()  # further arrays that hosts and caller share, such as a training's rollouts
    state_space: spaces.Space[Any] | None = None  # of the global state; None if it is not requested

    @property
    def shown(self) -> tuple[Group, ...]:
        """All groups with rows of observations: the agents' groups and, as one that never acts, the global state."""
        if self.state_space is None:
            return self.groups
        return (*self.groups, Group(STATE, (STATE,), self.state_space, spaces.Discrete(1)))

    def slots(self, group: Group) -> int:
        return self.num_envs * len(group.agents)

    def rows(self, group: Group, env_ids: range) -> slice:
        """The rows of a contiguous range of envs."""
        agents = len(group.agents)
        return slice(env_ids.start * agents, env_ids.stop * agents)

    def rows_of_field(self, name: FieldName, env_ids: range) -> slice:
        """The rows of a contiguous range of envs in a field that belongs to a group."""
        return self.rows(next(group for group in self.shown if group.name == name[0]), env_ids)

    def fields(self) -> list[Field]:
        """Every array, in the order of the block."""
        fields = [
            Field(EPISODES, (self.num_envs,), np.dtype(np.int64)),
            Field(STEPPING, (self.num_envs,), np.dtype(np.bool_)),
            Field(COUNTS, (5, self.num_envs), np.dtype(np.int64), axis=1),
            Field(INFO_VALUES, (MAX_INFO_COLUMNS, self.num_envs), np.dtype(np.float64), axis=1),
            Field(INFO_MASKS, (MAX_INFO_COLUMNS, self.num_envs), np.dtype(np.bool_), axis=1),
        ]
        for group in self.groups:
            fields += self._group_fields(group)
        for group in self.shown[len(self.groups) :]:
            fields += (f for f in self._group_fields(group) if f.name[1] in (OBSERVATIONS, FINAL_OBSERVATIONS))
        return [*fields, *self.more]

    def object_names(self) -> list[tuple[FieldName, int]]:
        """The leaves that are sent by pipe, with their number of rows."""
        return [
            ((group.name, kind, *leaf.path), self.slots(group))
            for group in self.groups
            for kind, space in self._kinds(group)
            for leaf in leaves(space)
            if not leaf.numeric
        ]

    def _kinds(self, group: Group) -> list[tuple[str, spaces.Space[Any]]]:
        kinds = [(ACTIONS, group.action_space), (OBSERVATIONS, group.observation_space)]
        if self.with_final_observations:
            kinds.append((FINAL_OBSERVATIONS, group.observation_space))
        return kinds

    def _group_fields(self, group: Group) -> Iterator[Field]:
        slots = self.slots(group)
        yield Field((group.name, VALUES), (3, slots), np.dtype(np.float64), axis=1)
        yield Field((group.name, ENDED), (2, slots), np.dtype(np.bool_), axis=1)
        yield Field((group.name, PRESENT), (2, slots), np.dtype(np.bool_), axis=1)
        if group.masks:
            for name in (ACTION_MASKS, FINAL_ACTION_MASKS)[: 1 + self.with_final_observations]:
                yield Field((group.name, name), (slots, group.masks), np.dtype(np.int8))
        for kind, space in self._kinds(group):
            for leaf in leaves(space):
                if leaf.numeric:
                    dtype = leaf.space.dtype
                    assert dtype is not None and leaf.space.shape is not None
                    yield Field((group.name, kind, *leaf.path), (slots, *leaf.space.shape), dtype)
                if kind == FINAL_OBSERVATIONS and isinstance(leaf.space, spaces.Discrete):
                    yield Field((group.name, PYTHON_INTS, *leaf.path), (slots,), np.dtype(np.bool_))


@dataclass(frozen=True, slots=True)
class Views:
    """Every numeric array of a layout, and a list for each leaf that no array can hold.

    Arrays may be shared between processes. The lists never are: what a worker writes there is sent by pipe.
    """

    layout: Layout
    arrays: dict[FieldName, Array]
    objects: dict[FieldName, list[Any]] = field(default_factory=dict)

    @classmethod
    def over(cls, layout: Layout, arrays: dict[FieldName, Array]) -> Views:
        return cls(layout, arrays, {name: [None] * rows for name, rows in layout.object_names()})

    def __getitem__(self, name: FieldName) -> Array:
        return self.arrays[name]

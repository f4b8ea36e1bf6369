"""A rollout: a number of steps of every slot, in arrays that are allocated once and filled again and again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from multiverse.core.layout import (
    ACTION_MASKS,
    FINAL_ACTION_MASKS,
    FINAL_OBSERVATIONS,
    OBSERVATIONS,
    SINGLE_AGENT,
    TERMINATED,
    TRUNCATED,
    Array,
    Field,
    FieldName,
    Leaf,
    Path,
)
from multiverse.core.policy import Leaves, Memory
from multiverse.policies.features import dtype_of, numeric_leaves, shape_of


class Part(NamedTuple):
    """Adjacent slots of a rollout that were collected together: version of the policy, and their numbers among the
    slots of all envs."""

    version: int
    slots: range


@dataclass(slots=True)
class Rollout:
    """T steps of S slots.

    Row (t, s) is a step: observation, action and reward of the slot, and whether its episode ended there. Rows that are
    not `valid` are never learned from: the env was restarted there, the row began an episode instead of being a step,
    or no action of the slot was required. `last` has the observations after the last row.
    """

    observations: Leaves  # [T, S, …] per leaf
    last: Leaves  # [S, …]
    finals: Leaves  # [T, S, …] final observation of an episode that ended in this row; elsewhere undefined
    actions: Array  # [T, S, …]
    rewards: Array  # [T, S] float32
    terminated: Array  # [T, S] bool
    truncated: Array  # [T, S] bool
    valid: Array  # [T, S] bool
    starts: Array  # [T, S] bool: the row is its episode's first
    acting: Array | None = None  # [T, S] bool: an action was required; None: everywhere
    acting_next: Array | None = None  # [S] bool: and after the last row
    action_masks: Array | None = None  # [T, S, actions]
    memory: Memory = field(default_factory=dict)  # [T, S, …] each: memory of the policy before the row
    last_memory: Memory = field(default_factory=dict)  # [S, …] each: and after the last one
    previous: tuple[Array, Array] | None = None  # [T, S, …], [T, S]: actions and rewards before, if it has memory
    last_previous: tuple[Array, Array] | None = None  # [S, …], [S] and after the last row
    states: Leaves = field(default_factory=dict)  # [T, envs, …] state of each env, where it was requested
    last_states: Leaves = field(default_factory=dict)  # [envs, …] and after the last row
    final_states: Leaves = field(default_factory=dict)  # [T, envs, …] and at the end of an episode in this row
    group: str = SINGLE_AGENT  # the agents whose slots these are
    agents: int = 1  # of that group in each env: slot = env × agents + agent
    policy_version: int = 0  # the oldest, where there are parts
    parts: tuple[Part, ...] = ()  # of asynchronous collection; empty: all slots have `policy_version`

    @property
    def steps(self) -> int:
        return len(self.rewards)

    @property
    def slots(self) -> int:
        return int(self.rewards.shape[1])

    def ends(self) -> tuple[Array, Array, Leaves]:
        """(steps, slots, final observations [ends, …] per leaf) of the episodes that ended inside."""
        steps, slots = np.nonzero(self.terminated | self.truncated)
        return steps, slots, {path: rows[steps, slots] for path, rows in self.finals.items()}

    def copy_of(self, slots: slice) -> Rollout:
        """Copy of these slots, which are all slots of some envs."""
        envs = slice(slots.start // self.agents, slots.stop // self.agents)

        def copied(name: str, rows: Sequence[Array]) -> Array:
            mine = envs if name in PER_ENV else slots
            return rows[0][mine].copy() if name in PER_SLOT else rows[0][:, mine].copy()

        part = Part(self.policy_version, range(slots.start, slots.stop))
        return replace(self, **combined([self], copied), parts=(part,))

    @staticmethod
    def joined(rollouts: Sequence[Rollout]) -> Rollout:
        """Join rollouts of the same steps along their slots."""
        if len(rollouts) == 1:
            return rollouts[0]
        arrays = combined(rollouts, lambda name, rows: np.concatenate(rows, axis=0 if name in PER_SLOT else 1))
        version = min(rollout.policy_version for rollout in rollouts)
        parts = tuple(part for rollout in rollouts for part in rollout.parts)
        return replace(rollouts[0], **arrays, policy_version=version, parts=parts)


PER_SLOT = frozenset({"last", "acting_next", "last_memory", "last_previous", "last_states"})
"""Arrays of a rollout with one row per slot; the others have one per step and slot."""
PER_ENV = frozenset({"states", "last_states", "final_states"})
"""Arrays of a rollout with envs in place of slots."""
_NOT_ARRAYS = frozenset({"group", "agents", "policy_version", "parts"})


def combined(rollouts: Sequence[Rollout], combine: Callable[[str, Sequence[Array]], Array]) -> dict[str, Any]:
    """Fields of a rollout whose arrays are combine(name, that array of each of these rollouts)."""
    arrays: dict[str, Any] = {}
    for name in [column.name for column in fields(Rollout) if column.name not in _NOT_ARRAYS]:
        values = [getattr(rollout, name) for rollout in rollouts]
        if isinstance(values[0], dict):
            arrays[name] = {key: combine(name, [value[key] for value in values]) for key in values[0]}
        elif isinstance(values[0], tuple):
            arrays[name] = tuple(combine(name, parts) for parts in zip(*values))
        else:
            arrays[name] = None if values[0] is None else combine(name, values)
    return arrays


# -- action masks beside the observations ------------------------------------------------------------------------
BESIDE: Path = ("action_masks()",)
"""Path of action masks from infos or methods in a rollout, as one more leaf of the observations: for algorithms that
also need the mask after a step."""


def mask_beside(actions: int) -> Leaf:
    """Leaf that `BESIDE` names, for this number of actions."""
    return Leaf(BESIDE, spaces.MultiBinary(actions))


def name_in_block(group: str, path: Path, final: bool = False) -> FieldName:
    """Name of the field of the block from which a leaf of a rollout's observations is filled."""
    if path == BESIDE:
        return group, FINAL_ACTION_MASKS if final else ACTION_MASKS
    return group, FINAL_OBSERVATIONS if final else OBSERVATIONS, *path


# -- fields of the block ------------------------------------------------------------------------------------------
ROLLOUT = "rollout"
"""Second part of the names of a rollout's fields, after the group's name."""
BEGUN, SEEDS, LOST, FRESH, SECONDS = ((ROLLOUT, name) for name in ("begun", "seeds", "lost", "fresh", "seconds"))
ACTED_BY, TAKEN = (ROLLOUT, "acted_by"), (ROLLOUT, "taken")
VERSIONS, SIDES = (ROLLOUT, "versions"), (ROLLOUT, "sides")
"""Fields per env.
- `BEGUN`: [T, envs] number of the episode that followed one that ended in this row (-1: none ended)
- `SEEDS`: [T, envs] its seed (-1: none)
- `LOST`: [T, envs] the row was lost
- `FRESH`: [envs] the next row is the first of an episode
- `SECONDS`: [envs, 2] time that a host spent acting and stepping, in the row of its first env
- `ACTED_BY`: [envs] version of the (first group's) policy that acted
- `TAKEN`: [envs] with whole episodes, number of steps taken
- `VERSIONS`, `SIDES`: [T, envs] in self-play, the past version that plays (-1: none), and the learner's side"""


@dataclass(frozen=True, slots=True)
class RolloutShape:
    """Sizes, shapes and dtypes of a group's rollout."""

    group: str
    observation_space: spaces.Space[Any]
    steps: int
    slots: int
    action: tuple[tuple[int, ...], Any]  # (shape, dtype) of one action as the policy returns it
    masks: int = 0  # length of an action mask
    comes_and_goes: bool = False  # slots do not act in every row
    memory: Memory = field(default_factory=dict)  # [1, …] of one slot
    noise: tuple[tuple[int, ...], Any] = ((), np.float32)  # (shape, dtype) for one slot and step
    agents: int = 1  # of the group in each env
    state_space: spaces.Space[Any] | None = None  # of the envs' states; None: they are not used
    keeps_masks: bool = False  # masks are a leaf of the observations, `BESIDE`

    def _leaves(self) -> list[Leaf]:
        return [*numeric_leaves(self.observation_space), *([mask_beside(self.masks)] if self.keeps_masks else [])]

    def fields(self) -> list[Field]:
        """Fields of the block; those that are also needed after the last row have one row more."""
        kinds, whole, more = self._leaves(), (self.steps, self.slots), self.steps + 1
        (shape, dtype), (of_noise, noise_dtype) = self.action, self.noise
        fields = [
            *(
                self._field(("observations", *leaf.path), (more, self.slots, *shape_of(leaf)), dtype_of(leaf))
                for leaf in kinds
            ),
            *(self._field(("finals", *leaf.path), (*whole, *shape_of(leaf)), dtype_of(leaf)) for leaf in kinds),
            *(self._field(("memory", n), (more, self.slots, *of.shape[1:]), of.dtype) for n, of in self.memory.items()),
            self._field(("actions",), (*whole, *shape), dtype),
            self._field(("noise",), (*whole, *of_noise), noise_dtype),
            self._field(("values",), (self.steps, 3, self.slots), np.float64, axis=2),
            self._field(("ended",), (self.steps, 2, self.slots), np.bool_, axis=2),
            self._field(("valid",), whole, np.bool_),
            self._field(("starts",), whole, np.bool_),
        ]
        if self.memory:
            fields.append(self._field(("previous_actions",), (more, self.slots, *shape), dtype))
            fields.append(self._field(("previous_rewards",), (more, self.slots), np.float64))
        if self.masks:
            fields.append(self._field(("masks",), (*whole, self.masks), np.bool_))
        if self.comes_and_goes:
            fields.append(self._field(("acting",), (more, self.slots), np.bool_))
        for leaf in self._state_leaves():
            shape, dtype = (self.slots // self.agents, *shape_of(leaf)), dtype_of(leaf)
            fields.append(self._field(("states", *leaf.path), (more, *shape), dtype))
            fields.append(self._field(("final_states", *leaf.path), (self.steps, *shape), dtype))
        return fields

    def _state_leaves(self) -> list[Leaf]:
        return [] if self.state_space is None else numeric_leaves(self.state_space)

    def _field(self, name: FieldName, shape: tuple[int, ...], dtype: Any, axis: int = 1) -> Field:
        return Field((self.group, ROLLOUT, *name), shape, np.dtype(dtype), axis)

    def rollout(self, arrays: Mapping[FieldName, Array]) -> Rollout:
        """The rollout whose arrays are these fields."""

        def at(*name: str | int) -> Array:
            return arrays[(self.group, ROLLOUT, *name)]

        paths = [leaf.path for leaf in self._leaves()]
        ended, previous, of_state = at("ended"), None, [leaf.path for leaf in self._state_leaves()]
        if self.memory:
            previous = at("previous_actions"), at("previous_rewards")
        at("valid")[...] = True
        return Rollout(
            observations={path: at("observations", *path)[:-1] for path in paths},
            last={path: at("observations", *path)[-1] for path in paths},
            finals={path: at("finals", *path) for path in paths},
            actions=at("actions"),
            rewards=np.zeros((self.steps, self.slots), np.float32),
            terminated=ended[:, TERMINATED],
            truncated=ended[:, TRUNCATED],
            valid=at("valid"),
            starts=at("starts"),
            acting=at("acting")[:-1] if self.comes_and_goes else None,
            acting_next=at("acting")[-1] if self.comes_and_goes else None,
            action_masks=at("masks") if self.masks else None,
            memory={name: at("memory", name)[:-1] for name in self.memory},
            last_memory={name: at("memory", name)[-1] for name in self.memory},
            previous=previous and (previous[0][:-1], previous[1][:-1]),
            last_previous=previous and (previous[0][-1], previous[1][-1]),
            states={path: at("states", *path)[:-1] for path in of_state},
            last_states={path: at("states", *path)[-1] for path in of_state},
            final_states={path: at("final_states", *path) for path in of_state},
            group=self.group,
            agents=self.agents,
        )


def env_fields(steps: int, num_envs: int, self_play: bool = False, whole_episodes: bool = False) -> list[Field]:
    """Fields of rollouts that do not belong to a group."""
    taken = [Field(TAKEN, (num_envs,), np.dtype(np.int64))] if whole_episodes else []
    matches = [Field(name, (steps, num_envs), np.dtype(np.int64), 1) for name in (VERSIONS, SIDES)] if self_play else []
    return [
        *matches,
        *taken,
        Field(ACTED_BY, (num_envs,), np.dtype(np.int64)),
        Field(BEGUN, (steps, num_envs), np.dtype(np.int64), axis=1),
        Field(SEEDS, (steps, num_envs), np.dtype(np.int64), axis=1),
        Field(LOST, (steps, num_envs), np.dtype(np.bool_), axis=1),
        Field(FRESH, (num_envs,), np.dtype(np.bool_)),
        Field(SECONDS, (num_envs, 2), np.dtype(np.float64)),
    ]


def private_fields(fields: Iterable[Field]) -> dict[FieldName, Array]:
    """Arrays for these fields in the memory of this process."""
    return {shared.name: np.zeros(shared.shape, shared.dtype) for shared in fields}


def rollout_for(
    observation_space: spaces.Space[Any], steps: int, slots: int, action: tuple[tuple[int, ...], Any], masks: int = 0
) -> Rollout:
    """Empty rollout of a single agent; `action` is (shape, dtype) of one action as the policy returns it."""
    shape = RolloutShape(SINGLE_AGENT, observation_space, steps, slots, action, masks)
    return shape.rollout(private_fields(shape.fields()))

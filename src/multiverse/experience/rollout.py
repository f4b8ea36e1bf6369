"""A rollout: some steps of every slot, in arrays that are laid out once and filled again and again."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from gymnasium import spaces

from multiverse.contracts.errors import InvalidRequest
from multiverse.contracts.layout import Leaf, Path, leaves
from multiverse.contracts.policy import Leaves, Memory
from multiverse.contracts.views import Array


@dataclass(slots=True)
class FinalObservations:
    """What episodes that ended inside a rollout showed last: one row per end."""

    steps: list[int] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)
    observations: list[Any] = field(default_factory=list)  # as the env's space has them

    def add(self, step: int, slot: int, observation: Any) -> None:
        self.steps.append(step)
        self.slots.append(slot)
        self.observations.append(observation)


@dataclass(slots=True)
class Rollout:
    """T steps of S slots.

    Row (t, s) is a step: what the slot saw, what it did, what it got, and whether its episode ended there. Rows that
    are not `valid` were lost (an env was restarted in them) and are never learned from. After the last row every slot
    saw `last`.
    """

    observations: Leaves  # [T, S, …] per leaf
    last: Leaves  # [S, …]
    actions: Array  # [T, S, …]
    rewards: Array  # [T, S] float32
    terminated: Array  # [T, S] bool
    truncated: Array  # [T, S] bool
    valid: Array  # [T, S] bool
    starts: Array  # [T, S] bool: the row is its episode's first
    action_masks: Array | None = None  # [T, S, actions]
    memory: Memory = field(default_factory=dict)  # [T, S, …] each: what the policy remembered before the row
    last_memory: Memory = field(default_factory=dict)  # [S, …] each: and after the last one
    group: str = ""  # the agents whose slots these are
    finals: FinalObservations = field(default_factory=FinalObservations)
    policy_version: int = 0

    @property
    def steps(self) -> int:
        return len(self.rewards)

    @property
    def slots(self) -> int:
        return int(self.rewards.shape[1])

    def final_leaves(self, kinds: list[Leaf]) -> Leaves:
        """[ends, …] per leaf: the final observations, in the order of `finals.steps` and `finals.slots`."""
        return {leaf.path: _stacked(self.finals.observations, leaf) for leaf in kinds}


def rollout_for(
    observation_space: spaces.Space[Any], steps: int, slots: int, action: tuple[tuple[int, ...], Any], masks: int = 0
) -> Rollout:
    """Room for so many steps; `action` is (shape, dtype) of one action as the policy has it."""
    kinds, whole = numeric_leaves(observation_space), (steps, slots)
    shape, dtype = action
    return Rollout(
        observations={leaf.path: np.zeros((*whole, *shape_of(leaf)), dtype_of(leaf)) for leaf in kinds},
        last={leaf.path: np.zeros((slots, *shape_of(leaf)), dtype_of(leaf)) for leaf in kinds},
        actions=np.zeros((*whole, *shape), dtype),
        rewards=np.zeros(whole, np.float32),
        terminated=np.zeros(whole, np.bool_),
        truncated=np.zeros(whole, np.bool_),
        valid=np.ones(whole, np.bool_),
        starts=np.zeros(whole, np.bool_),
        action_masks=np.ones((*whole, masks), np.bool_) if masks else None,
    )


def numeric_leaves(space: spaces.Space[Any]) -> list[Leaf]:
    """The leaves of an observation space that algorithms can learn from, all of which are numbers."""
    found = list(leaves(space))
    if not found:
        raise InvalidRequest(f"algorithms learn from what they see, and an observation of {space} shows nothing")
    strange = [leaf for leaf in found if not leaf.numeric]
    if strange:
        names = ", ".join(f"{'.'.join(map(str, leaf.path)) or 'the observation'} ({leaf.space})" for leaf in strange)
        raise InvalidRequest(f"algorithms learn from numbers: {names} must be made a Box first, by a wrapper of yours")
    return found


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


def _stacked(observations: list[Any], leaf: Leaf) -> Array:
    parts = [np.asarray(leaf_of(one, leaf.path), dtype_of(leaf)) for one in observations]
    return np.stack(parts) if parts else np.zeros((0, *shape_of(leaf)), dtype_of(leaf))

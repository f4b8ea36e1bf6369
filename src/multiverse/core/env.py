"""The Env contract: the interface that every foreign env has once an adapter has wrapped it.

An env owns a fixed set of slots, one per agent, and writes each step's results directly into their rows of the
batch. Its host decides *when* it steps or resets (the host implements autoreset for every kind of env); the adapter
decides *how*.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from gymnasium import spaces

from multiverse.core.layout import Group, Leaf, leaves

ACTION_MASK = "action_mask"
"""Key under which PettingZoo envs put an agent's action mask, in its observation or in its info."""

MaskSource = Literal["observation", "method", "info"]
"""Source of a single-agent env's action masks: the key `ACTION_MASK` of its observation or its info, or a method
`action_masks()`, as sb3-contrib's MaskablePPO expects it."""

EnvKind = Literal["single", "parallel", "turns"]
"""Kind of env: one agent, several agents that act at the same time, or several agents that act in turn."""


def observed_mask(observation_space: spaces.Space[Any], action_space: spaces.Space[Any]) -> Leaf | None:
    """The leaf of an observation that is the action mask; None if there is none, or actions cannot be masked."""
    if not isinstance(action_space, spaces.Discrete | spaces.MultiDiscrete):
        return None
    shape = (spaces.flatdim(action_space),)
    candidates = (leaf for leaf in leaves(observation_space) if leaf.path[-1:] == (ACTION_MASK,) and leaf.numeric)
    return next((leaf for leaf in candidates if leaf.space.shape == shape), None)


@dataclass(frozen=True, slots=True)
class EnvDescription:
    """Properties of an env that are known before memory is laid out for it."""

    groups: tuple[Group, ...]
    kind: EnvKind = "single"
    state_space: Any = None  # space of the env's global state; None unless it was requested
    metadata: dict[str, Any] = field(default_factory=dict)
    render_mode: str | None = None
    spec: Any = None


@dataclass(frozen=True, slots=True)
class SlotRow:
    """Memory that one agent of one env writes to: entry `slot` of each column.

    The columns are memoryviews of the host's own: they store a scalar in half the time a numpy array takes, take
    anything that float() or bool() takes, and are copied to the batch in one go when the host's envs have stepped.
    """

    slot: int
    write_observation: Callable[[Any], None]
    plain_target: Any  # the row itself if the space is one Box: values that fit exactly may be assigned directly
    action_mask: Any  # [actions] 1 for allowed actions; None if the group has no masks
    rewards: memoryview  # float
    terminated: memoryview  # bool; all false before a step, so only an end needs to be written
    truncated: memoryview
    alive: memoryview
    acting: memoryview


Step = Callable[[Any], tuple[bool, dict[str, Any]]]
"""action → (whether the episode is over, info). Writes observation, reward and, at an end, terminated or truncated."""


class Env(Protocol):
    """One env with its agents' rows in the batch."""

    @property
    def description(self) -> EnvDescription: ...

    @property
    def step(self) -> Step:
        """The step function; available once the env is bound."""

    def bind(self, rows: Sequence[SlotRow]) -> None:
        """Assign the env's rows, one per agent in the order of its groups; every reset and step writes to them."""

    def reset(self, seed: int | None, options: dict[str, Any] | None, task: Any) -> dict[str, Any]:
        """Begin an episode, write the observations, return the info."""

    @property
    def mask_source(self) -> MaskSource | None:
        """Source of the env's action masks; for infos, the last reset decides. None without masks."""

    def call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a method of the foreign env, or return its attribute."""

    def set_attr(self, name: str, value: Any) -> None:
        """Set an attribute on the foreign env, or on the wrapper that has it."""

    def classes(self) -> list[type]:
        """The classes of the foreign env and of its wrappers."""

    def render(self) -> Any: ...

    def close(self) -> None: ...

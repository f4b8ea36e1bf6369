"""What the trainer asks of every algorithm."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from multiverse.contracts.policy import ActingPolicy
from multiverse.experience.features import Features
from multiverse.experience.rollout import Rollout


@dataclass(frozen=True, slots=True)
class UpdateReport:
    """What one update did."""

    metrics: Mapping[str, float] = field(default_factory=dict)
    gradient_steps: int = 0
    skipped: int = 0  # gradient steps that were not taken because a gradient was not finite


class Algorithm(Protocol):
    """Networks, optimizer and everything else that learns.

    The trainer collects a rollout of `steps_per_env` steps with `policy()`, hands it to `update`, and goes on. One
    with a replay buffer asks for short rollouts and keeps what it is given.
    """

    features: Features
    steps_per_env: int

    @property
    def action(self) -> tuple[tuple[int, ...], Any]:
        """(shape, dtype) of one action as the rollout holds it."""

    def policy(self) -> ActingPolicy:
        """What acts now; its weights stay as they are while the algorithm learns on."""

    def update(self, rollout: Rollout, progress: float) -> UpdateReport:
        """Learn from a rollout; `progress` from 0 to 1 is how much of the budget was spent before it."""

    def change(self, **settings: Any) -> None:
        """Other settings from here on; they are part of its state."""

    def state(self) -> dict[str, Any]:
        """Everything it takes to go on exactly from here: numbers, strings and numpy arrays."""

    def load_weights(self, state: Mapping[str, Any]) -> None:
        """Take over what another algorithm has learned, and nothing else of its state."""

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from a state of an algorithm with the same config and spaces."""

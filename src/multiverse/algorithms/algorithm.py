"""What the trainer asks of every algorithm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from multiverse.contracts.policy import Policy
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

    The trainer collects rollouts of `steps_per_env` steps with `policy()`, hands them to `update`, and goes on. One
    with a replay buffer asks for short rollouts and keeps what it is given. `Config`, a frozen dataclass with defaults,
    is what the command line, config files and `mv.train` fill in; the class gets it: `(config, observation_space,
    action_space, slots, seed, device)`.
    """

    features: Features
    steps_per_env: int

    @property
    def action(self) -> tuple[tuple[int, ...], Any]:
        """(shape, dtype) of one action as the rollout holds it."""

    def policy(self) -> Policy:
        """What acts now; the same object until the weights change, and these stay as they are while it is used."""

    def update(self, rollouts: Sequence[Rollout], progress: float) -> UpdateReport:
        """Learn, one rollout per group of agents; `progress` from 0 to 1 is how much of the budget was spent before."""

    def change(self, **settings: Any) -> None:
        """Other settings from here on; they are part of its state."""

    def weights(self) -> dict[str, Any]:
        """What it has learned, and nothing else: what `--init-from` takes over."""

    def load_weights(self, weights: Mapping[str, Any]) -> None:
        """Take over what another one has learned."""

    def state(self) -> dict[str, Any]:
        """Everything else it takes to go on exactly from here: numbers, strings and numpy arrays."""

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from a state of one with the same config and spaces, whose weights it has already."""

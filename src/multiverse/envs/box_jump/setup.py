"""Settings of a BoxJump world, as one frozen `Setup` that validates them.

Lengths are in boxes, times in seconds; x grows to the right and y downwards."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from multiverse.core.errors import InvalidRequest
from multiverse.envs.arguments import at_least, between, flag

MOST_BOXES = 16
FLOOR = 15.0
"""y of the surface of the floor."""
WORLD_HEIGHT = 20.0
PHYSICS_STEPS_PER_S = 40

REWARD_MODES = (
    "highest",
    "highest_stable",
    "height_sq",
    "stable_sum",
    "dense_height",
    "dense_height_stable",
    "dense_height_sq",
    "dense_height_stable_sq",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Settings that are the same in all episodes; invalid ones are refused."""

    num_boxes: int
    world_width: float
    gravity: float
    friction: float
    spacing: float
    random_spacing: float
    angular_damping: float
    fixed_rotation: bool
    max_timestep: int
    reward_mode: str
    penalty_fall: float
    physics_steps_per_action: int
    physics_timestep_multiplier: float
    termination_on_fall: bool
    penalty_fall_termination: float
    agent_one_hot: bool
    include_highest: bool
    include_time: bool
    include_num_boxes: bool

    def __post_init__(self) -> None:
        if at_least("num_boxes", self.num_boxes, 1) > MOST_BOXES:
            raise InvalidRequest(f"num_boxes={self.num_boxes}: expected 1 to {MOST_BOXES}")
        for name in ("max_timestep", "physics_steps_per_action"):
            at_least(name, getattr(self, name), 1)
        for name in ("world_width", "spacing", "physics_timestep_multiplier"):
            if between(name, getattr(self, name), 0.0) == 0:
                raise InvalidRequest(f"{name}=0: expected more than 0")
        for name in ("gravity", "friction", "random_spacing", "angular_damping", "penalty_fall"):
            between(name, getattr(self, name), 0.0)
        between("penalty_fall_termination", self.penalty_fall_termination, -math.inf)
        for field in fields(self):
            if field.type == "bool":
                flag(field.name, getattr(self, field.name))
        if self.reward_mode not in REWARD_MODES:
            raise InvalidRequest(f"reward_mode={self.reward_mode!r}: expected one of {', '.join(REWARD_MODES)}")
        self._check_width()

    def _check_width(self) -> None:
        row = (self.num_boxes - 1) * self.spacing + 2 * self.random_spacing + 1
        if row > self.world_width:
            raise InvalidRequest(
                f"{self.num_boxes} boxes with spacing={self.spacing:g} and random_spacing={self.random_spacing:g} need "
                f"{row:g}, but world_width={self.world_width:g}: make the world wider or the spacing smaller"
            )

    @property
    def timestep_s(self) -> float:
        """Duration of one physics step."""
        return self.physics_timestep_multiplier / PHYSICS_STEPS_PER_S

    @property
    def action_s(self) -> float:
        """Duration of one action."""
        return self.timestep_s * self.physics_steps_per_action

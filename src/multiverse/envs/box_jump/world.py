"""The world itself: boxes on a floor, moved by Box2D. No PettingZoo, no drawing.

Box2D is told everything in the order in which the env says it, and a world is built anew for every episode, so that
equal seeds and actions give equal bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from multiverse.envs.box_jump.setup import FLOOR, WORLD_HEIGHT, Setup

try:
    from Box2D import b2PolygonShape, b2World
except ImportError as error:
    raise ImportError(
        "BoxJump needs Box2D, which is not installed: pip install 'multiverse[box2d,pettingzoo]'"
    ) from error

NOOP, LEFT, RIGHT, JUMP = range(4)
SIDEWAYS_FORCE, JUMP_FORCE = 10.0, 250.0
FASTEST_SIDEWAYS = 2.0
CALM_SPEED, CALM_STEPS = 0.5, 10
"""A box is stable, and may jump, when it moved up or down by less than this in so many physics steps."""
ON_FLOOR = FLOOR - 0.5
BELOW_FLOOR = -0.001
"""A height below this is none on the floor."""
ITERATIONS = 30

X, Y, VX, VY, ANGLE, TURNING = range(6)


class World:
    """One world. `reset` begins an episode; `push` says what the boxes do, `advance` lets time pass.

    After `reset` and every `advance`, `rows` has what Box2D says of each box: x, y, their speeds, angle (radians) and
    angular speed. `heights` (boxes above the floor) and `stable` are those at the last `push`.
    """

    rows: list[tuple[float, float, float, float, float, float]]
    heights: list[float]
    stable: list[bool]

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self._left, self._right = ((sign * SIDEWAYS_FORCE / setup.physics_timestep_multiplier, 0.0) for sign in (-1, 1))
        # Made once: Box2D's Python side loses the memory of every shape that goes into a fixture.
        self._box_shape = b2PolygonShape(box=(0.5, 0.5))
        self._floor_shape = b2PolygonShape(box=(setup.world_width, WORLD_HEIGHT - FLOOR))  # from -W to W
        self._jump = 0.0, -JUMP_FORCE / setup.physics_timestep_multiplier

    def reset(self, rng: np.random.Generator) -> None:
        """A row of boxes in the middle of the floor."""
        setup = self.setup
        first = (setup.world_width - setup.spacing * (setup.num_boxes - 1)) / 2
        moved = rng.uniform(-setup.random_spacing, setup.random_spacing, setup.num_boxes).tolist()
        self._world = b2World(gravity=(0, setup.gravity), doSleep=True)
        self._bodies = [self._box(first + i * setup.spacing + by) for i, by in enumerate(moved)]
        # Box2D hands out references to its own vectors: asked for once, they follow the body.
        self._moving = [(body, body.position, body.linearVelocity) for body in self._bodies]
        floor = self._world.CreateStaticBody(position=(0, WORLD_HEIGHT))
        floor.CreateFixture(shape=self._floor_shape)
        self._calm_steps = [0] * setup.num_boxes
        self.stable = [False] * setup.num_boxes
        self.heights = [0.0] * setup.num_boxes
        self.best = self.best_stable = 0.0
        self._read()

    def _box(self, x: float) -> Any:
        body = self._world.CreateDynamicBody(position=(x, ON_FLOOR))
        body.CreateFixture(shape=self._box_shape, density=1, friction=self.setup.friction)
        body.angularDamping = self.setup.angular_damping
        body.fixedRotation = self.setup.fixed_rotation
        return body

    def push(self, actions: Sequence[int]) -> None:
        """The forces of these actions, for the next physics step, and how high everybody is before it."""
        calm_steps = self._calm_steps
        for i, (row, action, body) in enumerate(zip(self.rows, actions, self._bodies)):
            calm_steps[i] = calm_steps[i] + 1 if -CALM_SPEED < row[VY] < CALM_SPEED else 0
            if action == JUMP:
                if calm_steps[i] >= CALM_STEPS:
                    body.ApplyForceToCenter(self._jump, True)
            elif action == LEFT:
                if row[VX] >= -FASTEST_SIDEWAYS:
                    body.ApplyForceToCenter(self._left, True)
            elif action == RIGHT and row[VX] <= FASTEST_SIDEWAYS:
                body.ApplyForceToCenter(self._right, True)
        self.stable = [steps >= CALM_STEPS for steps in calm_steps]
        self.heights = [ON_FLOOR - row[Y] for row in self.rows]
        self.best = max(self.best, *self.heights)
        self.best_stable = max(self.best_stable, self.stable_top)

    @property
    def stable_top(self) -> float:
        """The height of the highest stable box; 0 if none is above the floor."""
        return max((height for height, stable in zip(self.heights, self.stable) if stable and height > 0), default=0.0)

    def advance(self) -> None:
        """One physics step."""
        self._world.Step(self.setup.timestep_s, ITERATIONS, ITERATIONS)
        self._read()

    def outside(self) -> list[bool]:
        """Who has left the world to the left or to the right."""
        return [not 0 <= row[X] <= self.setup.world_width for row in self.rows]

    def _read(self) -> None:
        self.rows = [(at.x, at.y, by.x, by.y, body.angle, body.angularVelocity) for body, at, by in self._moving]

"""World of BoxJump: boxes on a floor, moved by Box2D, with rewards and observations, without PettingZoo and drawing.

Calls to Box2D have a fixed order, and every episode has a new world, so that equal seeds and actions give equal bits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from multiverse.envs.box_jump.setup import FLOOR, MOST_BOXES, WORLD_HEIGHT, Setup

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
"""A box is stable, and may jump, if its vertical speed was below this in so many physics steps."""
ON_FLOOR = FLOOR - 0.5
BELOW_FLOOR = -0.001
"""Heights below this are below the floor."""
ITERATIONS = 30

X, Y, VX, VY, ANGLE, TURNING = range(6)


class World:
    """One world. `reset` begins an episode; `push` applies actions, `advance` takes a physics step.

    After `reset` and every `advance`, `rows` has the state of each box: x, y, their speeds, angle (radians) and angular
    speed. `heights` (boxes above the floor) and `stable` are those at the last `push`.
    """

    rows: list[tuple[float, float, float, float, float, float]]
    heights: list[float]
    stable: list[bool]

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self._left, self._right = ((sign * SIDEWAYS_FORCE / setup.physics_timestep_multiplier, 0.0) for sign in (-1, 1))
        # Made once: Box2D's Python binding leaks every shape that becomes part of a fixture.
        self._box_shape = b2PolygonShape(box=(0.5, 0.5))
        self._floor_shape = b2PolygonShape(box=(setup.world_width, WORLD_HEIGHT - FLOOR))  # from -W to W
        self._jump = 0.0, -JUMP_FORCE / setup.physics_timestep_multiplier

    def reset(self, rng: np.random.Generator) -> None:
        """Place a row of boxes in the middle of the floor."""
        setup = self.setup
        first = (setup.world_width - setup.spacing * (setup.num_boxes - 1)) / 2
        offsets = rng.uniform(-setup.random_spacing, setup.random_spacing, setup.num_boxes).tolist()
        self._world = b2World(gravity=(0, setup.gravity), doSleep=True)
        self._bodies = [self._box(first + i * setup.spacing + offset) for i, offset in enumerate(offsets)]
        # References to Box2D's own vectors, which follow the body.
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
        """Apply the forces of these actions to the next physics step, and record the heights before it."""
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
        """Height of the highest stable box; 0 if none is above the floor."""
        return max((height for height, stable in zip(self.heights, self.stable) if stable and height > 0), default=0.0)

    def advance(self) -> None:
        """Take one physics step."""
        self._world.Step(self.setup.timestep_s, ITERATIONS, ITERATIONS)
        self._read()

    def outside(self) -> list[bool]:
        """Return for each box whether it has left the world to the left or right."""
        return [not 0 <= row[X] <= self.setup.world_width for row in self.rows]

    def _read(self) -> None:
        self.rows = [(at.x, at.y, by.x, by.y, body.angle, body.angularVelocity) for body, at, by in self._moving]


# -- rewards ---------------------------------------------------------------------------------------------------
GAINS = ("highest", "highest_stable")
"""Modes that reward an increase; the others reward every step, with a factor of 1 / steps of the episode."""


def shown_best(world: World) -> float:
    """Return the best height so far by the reward mode."""
    return world.best_stable if world.setup.reward_mode == "highest_stable" else world.best


def step_rewards(world: World, gained: float) -> list[float]:
    """Return each box's reward for the physics step after the last `push`; `gained`: increase of the best height.

    A box outside the world gets `penalty_fall_termination` if that ends the episode; one below the floor gets its
    share of -`penalty_fall` in place of its reward.
    """
    setup = world.setup
    share = 1 / (setup.max_timestep * setup.physics_steps_per_action)
    scale = (1.0 if setup.reward_mode in GAINS else share) / setup.num_boxes
    rewards = [reward * scale for reward in _unscaled_rewards(world, gained)]
    for i, height in enumerate(world.heights):
        if height < BELOW_FLOOR:
            rewards[i] = -setup.penalty_fall * share
    if setup.termination_on_fall:
        for i, out in enumerate(world.outside()):
            if out:
                rewards[i] = setup.penalty_fall_termination
    return rewards


def _unscaled_rewards(world: World, gained: float) -> list[float]:
    mode, heights = world.setup.reward_mode, world.heights
    if mode == "height_sq":
        return [height**2 for height in heights]
    if mode == "stable_sum":
        return [50 * height**2 if stable else 0.0 for height, stable in zip(heights, world.stable)]
    return [_shared_reward(world, gained)] * len(heights)


def _shared_reward(world: World, gained: float) -> float:
    """Return the reward that is the same for all boxes, before scaling."""
    mode = world.setup.reward_mode
    if mode in GAINS:
        return gained
    top = world.stable_top if "stable" in mode else max(world.heights)
    return 10 * top**2 if mode.endswith("_sq") else 50 * top


# -- observations ----------------------------------------------------------------------------------------------
Floats = NDArray[np.float32]

OWN = ("x", "height", "vx", "vy", "quarter turns", "angular speed", "left", "right", "above", "below", "can jump")
"""Features of every box, in this order; optional ones follow: highest, time, one-hot, number of boxes."""
HEIGHT, TURNS, NEAR, CAN_JUMP = 1, 4, slice(6, 10), 10
OVERLAPPING = 0.9
"""Boxes whose centres are less than this apart on an axis overlap by 0.1: they are beside or above each other."""


class Views:
    """Makes the observations of worlds of one setup."""

    def __init__(self, setup: Setup) -> None:
        self._setup, boxes = setup, setup.num_boxes
        self.num_features = len(OWN) + setup.include_highest + setup.include_time
        self._highest = len(OWN) if setup.include_highest else None
        self._time = self.num_features - 1 if setup.include_time else None
        constants = [np.eye(boxes)] * setup.agent_one_hot + [np.full((boxes, 1), boxes)] * setup.include_num_boxes
        empty = np.zeros((boxes, self.num_features))
        self._blank = np.concatenate([empty, *constants], axis=1).astype(np.float32)  # [boxes, features]

    def space(self) -> spaces.Box:
        """Return the space of one box, unbounded for features of boxes that fall out of the world."""
        low, high = np.full((2, self._blank.shape[1]), np.inf, np.float32)
        low = -low
        low[HEIGHT], low[TURNS], high[TURNS] = -1.0, -0.5, 0.5
        low[NEAR.start : NEAR.stop - 1] = 0.0  # the floor may be above a fallen box
        low[CAN_JUMP:], high[CAN_JUMP] = 0.0, 1.0
        if self._time is not None:
            high[self._time] = 1 + 1 / self._setup.max_timestep
        high[self.num_features :] = 1.0
        if self._setup.include_num_boxes:
            low[-1], high[-1] = 1.0, MOST_BOXES  # the same for all teams: their policies fit each other
        return spaces.Box(low, high, dtype=np.float32)

    def state_space(self) -> spaces.Box:
        """Return the space of `state`."""
        own = self.space()
        low, high = (self.state(np.tile(bound, (self._setup.num_boxes, 1))) for bound in (own.low, own.high))
        return spaces.Box(low, high, dtype=np.float32)

    def observations(self, world: World, timestep: int) -> Floats:
        """Return observations [boxes, features], which belong to the caller."""
        views = self._blank.copy()
        views[:, : len(OWN)] = self._own(world)
        if self._highest is not None:
            views[:, self._highest] = shown_best(world)
        if self._time is not None:
            views[:, self._time] = timestep / self._setup.max_timestep
        return views

    def state(self, views: Floats) -> Floats:
        """Return the state of the team from all observations: each box's features, and common features once."""
        parts: list[Any] = [views[:, : len(OWN)].ravel(), views[0, len(OWN) : self.num_features]]
        return np.concatenate(parts + [views[0, -1:]] * self._setup.include_num_boxes)

    def _own(self, world: World) -> list[tuple[float, ...]]:
        """Return the features of all boxes, in plain floats: for so few boxes numpy would take three times as long."""
        width = self._setup.world_width
        xs, ys = [row[X] for row in world.rows], [row[Y] for row in world.rows]
        leftwards, upwards = [-x for x in xs], [-y for y in ys]
        near = zip(distances(leftwards, ys), distances(xs, ys), distances(upwards, xs), distances(ys, xs))
        own: list[tuple[float, ...]] = []
        for (x, y, vx, vy, angle, turning), (left, right, above, below), stable in zip(world.rows, near, world.stable):
            height, turns = ON_FLOOR - y, angle * (2 / math.pi)
            own.append(
                (
                    x * (2 / width) - 1,
                    height if height >= BELOW_FLOOR else -1.0,
                    vx * 0.5,
                    vy * 0.125,
                    turns - math.floor(turns + 0.5),  # a quarter turn is the same as none
                    turning * 0.5,
                    1.0 if left is None else left / width,
                    1.0 if right is None else right / width,
                    1.0 if above is None else above / WORLD_HEIGHT,
                    (FLOOR - y if below is None else below) / WORLD_HEIGHT,
                    stable,
                )
            )
        return own


def distances(along: Sequence[float], across: Sequence[float]) -> list[float | None]:
    """Return the distance of each box along an axis to the next one that overlaps with it on the other, or None."""
    nearest: list[float | None] = [None] * len(along)
    order = sorted(range(len(along)), key=along.__getitem__)
    for place, i in enumerate(order):
        here, beside = along[i], across[i]
        for j in order[place + 1 :]:
            if -OVERLAPPING < across[j] - beside < OVERLAPPING and along[j] > here:
                nearest[i] = along[j] - here
                break
    return nearest

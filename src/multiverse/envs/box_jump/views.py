"""What a box is told: where and how fast it is, who is near it, and whether it can jump."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from multiverse.envs.box_jump.rewards import shown_best
from multiverse.envs.box_jump.setup import FLOOR, MOST_BOXES, WORLD_HEIGHT, Setup
from multiverse.envs.box_jump.world import BELOW_FLOOR, ON_FLOOR, World, X, Y

Floats = NDArray[np.float32]

OWN = ("x", "height", "vx", "vy", "quarter turns", "angular speed", "left", "right", "above", "below", "can jump")
"""What every box sees, in this order; then what was asked for: highest, time, one-hot, number of boxes."""
HEIGHT, TURNS, NEAR, CAN_JUMP = 1, 4, slice(6, 10), 10
OVERLAPPING = 0.9
"""Boxes whose centres are less than this apart overlap by 0.1: one is beside, above or below the other."""


class Views:
    """The observations of worlds of one setup."""

    def __init__(self, setup: Setup) -> None:
        self._setup, boxes = setup, setup.num_boxes
        self.num_features = len(OWN) + setup.include_highest + setup.include_time
        self._highest = len(OWN) if setup.include_highest else None
        self._time = self.num_features - 1 if setup.include_time else None
        told = [np.eye(boxes)] * setup.agent_one_hot + [np.full((boxes, 1), boxes)] * setup.include_num_boxes
        empty = np.zeros((boxes, self.num_features))
        self._blank = np.concatenate([empty, *told], axis=1).astype(np.float32)  # [boxes, features]

    def space(self) -> spaces.Box:
        """Of one box. Only what falls out of the world knows no bounds."""
        low, high = np.full((2, self._blank.shape[1]), np.inf, np.float32)
        low = -low
        low[HEIGHT], low[TURNS], high[TURNS] = -1.0, -0.5, 0.5
        low[NEAR.start : NEAR.stop - 1] = 0.0  # the floor may be above one that has fallen
        low[CAN_JUMP:], high[CAN_JUMP] = 0.0, 1.0
        if self._time is not None:
            high[self._time] = 1 + 1 / self._setup.max_timestep
        high[self.num_features :] = 1.0
        if self._setup.include_num_boxes:
            low[-1], high[-1] = 1.0, MOST_BOXES  # whatever their number: a policy of one team fits the others
        return spaces.Box(low, high, dtype=np.float32)

    def state_space(self) -> spaces.Box:
        """Of `state`."""
        own = self.space()
        low, high = (self.state(np.tile(bound, (self._setup.num_boxes, 1))) for bound in (own.low, own.high))
        return spaces.Box(low, high, dtype=np.float32)

    def observations(self, world: World, timestep: int) -> Floats:
        """[boxes, features], the caller's own."""
        views = self._blank.copy()
        views[:, : len(OWN)] = self._own(world)
        if self._highest is not None:
            views[:, self._highest] = shown_best(world)
        if self._time is not None:
            views[:, self._time] = timestep / self._setup.max_timestep
        return views

    def state(self, views: Floats) -> Floats:
        """The whole team's, from everybody's observations: each box's own, and once what is the same for all."""
        parts: list[Any] = [views[:, : len(OWN)].ravel(), views[0, len(OWN) : self.num_features]]
        return np.concatenate(parts + [views[0, -1:]] * self._setup.include_num_boxes)

    def _own(self, world: World) -> list[tuple[float, ...]]:
        """In plain floats: for so few boxes numpy would take three times as long."""
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
                    turns - math.floor(turns + 0.5),  # a quarter turn looks like none
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
    """How far from each the next one along an axis is that it overlaps with on the other; None: there is none."""
    found: list[float | None] = [None] * len(along)
    order = sorted(range(len(along)), key=along.__getitem__)
    for place, i in enumerate(order):
        here, beside = along[i], across[i]
        for j in order[place + 1 :]:
            if -OVERLAPPING < across[j] - beside < OVERLAPPING and along[j] > here:
                found[i] = along[j] - here
                break
    return found

"""What an agent is told: its place, the codes around it, and where the target is if it may know."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from multiverse.envs.grid_world.setup import AgentSetup, WorldSetup
from multiverse.envs.grid_world.world import AGENT, BLOCKED, EMPTY, MASKED, TARGET, World

Observation = dict[str, np.ndarray[Any, np.dtype[np.int64]]]


def observation_space(setup: WorldSetup, agent: AgentSetup) -> spaces.Dict:
    """The agent's Dict space. Keys are in the order in which Gymnasium sorts them."""
    lowest = MASKED if agent.max_altitude > 1 else EMPTY
    found: dict[str, spaces.Space[Any]] = {
        "agent": spaces.Box(0, setup.size - 1, (2,), np.int64),
        "obstacles_fov": spaces.Box(lowest, TARGET, (agent.view_cells,) * 2, np.int64),
    }
    if agent.shows_target:
        found["target"] = spaces.Box(0, setup.size - 1, (2,), np.int64)
    return spaces.Dict(found)


def observe(world: World, index: int) -> Observation:
    """The agent's observation now, in arrays that are the caller's own. Looking changes nothing."""
    body = world.bodies[index]
    found = {"agent": np.array((body.x, body.y), np.int64), "obstacles_fov": _view(world, index)}
    if body.setup.shows_target and world.target is not None:
        found["target"] = np.array((world.target.x, world.target.y), np.int64)
    return found


def _view(world: World, index: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The codes around an agent, the row above it first: [k, k]."""
    body, target = world.bodies[index], world.target
    radius, x, y = body.radius, body.x + world.margin, body.y + world.margin
    side, whole = 2 * radius + 1, world.masked[index]
    view = world.codes[y - radius : y + radius + 1, x - radius : x + radius + 1].copy()
    if view[radius, radius] != TARGET:
        view[radius, radius] = BLOCKED if (body.x, body.y) in world.obstacles else EMPTY  # what is below, not itself
    if target is not None and not world.sees_target(body):
        dx, dy = target.x - body.x + radius, target.y - body.y + radius
        if 0 <= dx < side and 0 <= dy < side:
            view[dy, dx] = AGENT if world.reached else EMPTY
    ring = len(whole) // 2 - radius
    if ring == 0:
        return view
    whole = whole.copy()
    whole[ring : ring + side, ring : ring + side] = view
    return whole

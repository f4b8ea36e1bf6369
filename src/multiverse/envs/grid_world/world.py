"""World of the grid world: cells, agents, a target, rewards and observations, without PettingZoo and drawing."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from multiverse.envs.grid_world.setup import AgentSetup, WorldSetup

Cell = tuple[int, int]

EMPTY, BLOCKED, AGENT, TARGET, MASKED = 0, 1, 2, 3, -10

RIGHT, UP, LEFT, DOWN, STAY, ASCEND, KEEP_ALTITUDE, DESCEND = range(8)
HEADINGS = ((1, 0), (0, -1), (-1, 0), (0, 1))  # by action

ABOVE_OBSTACLES = 2
"""Lowest altitude above obstacles."""

REACHED, NOTHING_SEEN, NEW_CELL = 1.0, -0.01, 0.025


class Body:
    """An agent in the world. Values that depend on its altitude are stored, since every step needs them."""

    __slots__ = ("altitude", "detection", "flies", "glance", "radius", "setup", "visited", "x", "y")

    def __init__(self, setup: AgentSetup, x: int, y: int, glance: float) -> None:
        self.setup, self.flies = setup, setup.flies
        self.x, self.y = x, y
        self.visited = {(x, y)}
        self.glance = glance  # a uniform draw: below `detection`, it detects a target in its view
        self.be_at(1)

    def be_at(self, altitude: int) -> None:
        self.altitude = altitude
        self.radius = self.setup.base_cells // 2 + altitude - 1  # cells in view to each side
        self.detection = self.setup.detection[altitude - 1]


class Target:
    """The target that the agents search for."""

    __slots__ = ("heading", "x", "y")

    def __init__(self, x: int, y: int) -> None:
        self.x, self.y = x, y
        self.heading: tuple[int, int] | None = None


class World:
    """One grid. `reset` begins an episode; in each step every agent acts once, in order, before `end_step`."""

    bodies: list[Body]
    target: Target | None
    obstacles: set[Cell]
    codes: NDArray[np.int64]  # [margin + size + margin] twice, row y first
    masked: list[NDArray[np.int64]]  # for each agent a view in which all cells are masked

    def __init__(self, setup: WorldSetup) -> None:
        self.setup = setup
        # A margin of at least 1 blocks moves off the grid.
        self.margin = max(1, *(agent.view_cells // 2 for agent in setup.agents))
        self.masked = [np.full((agent.view_cells,) * 2, MASKED, np.int64) for agent in setup.agents]
        self._target_radius = setup.target.view_cells // 2 if setup.target is not None else 0

    def reset(self, rng: np.random.Generator) -> None:
        """Place obstacles, target and agents on cells drawn from `rng`, which also moves the target from now on."""
        self.rng = rng
        self.steps, self.reached = 0, False
        size, target = self.setup.size, self.setup.target
        order = [(cell % size, cell // size) for cell in rng.permutation(size**2).tolist()]
        first = None if target is None else target.initial_position
        self.obstacles = place_obstacles(self.setup.num_obstacles, order, first)
        cells = iter([cell for cell in order if cell not in self.obstacles and cell != first])
        self.target = None if target is None else Target(*(first or next(cells)))
        self.bodies = [
            Body(agent, *next(cells), glance=rng.random() if agent.flies else 0.0) for agent in self.setup.agents
        ]
        self.draw_codes()

    def act(self, index: int, action: int) -> float:
        """Let one agent act and return its reward. Moves that are blocked have no effect."""
        body = self.bodies[index]
        if action < STAY:
            self._move(body, *HEADINGS[action])
        elif action == ASCEND:
            body.be_at(min(body.altitude + 1, body.setup.max_altitude))
        elif action == DESCEND:
            self._descend(body)
        if body.flies:
            body.glance = self.rng.random()
        return self._reward(body)

    def end_step(self) -> None:
        """End a step after all agents have acted: a target that has not been reached may move."""
        self.steps += 1
        if self.target is not None and not self.reached:
            self._move_target(self.target)

    @property
    def out_of_time(self) -> bool:
        return self.steps >= self.setup.max_steps

    def sees_target(self, body: Body) -> bool:
        """Return whether the target is in view and detected."""
        return self._detects(body, self._distance(body))

    def _distance(self, body: Body) -> float:
        """Return the distance to the target in cells, the larger of both axes; infinite without a target."""
        target = self.target
        return math.inf if target is None else max(abs(body.x - target.x), abs(body.y - target.y))

    @staticmethod
    def _detects(body: Body, distance: float) -> bool:
        return distance <= body.radius and (body.glance < body.detection or distance == 0)

    # -- agents ------------------------------------------------------------------------------------------------
    def _move(self, body: Body, dx: int, dy: int) -> None:
        x, y = body.x + dx, body.y + dy
        if not self._open_to(body, x, y):
            return
        codes, margin = self.codes, self.margin
        codes[body.y + margin, body.x + margin] = BLOCKED if (body.x, body.y) in self.obstacles else EMPTY
        body.x, body.y = x, y
        if codes[y + margin, x + margin] != TARGET:
            codes[y + margin, x + margin] = AGENT

    def _open_to(self, body: Body, x: int, y: int) -> bool:
        code = self.codes[y + self.margin, x + self.margin]
        if code == EMPTY:
            return True
        if code == TARGET:
            return not self.reached  # if it was reached, an agent is there
        return code == BLOCKED and body.altitude >= ABOVE_OBSTACLES and (x, y) in self.obstacles

    def _descend(self, body: Body) -> None:
        """Move one level down, but not below level 1 and not into an obstacle."""
        lower = body.altitude - 1
        if lower >= ABOVE_OBSTACLES or (lower == 1 and (body.x, body.y) not in self.obstacles):
            body.be_at(lower)

    def _reward(self, body: Body) -> float:
        """Return the reward of an agent's action, with 0.025 more for a cell that is new to it (`intrinsic`)."""
        reward = self._search_reward(body)
        return reward + NEW_CELL if self.setup.intrinsic and self._visits(body) else reward

    def _search_reward(self, body: Body) -> float:
        """Return 1 at the target, -λ inside the target's own view, 1 - λ for seeing it, otherwise -0.01."""
        distance = self._distance(body)
        if distance == 0:
            self.reached = True
            return REACHED
        if distance <= self._target_radius:
            return -self.setup.lambda_fov
        return 1.0 - self.setup.lambda_fov if self._detects(body, distance) else NOTHING_SEEN

    @staticmethod
    def _visits(body: Body) -> bool:
        """Record the agent's cell; return whether it is new to the agent."""
        known = len(body.visited)
        body.visited.add((body.x, body.y))
        return len(body.visited) > known

    # -- the target --------------------------------------------------------------------------------------------
    def _move_target(self, target: Target) -> None:
        setup = self.setup.target
        if setup is None or self.rng.random() >= setup.movement_speed:
            return
        if not (setup.smooth_movement and target.heading and self._is_empty_beside(target, target.heading)):
            target.heading = self._new_heading(target)
        for _ in range(setup.movement_range):
            if target.heading is None or not self._is_empty_beside(target, target.heading):
                return
            self.codes[target.y + self.margin, target.x + self.margin] = EMPTY
            target.x, target.y = target.x + target.heading[0], target.y + target.heading[1]
            self.codes[target.y + self.margin, target.x + self.margin] = TARGET

    def _new_heading(self, target: Target) -> tuple[int, int] | None:
        """Draw one of the free directions, all with the same probability."""
        free = [heading for heading in HEADINGS if self._is_empty_beside(target, heading)]
        return free[int(self.rng.random() * len(free))] if free else None

    def _is_empty_beside(self, target: Target, heading: tuple[int, int]) -> bool:
        y, x = target.y + heading[1] + self.margin, target.x + heading[0] + self.margin
        return bool(self.codes[y, x] == EMPTY)

    # -- the map -----------------------------------------------------------------------------------------------
    def draw_codes(self) -> None:
        """Draw the map from all positions, also after code has changed them directly."""
        size, margin = self.setup.size, self.margin
        self.codes = np.full((size + 2 * margin,) * 2, BLOCKED, np.int64)
        inside = self.codes[margin : margin + size, margin : margin + size]
        inside[:] = EMPTY
        for x, y in self.obstacles:
            inside[y, x] = BLOCKED
        for body in self.bodies:
            inside[body.y, body.x] = AGENT
        if self.target is not None:
            inside[self.target.y, self.target.x] = TARGET


# -- obstacles -------------------------------------------------------------------------------------------------
def place_obstacles(count: int, order: Sequence[Cell], kept_free: Cell | None) -> set[Cell]:
    """Return the first `count` cells of `order`, the whole grid, that keep free cells connected, without `kept_free`.

    With two or more free cells there is always another such cell: a connected graph has at least two vertices whose
    removal leaves it connected. A cell that was skipped can become one later, so there are several rounds.
    """
    placed: set[Cell] = set()
    candidates = [cell for cell in order if cell != kept_free]
    while len(placed) < count:
        for cell in candidates:
            if len(placed) < count and cell not in placed and not _cuts_off(cell, order, placed):
                placed.add(cell)
    return placed


def _cuts_off(cell: Cell, grid: Iterable[Cell], placed: set[Cell]) -> bool:
    """Return whether another obstacle at `cell` would separate free cells from each other."""
    x, y = cell
    if placed.isdisjoint((x + dx, y + dy) for dx in (-1, 0, 1) for dy in (-1, 0, 1)):
        return False  # all its neighbours are free
    unreached = set(grid) - placed - {cell}
    waiting = [unreached.pop()] if unreached else []
    while waiting:
        x, y = waiting.pop()
        beside = unreached.intersection((x + dx, y + dy) for dx, dy in HEADINGS)
        unreached -= beside
        waiting += beside
    return bool(unreached)


# -- observations ----------------------------------------------------------------------------------------------
Observation = dict[str, np.ndarray[Any, np.dtype[np.int64]]]


def observation_space(setup: WorldSetup, agent: AgentSetup) -> spaces.Dict:
    """Return the agent's Dict space, with keys in Gymnasium's order."""
    lowest = MASKED if agent.max_altitude > 1 else EMPTY
    by_key: dict[str, spaces.Space[Any]] = {
        "agent": spaces.Box(0, setup.size - 1, (2,), np.int64),
        "obstacles_fov": spaces.Box(lowest, TARGET, (agent.view_cells,) * 2, np.int64),
    }
    if agent.shows_target:
        by_key["target"] = spaces.Box(0, setup.size - 1, (2,), np.int64)
    return spaces.Dict(by_key)


def observe(world: World, index: int) -> Observation:
    """Return the agent's current observation, in arrays that belong to the caller."""
    body = world.bodies[index]
    observation = {"agent": np.array((body.x, body.y), np.int64), "obstacles_fov": _view(world, index)}
    if body.setup.shows_target and world.target is not None:
        observation["target"] = np.array((world.target.x, world.target.y), np.int64)
    return observation


def _view(world: World, index: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the codes around an agent [k, k], the row above it first."""
    body, target = world.bodies[index], world.target
    radius, x, y = body.radius, body.x + world.margin, body.y + world.margin
    side, whole = 2 * radius + 1, world.masked[index]
    view = world.codes[y - radius : y + radius + 1, x - radius : x + radius + 1].copy()
    if view[radius, radius] != TARGET:
        # The code of what is below the agent.
        view[radius, radius] = BLOCKED if (body.x, body.y) in world.obstacles else EMPTY
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

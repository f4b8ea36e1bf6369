"""Grid worlds with agents, obstacles and target at given cells."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from multiverse.envs.grid_world import GridWorldEnvMultiAgent, GridWorldParallel

Cell = tuple[int, int]

RIGHT, UP, LEFT, DOWN, STAY, HIGHER, SAME, LOWER = range(8)
GROUND, OBSERVER = {"type": "ground"}, {"type": "observer"}
STANDING = {"movement_speed": 0.0}


def arranged(
    agents: Sequence[dict[str, Any]],
    cells: Sequence[Cell],
    target: Cell | None = None,
    obstacles: Iterable[Cell] = (),
    altitudes: Sequence[int] | None = None,
    **arguments: Any,
) -> GridWorldEnvMultiAgent:
    """A turn-based env after its reset, with its agents on these cells; without `target` there is none."""
    arguments = {"size": 9, "target_config": STANDING, "no_target": target is None, **arguments}
    env = GridWorldEnvMultiAgent(agents=list(agents), **arguments)
    env.reset(seed=0)
    put(env, cells, target, obstacles, altitudes)
    return env


def put(
    env: GridWorldEnvMultiAgent | GridWorldParallel,
    cells: Sequence[Cell],
    target: Cell | None = None,
    obstacles: Iterable[Cell] = (),
    altitudes: Sequence[int] | None = None,
) -> None:
    world = env.world
    world.obstacles = set(obstacles)
    for body, cell, altitude in zip(world.bodies, cells, altitudes or [1] * len(cells), strict=True):
        body.x, body.y = cell
        body.visited = {cell}
        body.be_at(altitude)
    if world.target is not None and target is not None:
        world.target.x, world.target.y = target
    world.draw_codes()


def cells_of(env: GridWorldEnvMultiAgent | GridWorldParallel) -> list[Cell]:
    return [(body.x, body.y) for body in env.world.bodies]


def acted(env: GridWorldEnvMultiAgent, *actions: int) -> list[float]:
    """Let the agents act one after the other; return the reward of each."""
    rewards = []
    for action in actions:
        agent = env.agent_selection
        env.step(action)
        rewards.append(env.rewards[agent])
    return rewards

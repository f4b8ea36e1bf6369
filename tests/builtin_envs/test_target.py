"""Movement of the target, which can always be reached."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from multiverse.envs.grid_world import GridWorldEnvMultiAgent
from tests.builtin_envs.worlds import GROUND, RIGHT, STAY, Cell, acted, arranged


def target_of(env: GridWorldEnvMultiAgent) -> Cell:
    assert env.world.target is not None
    return env.world.target.x, env.world.target.y


def walk(env: GridWorldEnvMultiAgent, steps: int) -> list[Cell]:
    """Return the cell of the target after each step of agents that stay."""
    cells = [target_of(env)]
    for _ in range(steps):
        acted(env, *[STAY] * len(env.agents))
        cells.append(target_of(env))
    return cells


def moves(cells: list[Cell]) -> list[Cell]:
    return [(b[0] - a[0], b[1] - a[1]) for a, b in pairwise(cells)]


def moving(speed: float = 1.0, **more: Any) -> dict[str, Any]:
    return {"movement_speed": speed, **more}


@pytest.mark.parametrize(("config", "speed"), [({}, 0.3), ({"movement_speed": 0.8}, 0.8), ({"movement_speed": 0}, 0)])
def test_target_moves_as_often_as_its_speed_says(config: dict[str, float], speed: float) -> None:
    env = arranged([GROUND], [(0, 0)], target=(5, 5), target_config=config, max_steps=5000)
    moved = [move != (0, 0) for move in moves(walk(env, 4000))]
    assert abs(np.mean(moved) - speed) < 0.03


def test_target_moves_once_per_step_of_all_agents() -> None:
    env = arranged([GROUND] * 3, [(0, 0), (0, 1), (0, 2)], target=(5, 5), target_config=moving())
    acted(env, STAY, STAY)
    assert target_of(env) == (5, 5)
    acted(env, STAY)
    assert target_of(env) != (5, 5)


def test_target_moves_in_each_direction_equally_often() -> None:
    env = arranged([GROUND], [(0, 0)], target=(15, 15), target_config=moving(), size=31, max_steps=5000)
    counts = Counter()
    for _ in range(400):  # in the open: from the middle each time
        counts.update(moves(walk(env, 2)))
        assert env.world.target is not None
        env.world.target.x, env.world.target.y = 15, 15
        env.world.draw_codes()
    assert set(counts) == {(1, 0), (-1, 0), (0, 1), (0, -1)}
    assert min(counts.values()) > 150


def test_target_stays_on_free_cells_of_the_grid() -> None:
    obstacles = [(2, 2), (3, 2), (0, 3)]
    env = arranged(
        [GROUND], [(1, 1)], target=(3, 3), obstacles=obstacles, target_config=moving(), size=4, max_steps=999
    )
    visited = set(walk(env, 900))
    assert visited == {(x, y) for x in range(4) for y in range(4)} - {*obstacles, (1, 1)}


def test_surrounded_target_does_not_move() -> None:
    env = arranged([GROUND, GROUND], [(1, 0), (0, 1)], target=(0, 0), target_config=moving(), max_steps=99)
    assert set(walk(env, 50)) == {(0, 0)}


def test_reached_target_does_not_move() -> None:
    env = arranged([GROUND], [(4, 4)], target=(5, 4), target_config=moving())
    acted(env, RIGHT)
    assert target_of(env) == (5, 4)


def test_smooth_target_keeps_its_heading_until_it_is_blocked() -> None:
    config = moving(smooth_movement=True)
    env = arranged([GROUND], [(0, 0)], target=(5, 5), target_config=config, size=11, max_steps=999)
    cells = walk(env, 300)
    steps = moves(cells)
    for cell, before, after in zip(cells[1:], steps, steps[1:]):
        ahead = (cell[0] + before[0], cell[1] + before[1])
        if before != after:
            assert ahead == (0, 0) or not all(0 <= part < 11 for part in ahead)


def test_movement_range_is_the_distance_of_one_move() -> None:
    config = moving(movement_range=3)
    env = arranged([GROUND], [(0, 0)], target=(15, 15), target_config=config, size=31)
    assert {abs(dx) + abs(dy) for dx, dy in moves(walk(env, 2))} == {3}
    env = arranged([GROUND], [(1, 1)], target=(0, 0), target_config=config, size=3)
    assert {abs(dx) + abs(dy) for dx, dy in moves(walk(env, 20))} <= {1, 2}  # the edge stops it


def test_target_starts_at_the_given_position() -> None:
    env = GridWorldEnvMultiAgent(
        size=3, target_config={"initial_position": (2, 1)}, enable_obstacles=True, num_obstacles=6
    )
    for seed in range(30):
        env.reset(seed=seed)
        assert target_of(env) == (2, 1)
        assert (2, 1) not in env.world.obstacles


# -- where things start ----------------------------------------------------------------------------------------
def reachable(start: Cell, size: int, obstacles: set[Cell]) -> set[Cell]:
    seen, waiting = {start}, [start]
    while waiting:
        x, y = waiting.pop()
        for cell in ((x + 1, y), (x - 1, y), (x, y + 1), (x, y - 1)):
            if all(0 <= part < size for part in cell) and cell not in obstacles | seen:
                seen.add(cell)
                waiting.append(cell)
    return seen


@pytest.mark.parametrize(("size", "num_obstacles"), [(10, 3), (5, 12), (6, 30), (2, 1), (3, 6)])
def test_obstacles_have_the_given_number_and_enclose_no_cell(size: int, num_obstacles: int) -> None:
    env = GridWorldEnvMultiAgent(size=size, enable_obstacles=True, num_obstacles=num_obstacles)
    for seed in range(40):
        env.reset(seed=seed)
        obstacles = env.world.obstacles
        assert len(obstacles) == num_obstacles
        assert len(reachable(target_of(env), size, obstacles)) == size**2 - num_obstacles


def test_all_agents_obstacles_and_the_target_start_on_different_cells() -> None:
    env = GridWorldEnvMultiAgent(size=4, agents=[GROUND] * 9, enable_obstacles=True, num_obstacles=6)
    for seed in range(40):
        env.reset(seed=seed)
        cells = [(body.x, body.y) for body in env.world.bodies]
        assert len({*cells, target_of(env), *env.world.obstacles}) == 16


def test_every_cell_can_be_a_start_cell() -> None:
    env = GridWorldEnvMultiAgent(size=3, agents=[GROUND], enable_obstacles=True, num_obstacles=1)
    seen: list[set[Cell]] = [set(), set(), set()]
    for seed in range(300):
        env.reset(seed=seed)
        seen[0].add(target_of(env))
        seen[1].add((env.world.bodies[0].x, env.world.bodies[0].y))
        seen[2] |= env.world.obstacles
    assert [len(each) for each in seen] == [9, 9, 9]


def test_obstacles_are_off_unless_enabled() -> None:
    env = GridWorldEnvMultiAgent(num_obstacles=5)
    env.reset(seed=0)
    assert env.world.obstacles == set()

"""Movement: actions, walls, obstacles, other agents and altitude."""

from __future__ import annotations

import numpy as np
import pytest

import multiverse as mv
from tests.builtin_envs.worlds import (
    DOWN,
    GROUND,
    HIGHER,
    LEFT,
    LOWER,
    OBSERVER,
    RIGHT,
    SAME,
    STAY,
    UP,
    acted,
    arranged,
    cells_of,
)


@pytest.mark.parametrize("agent", [GROUND, OBSERVER])
@pytest.mark.parametrize(
    ("action", "cell"), [(RIGHT, (5, 4)), (UP, (4, 3)), (LEFT, (3, 4)), (DOWN, (4, 5)), (STAY, (4, 4))]
)
def test_five_moves_lead_to_the_named_cells(agent: dict[str, str], action: int, cell: tuple[int, int]) -> None:
    env = arranged([agent], [(4, 4)])
    acted(env, action)
    assert cells_of(env) == [cell]
    assert env.observe(env.agents[0])["agent"].tolist() == list(cell)


def test_ground_agents_have_five_actions_and_observers_eight() -> None:
    env = arranged([GROUND, OBSERVER], [(0, 0), (1, 1)])
    assert [env.action_space(agent).n for agent in env.agents] == [5, 8]


@pytest.mark.parametrize(("cell", "action"), [((0, 4), LEFT), ((8, 4), RIGHT), ((4, 0), UP), ((4, 8), DOWN)])
@pytest.mark.parametrize("altitude", [1, 3])
def test_edges_of_the_grid_stop_agents_at_every_altitude(cell: tuple[int, int], action: int, altitude: int) -> None:
    env = arranged([OBSERVER], [cell], altitudes=[altitude])
    acted(env, action)
    assert cells_of(env) == [cell]


def test_agent_that_sees_only_its_own_cell_stays_on_the_grid() -> None:
    env = arranged([{"fov_size": 1}], [(0, 0)])
    acted(env, LEFT, UP)
    assert cells_of(env) == [(0, 0)]
    env = arranged([{"fov_size": 1}], [(8, 8)])
    acted(env, RIGHT, DOWN)
    assert cells_of(env) == [(8, 8)]


def test_obstacle_stops_a_ground_agent() -> None:
    env = arranged([GROUND], [(4, 4)], obstacles=[(5, 4)])
    acted(env, RIGHT, UP, RIGHT)
    assert cells_of(env) == [(5, 3)]


@pytest.mark.parametrize(("altitude", "passes"), [(1, False), (2, True), (3, True)])
def test_observer_flies_over_obstacles_from_altitude_two(altitude: int, passes: bool) -> None:
    env = arranged([OBSERVER], [(4, 4)], obstacles=[(5, 4)], altitudes=[altitude])
    acted(env, RIGHT)
    assert cells_of(env) == [(5, 4) if passes else (4, 4)]


def test_obstacle_below_an_observer_still_blocks_ground_agents() -> None:
    env = arranged([OBSERVER, GROUND], [(4, 4), (6, 4)], obstacles=[(5, 4)], altitudes=[2, 1])
    acted(env, RIGHT, STAY, DOWN, LEFT)
    assert cells_of(env) == [(5, 5), (6, 4)]


def test_observer_cannot_descend_into_an_obstacle() -> None:
    env = arranged([OBSERVER], [(5, 4)], obstacles=[(5, 4)], altitudes=[3])
    acted(env, LOWER, LOWER)
    assert env.world.bodies[0].altitude == 2
    acted(env, RIGHT, LOWER)
    assert env.world.bodies[0].altitude == 1


def test_altitude_is_between_one_and_three() -> None:
    env = arranged([OBSERVER], [(4, 4)])
    seen = []
    for action in (LOWER, HIGHER, SAME, HIGHER, HIGHER, STAY, LOWER, LOWER, LOWER):
        acted(env, action)
        seen.append(env.world.bodies[0].altitude)
    assert seen == [1, 2, 2, 3, 3, 3, 2, 1, 1]
    assert cells_of(env) == [(4, 4)]


def test_max_altitude_limits_the_observer() -> None:
    env = arranged([{"type": "observer", "max_altitude": 2}], [(4, 4)])
    acted(env, HIGHER, HIGHER)
    assert env.world.bodies[0].altitude == 2
    assert env.observation_space("observer_0")["obstacles_fov"].shape == (5, 5)


@pytest.mark.parametrize("altitudes", [(1, 1), (1, 3), (3, 1), (2, 3)])
def test_agents_block_each_other_at_every_altitude(altitudes: tuple[int, int]) -> None:
    env = arranged([OBSERVER, OBSERVER], [(4, 4), (5, 4)], altitudes=altitudes)
    acted(env, RIGHT, LEFT)
    assert cells_of(env) == [(4, 4), (5, 4)]


def test_cell_is_free_as_soon_as_its_agent_has_left() -> None:
    env = arranged([GROUND, GROUND], [(4, 4), (3, 4)])
    acted(env, RIGHT, RIGHT)
    assert cells_of(env) == [(5, 4), (4, 4)]
    env = arranged([GROUND, GROUND], [(3, 4), (4, 4)])
    acted(env, RIGHT, RIGHT)
    assert cells_of(env) == [(3, 4), (5, 4)]  # the first was there too early


@pytest.mark.parametrize("action", [5, -1, 1.0, "right", None, np.array([1])])
def test_invalid_action_is_refused_and_changes_nothing(action: object) -> None:
    env = arranged([GROUND, OBSERVER], [(4, 4), (0, 0)])
    with pytest.raises(mv.errors.InvalidActions, match="'ground_0': expected a whole number from 0 to 4"):
        env.step(action)
    assert cells_of(env) == [(4, 4), (0, 0)]
    assert env.agent_selection == "ground_0"


@pytest.mark.parametrize("action", [0, np.int64(0), np.int32(0), np.uint8(0), np.array(0)])
def test_every_integer_type_is_accepted_as_action(action: object) -> None:
    env = arranged([GROUND], [(4, 4)])
    env.step(action)
    assert cells_of(env) == [(5, 4)]

"""Views of agents: the codes, the size by altitude, masking, and detection from above."""

from __future__ import annotations

import numpy as np
import pytest

from multiverse.envs.grid_world import GridWorldEnvMultiAgent
from tests.builtin_envs.worlds import GROUND, HIGHER, OBSERVER, RIGHT, STAY, acted, arranged


def view(env: GridWorldEnvMultiAgent, agent: str) -> np.ndarray:
    return env.observe(agent)["obstacles_fov"]


def test_every_code_is_at_the_cell_of_its_object() -> None:
    env = arranged([GROUND, GROUND], [(1, 4), (2, 3)], target=(3, 5), obstacles=[(1, 3), (0, 6)])
    assert view(env, "ground_0").tolist() == [
        [1, 0, 0, 0, 0],
        [1, 0, 1, 2, 0],
        [1, 0, 0, 0, 0],
        [1, 0, 0, 0, 3],
        [1, 1, 0, 0, 0],
    ]


@pytest.mark.parametrize("fov_size", [1, 3, 5, 7])
def test_view_of_a_ground_agent_has_the_given_size(fov_size: int) -> None:
    env = arranged([{"fov_size": fov_size}], [(8, 8)])
    space = env.observation_space("ground_0")
    assert view(env, "ground_0").shape == (fov_size, fov_size)
    assert (space["obstacles_fov"].low.min(), space["obstacles_fov"].high.max()) == (0, 3)
    assert env.observe("ground_0") in space


@pytest.mark.parametrize(("altitude", "side"), [(1, 3), (2, 5), (3, 7)])
def test_view_of_an_observer_grows_with_altitude_and_the_rest_is_masked(altitude: int, side: int) -> None:
    env = arranged([OBSERVER], [(4, 4)], altitudes=[altitude])
    seen = view(env, "observer_0")
    ring = (7 - side) // 2
    inside = seen[ring : 7 - ring, ring : 7 - ring]
    assert seen.shape == (7, 7)
    assert (inside == 0).all()
    assert np.count_nonzero(seen == -10) == 49 - side**2


def test_masked_cells_reveal_nothing() -> None:
    env = arranged([OBSERVER, GROUND], [(0, 0), (2, 2)], target=(3, 0), obstacles=[(0, 2)])
    low = view(env, "observer_0")
    assert set(np.unique(low)) == {-10, 0, 1}  # code 1: outside the grid
    acted(env, HIGHER, STAY)
    assert view(env, "observer_0")[5, 5] == 2
    assert view(env, "observer_0")[5, 3] == 1
    env.world.bodies[0].be_at(3)
    env.world.bodies[0].glance = 0.0
    assert view(env, "observer_0")[3, 6] == 3


def test_outside_the_grid_is_coded_like_an_obstacle() -> None:
    env = arranged([OBSERVER], [(0, 0)], altitudes=[3])
    seen = view(env, "observer_0")
    assert (seen[:3] == 1).all() and (seen[:, :3] == 1).all()
    assert (seen[3:, 3:] == 0).all()


def test_own_cell_shows_what_is_below() -> None:
    env = arranged([OBSERVER], [(4, 4)], obstacles=[(4, 4)], altitudes=[2])
    assert view(env, "observer_0")[3, 3] == 1
    env = arranged([GROUND], [(4, 4)])
    assert view(env, "ground_0")[2, 2] == 0


def test_agent_on_the_target_is_shown_as_the_target() -> None:
    env = arranged([GROUND, GROUND], [(4, 4), (5, 5)], target=(5, 4))
    acted(env, RIGHT)
    assert view(env, "ground_0")[2, 2] == 3
    assert view(env, "ground_1")[1, 2] == 3


def test_agent_on_the_target_is_shown_as_an_agent_if_the_target_is_not_detected() -> None:
    env = arranged([GROUND, OBSERVER], [(4, 4), (5, 6)], target=(5, 4), altitudes=[1, 3])
    acted(env, RIGHT)
    env.world.bodies[1].glance = 0.99
    assert view(env, "observer_0")[1, 3] == 2


@pytest.mark.parametrize(("altitude", "probability"), [(1, 1.0), (2, 0.66), (3, 0.33)])
def test_target_in_view_is_detected_with_the_probability_of_the_altitude(altitude: int, probability: float) -> None:
    env = arranged([OBSERVER], [(4, 4)], target=(5, 4), altitudes=[altitude], max_steps=5000)
    noticed = []
    for _ in range(4000):
        acted(env, STAY)
        noticed.append(view(env, "observer_0")[3, 4] == 3)
    assert abs(np.mean(noticed) - probability) < 0.03


def test_undetected_target_looks_empty_on_every_look_of_a_step() -> None:
    env = arranged([OBSERVER], [(4, 4)], target=(5, 4), altitudes=[3], max_steps=5000)
    for _ in range(50):
        acted(env, STAY)
        looks = [view(env, "observer_0")[3, 4] for _ in range(5)]
        assert looks[0] in (0, 3)
        assert len(set(looks)) == 1


def test_ground_agent_always_detects_the_target_in_view() -> None:
    env = arranged([GROUND], [(4, 4)], target=(6, 6))
    for _ in range(50):
        acted(env, STAY)
        assert view(env, "ground_0")[4, 4] == 3


def test_detection_probabilities_and_view_sizes_can_be_configured() -> None:
    agent = {"fov_base_size": 5, "max_altitude": 2, "target_detection_probs": [0.0, 1.0]}
    env = arranged([agent], [(4, 4)], target=(6, 6))
    assert view(env, "observer_0").shape == (7, 7)
    assert 3 not in view(env, "observer_0")
    env.world.bodies[0].be_at(2)
    assert view(env, "observer_0")[5, 5] == 3


def test_target_coordinates_are_shown_only_to_agents_configured_for_it() -> None:
    env = arranged([GROUND], [(0, 0)], target=(7, 3), show_target_coords=True)
    assert env.observe("ground_0")["target"].tolist() == [7, 3]
    env = arranged([GROUND, {**OBSERVER, "show_target_coords": True}], [(0, 0), (1, 1)], target=(7, 3))
    assert "target" not in env.observe("ground_0")
    assert env.observe("observer_0")["target"].tolist() == [7, 3]
    assert all(env.observe(agent) in env.observation_space(agent) for agent in env.agents)


def test_env_without_target_shows_none() -> None:
    env = GridWorldEnvMultiAgent(no_target=True, size=3)
    env.reset(seed=0)
    for _ in range(100):
        env.step(STAY)
        assert all(3 not in view(env, agent) for agent in env.agents)


def test_observations_are_copies() -> None:
    env = arranged([GROUND], [(4, 4)], target=(5, 4), show_target_coords=True)
    first = env.observe("ground_0")
    kept = {key: value.copy() for key, value in first.items()}
    acted(env, 3)
    env.observe("ground_0")["obstacles_fov"][:] = 7
    assert all(np.array_equal(first[key], kept[key]) for key in kept)
    assert 7 not in env.observe("ground_0")["obstacles_fov"]

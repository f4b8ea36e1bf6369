"""Every case of the reward, and the ends of episodes."""

from __future__ import annotations

import pytest

import multiverse as mv
from multiverse.envs.grid_world import GridWorldParallel
from tests.builtin_envs.worlds import DOWN, GROUND, LEFT, OBSERVER, RIGHT, STANDING, STAY, acted, arranged, put


@pytest.mark.parametrize("lambda_fov", [-0.5, 0.0, 0.25, 0.5])
@pytest.mark.parametrize("agent", [GROUND, OBSERVER])
def test_reaching_the_target_pays_one_for_every_lambda(agent: dict[str, str], lambda_fov: float) -> None:
    env = arranged([agent], [(4, 4)], target=(5, 4), lambda_fov=lambda_fov)
    assert acted(env, RIGHT) == [1.0]


@pytest.mark.parametrize("cell", [(3, 3), (5, 5), (4, 3), (3, 4)])
@pytest.mark.parametrize("lambda_fov", [-0.5, 0.25])
def test_standing_inside_the_targets_view_costs_lambda(cell: tuple[int, int], lambda_fov: float) -> None:
    env = arranged([GROUND], [cell], target=(4, 4), lambda_fov=lambda_fov)
    assert acted(env, STAY) == [-lambda_fov]


@pytest.mark.parametrize("cell", [(2, 2), (6, 4), (4, 2)])
@pytest.mark.parametrize("lambda_fov", [-0.5, 0.25])
def test_seeing_the_target_from_outside_its_view_pays_one_minus_lambda(
    cell: tuple[int, int], lambda_fov: float
) -> None:
    env = arranged([GROUND], [cell], target=(4, 4), lambda_fov=lambda_fov)
    assert acted(env, STAY) == [1 - lambda_fov]


def test_seeing_no_target_costs_a_hundredth() -> None:
    env = arranged([GROUND, OBSERVER], [(1, 4), (4, 2)], target=(4, 4))
    assert acted(env, STAY, STAY) == [-0.01, -0.01]


def test_reward_depends_on_the_position_after_the_move() -> None:
    env = arranged([GROUND], [(1, 4)], target=(4, 4), lambda_fov=0.25)
    assert acted(env, RIGHT, RIGHT, LEFT, LEFT) == [0.75, -0.25, 0.75, -0.01]


def test_observer_is_rewarded_only_when_it_detects_the_target() -> None:
    env = arranged([OBSERVER], [(4, 1)], target=(4, 4), altitudes=[3], lambda_fov=0.25, max_steps=500)
    seen, rewards = [], []
    for _ in range(200):
        rewards += acted(env, STAY)
        seen.append(env.observe("observer_0")["obstacles_fov"][6, 3] == 3)
    assert rewards == [0.75 if each else -0.01 for each in seen]
    assert 0 < sum(seen) < 200


def test_size_of_the_targets_view_can_be_configured() -> None:
    env = arranged([GROUND], [(4, 2)], (4, 4), lambda_fov=0.5, target_config={**STANDING, "box_cells": 5})
    assert acted(env, STAY) == [-0.5]


def test_intrinsic_reward_is_paid_once_per_cell_and_agent() -> None:
    env = arranged([GROUND, GROUND], [(4, 4), (4, 6)], intrinsic=True)
    assert acted(env, STAY, STAY) == [-0.01, -0.01]  # the cells they start on are known
    assert acted(env, RIGHT, STAY) == pytest.approx([0.015, -0.01])
    assert acted(env, LEFT, STAY) == [-0.01, -0.01]
    assert acted(env, RIGHT, DOWN) == pytest.approx([-0.01, 0.015])
    env.world.bodies[1].x, env.world.bodies[1].y = 5, 5
    assert acted(env, LEFT, 1) == pytest.approx([-0.01, 0.015])  # new to the second agent, not to the first


def test_start_cell_gives_no_intrinsic_reward() -> None:
    env = GridWorldParallel(agents=[GROUND], no_target=True, intrinsic=True)
    env.reset(seed=0)
    assert env.step({"ground_0": STAY})[1] == {"ground_0": -0.01}


def test_intrinsic_reward_is_added_to_every_other_reward() -> None:
    env = arranged([GROUND], [(1, 4)], target=(4, 4), lambda_fov=0.25, intrinsic=True)
    assert acted(env, RIGHT, RIGHT, RIGHT) == pytest.approx([0.775, -0.225, 1.025])


def test_new_cell_pays_nothing_without_intrinsic() -> None:
    env = arranged([GROUND], [(4, 4)])
    assert acted(env, RIGHT) == [-0.01]


# -- ends ------------------------------------------------------------------------------------------------------
def test_reaching_the_target_terminates_all_agents_at_the_end_of_the_step() -> None:
    env = arranged([GROUND, GROUND], [(4, 4), (0, 0)], target=(5, 4))
    acted(env, RIGHT)
    assert not any(env.terminations.values())
    assert acted(env, RIGHT) == [-0.01]  # the other one has its turn
    assert all(env.terminations.values()) and not any(env.truncations.values())
    assert env.last()[1] == 1.0
    env.step(None)
    assert env.last()[1] == -0.01
    env.step(None)
    assert env.agents == []


def test_only_one_agent_can_reach_the_target() -> None:
    env = arranged([GROUND, GROUND], [(4, 4), (5, 5)], target=(5, 4), lambda_fov=0.5)
    assert acted(env, RIGHT, 1) == [1.0, -0.5]


def test_episode_is_truncated_after_max_steps_of_all_agents() -> None:
    env = arranged([GROUND, OBSERVER], [(4, 4), (0, 0)], max_steps=3)
    acted(env, STAY, STAY, STAY, STAY, STAY)
    assert not any(env.truncations.values())
    acted(env, STAY)
    assert all(env.truncations.values()) and not any(env.terminations.values())


def test_reaching_the_target_in_the_last_step_terminates_without_truncation() -> None:
    env = arranged([GROUND], [(4, 4)], target=(5, 4), max_steps=1)
    acted(env, RIGHT)
    assert env.terminations == {"ground_0": True} and env.truncations == {"ground_0": False}
    parallel = GridWorldParallel(size=9, agents=[GROUND], max_steps=1)
    parallel.reset(seed=0)
    put(parallel, [(4, 4)], target=(5, 4))
    _, rewards, terminated, truncated, _ = parallel.step({"ground_0": RIGHT})
    assert (rewards, terminated, truncated) == ({"ground_0": 1.0}, {"ground_0": True}, {"ground_0": False})


def test_terminated_agent_accepts_only_none_and_an_empty_env_no_step() -> None:
    env = arranged([GROUND], [(4, 4)], max_steps=1)
    acted(env, STAY)
    with pytest.raises(ValueError, match="None"):
        env.step(STAY)
    env.step(None)
    with pytest.raises(mv.errors.InvalidRequest, match="reset"):
        env.step(None)

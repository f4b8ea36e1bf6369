"""Points in the plane, compared with their definitions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import multiverse as mv
from multiverse.envs.meta.points import PointRobot, PointRobotSparse, Wind


def began(env: Any, task: Any, seed: int = 0) -> Any:
    env.reset(seed=seed)
    env.reset_task(task)
    return env.reset(seed=seed)[0]


def test_dense_reward_is_the_negative_distance() -> None:
    env = PointRobot()
    assert began(env, [0.3, -0.4]).tolist() == [0.0, 0.0]
    place = np.zeros(2)
    for action in ([0.1, 0.0], [-0.05, -0.1], [7.0, -7.0]):  # out-of-bounds actions are clipped
        observation, reward, *_ = env.step(np.array(action))
        place += np.clip(action, -0.1, 0.1)
        assert np.allclose(observation, place) and np.isclose(reward, -np.linalg.norm(place - [0.3, -0.4]))


def test_dense_goals_are_uniform_in_the_square() -> None:
    env = PointRobot()
    env.reset(seed=0)
    goals = env.sample_tasks(4000)
    assert (np.abs(goals) <= 1).all() and np.allclose(goals.mean(axis=0), 0, atol=0.05)
    assert np.allclose(goals.var(axis=0), 1 / 3, atol=0.02)


def test_sparse_goals_lie_on_the_upper_half_circle() -> None:
    env = PointRobotSparse()
    env.reset(seed=0)
    goals = env.sample_tasks(4000)
    assert np.allclose(np.linalg.norm(goals, axis=1), 1) and (goals[:, 1] >= 0).all()
    assert np.allclose(np.histogram(np.arctan2(goals[:, 1], goals[:, 0]), 8, (0, np.pi))[0], 500, atol=80)


def test_sparse_reward_is_one_inside_the_radius_without_ending_the_episode() -> None:
    env = PointRobotSparse(start="origin")
    began(env, [0.0, 1.0])
    rewards = []
    for _ in range(10):
        _, reward, terminated, _, info = env.step(np.array([0.0, 0.1]))
        rewards.append(reward)
        assert not terminated and info == {"success": reward == 1.0}
    assert rewards[:7] == [0.0] * 7 and rewards[8:] == [1.0] * 2  # at 0.8 rounding decides: it is 0.2 away


def test_sparse_episodes_start_uniformly_or_at_the_origin() -> None:
    env = PointRobotSparse()
    starts = np.array([env.reset(seed=seed)[0] for seed in range(2000)])
    assert (starts >= [-1.5, -0.5]).all() and (starts <= [1.5, 1.5]).all()
    assert np.allclose(starts.min(axis=0), [-1.5, -0.5], atol=0.01) and np.allclose(starts.max(axis=0), 1.5, atol=0.01)
    assert began(PointRobotSparse(start="origin"), [1.0, 0.0]).tolist() == [0.0, 0.0]
    with pytest.raises(mv.errors.InvalidRequest, match="start='corner': expected 'uniform' or 'origin'"):
        PointRobotSparse(start="corner")  # type: ignore[arg-type]


def test_wind_moves_the_point_at_every_step_and_its_goal_is_fixed() -> None:
    env, wind = Wind(), np.array([0.06, -0.03])
    assert began(env, wind).tolist() == [0.0, 0.0]
    for step in range(1, 5):
        observation, reward, *_ = env.step(np.zeros(2))
        assert np.allclose(observation, wind * step) and reward == 0.0
    while (left := np.array([0.0, 1.0]) - observation).any():  # against the wind
        observation, reward, terminated, _, info = env.step(np.clip(left - wind, -0.1, 0.1))
        if np.linalg.norm(left - np.clip(left - wind, -0.1, 0.1) - wind) < 0.03:
            break
    assert reward == 1.0 and info == {"success": True} and not terminated


def test_wind_is_never_stronger_than_the_action() -> None:
    env = Wind()
    env.reset(seed=0)
    winds = env.sample_tasks(2000)
    assert (np.abs(winds) <= 0.08).all() and np.abs(winds).max() > 0.0795


def test_horizon_below_one_is_refused() -> None:
    with pytest.raises(mv.errors.InvalidRequest, match="horizon=0: expected at least 1 step"):
        PointRobot(horizon=0)
    env = PointRobot(horizon=2)
    env.reset(seed=0)
    assert [env.step(np.zeros(2))[3] for _ in range(2)] == [False, True]

"""HalfCheetah and Ant with tasks, compared with their definitions and with Gymnasium's envs."""

from __future__ import annotations

import pickle
from typing import Any

import gymnasium
import numpy as np
import pytest

import multiverse as mv

pytest.importorskip("mujoco")

from multiverse.envs.meta.locomotion import AntDir, HalfCheetahDir, HalfCheetahVel

ACTIONS = np.random.default_rng(0).uniform(-1, 1, (60, 8)).astype(np.float32)


def beside(env: Any, original: str, task: Any, **arguments: Any) -> Any:
    """Step our env and Gymnasium's with equal seeds and actions; yield the results of both and Gymnasium's infos."""
    theirs = gymnasium.make(original, **arguments).unwrapped
    env.reset_task(task)
    ours, shown = env.reset(seed=3)[0], theirs.reset(seed=3)[0]
    yield ours, None, False, shown, None, {}
    for action in ACTIONS[:, : env.action_space.shape[0]]:
        observation, reward, terminated, _, info = env.step(action)
        assert info == {}
        shown, _, ended, _, said = theirs.step(action)
        assert terminated == ended
        yield observation, reward, action, shown, theirs, said


@pytest.mark.parametrize(
    ("make", "task", "earned"),
    [
        (HalfCheetahVel, 0.0, lambda v: -abs(v)),
        (HalfCheetahVel, 2.5, lambda v: -abs(v - 2.5)),
        (HalfCheetahDir, 1, lambda v: v),
        (HalfCheetahDir, -1, lambda v: -v),
    ],
)
def test_cheetah_equals_gymnasiums_with_another_reward(make: Any, task: float, earned: Any) -> None:
    env, steps = make(), 0
    for observation, reward, action, shown, theirs, said in beside(env, "HalfCheetah-v5", task):
        assert observation.shape == (20,) and observation.dtype == np.float32
        assert np.array_equal(observation[:17], shown.astype(np.float32))
        assert np.array_equal(observation[17:], env.data.body("torso").xpos.astype(np.float32))
        if theirs is not None:
            steps += 1
            assert np.isclose(reward, earned(said["x_velocity"]) - 0.05 * np.square(action).sum(), atol=1e-9)
    assert steps == 60 and sum(env.model.body_mass) == pytest.approx(14.0)


@pytest.mark.parametrize("angle", [0.0, 2.0, -np.pi / 2])
def test_ant_equals_gymnasiums_with_another_reward(angle: float) -> None:
    kwargs = {"include_cfrc_ext_in_observation": False}
    for observation, reward, action, shown, theirs, said in beside(AntDir(), "Ant-v5", angle, **kwargs):
        assert observation.shape == (27,) and np.array_equal(observation, shown.astype(np.float32))
        if theirs is not None:
            along = said["x_velocity"] * np.cos(angle) + said["y_velocity"] * np.sin(angle)
            contact = 0.5e-3 * np.square(np.clip(theirs.data.cfrc_ext, -1, 1)).sum()
            assert np.isclose(reward, along - 0.5 * np.square(action).sum() - contact + 1, atol=1e-9)


def test_ant_terminates_outside_its_height_range() -> None:
    env = AntDir()
    env.reset(seed=0)
    for height, ended in ((0.75, False), (1.3, True)):
        place = env.data.qpos.copy()
        place[2] = height
        env.set_state(place, np.zeros(env.model.nv))
        assert env.step(np.zeros(8))[2] == ended
    env.data.qpos[2] = 0.19  # where the floor pushes it up again within a step
    assert not env.is_healthy


def test_sampled_tasks_are_uniform() -> None:
    env = AntDir()
    env.reset(seed=0)
    angles = env.sample_tasks(2000)
    assert angles.shape == (2000, 1) and np.allclose(np.histogram(angles, 8, (-np.pi, np.pi))[0], 250, atol=60)
    speeds = HalfCheetahVel()
    speeds.reset(seed=0)
    assert np.allclose(np.histogram(speeds.sample_tasks(2000), 6, (0, 3))[0], 333, atol=70)


@pytest.mark.parametrize(
    ("make", "both"), [(HalfCheetahDir, {1.0, -1.0}), (lambda: AntDir(forward_backward=True), {0.0, np.pi})]
)
def test_env_with_two_tasks_refuses_to_sample_three(make: Any, both: set[float]) -> None:
    env = make()
    env.reset(seed=0)
    assert {float(task) for task in env.sample_tasks(2).ravel()} == both
    with pytest.raises(
        mv.errors.InvalidRequest,
        match=r"sample_tasks\(3\): expected at most 2, since the tasks are forwards and backwards",
    ):
        env.sample_tasks(3)


def test_direction_between_forwards_and_backwards_is_refused() -> None:
    with pytest.raises(mv.errors.InvalidRequest, match=r"task \[0.5\]: expected 1 \(forwards\) or -1 \(backwards\)"):
        HalfCheetahDir().reset_task(0.5)


@pytest.mark.parametrize("make", [lambda: HalfCheetahVel(horizon=7), lambda: AntDir(9, forward_backward=True)])
def test_pickled_copy_has_equal_arguments(make: Any) -> None:
    env = make()
    copy = pickle.loads(pickle.dumps(env))
    assert copy.horizon == env.horizon and copy.task_space == env.task_space

"""Envs that need a memory: what they show and hide, their rewards, and that `check_env` has no findings."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import multiverse as mv
from multiverse.envs.partly_observed import SHOWN, RepeatPrevious, TMaze, make

IDS = (
    *(f"multiverse/{env}-{shown}-v{version}" for env, version in
      (("CartPole", 1), ("Pendulum", 1), ("LunarLander", 3)) for shown in "PV"),
    "CartPoleNoVel-v1", "PendulumNoVel-v1", "LunarLanderNoVel-v3", "multiverse/TMaze-v0",
    "multiverse/RepeatPrevious-v0",
)  # fmt: skip


@pytest.mark.parametrize("env_id", IDS)
def test_check_env_reports_only_the_cost(env_id: str) -> None:
    assert mv.check_env(env_id, steps=250).codes == ("cost",)


@pytest.mark.parametrize(("env", "shown"), [(env, shown) for env in SHOWN for shown in "PV"])
def test_hidden_observations_are_removed_or_zeroed(env: str, shown: Any) -> None:
    whole, part, masked = gym.make(env), make(env, shown), make(env, shown, zeros=True)
    indices = SHOWN[env][shown]
    others = [i for i in range(whole.observation_space.shape[0]) if i not in indices]  # type: ignore[index]
    seen = [one.reset(seed=3)[0] for one in (whole, part, masked)]
    for _ in range(30):
        assert part.observation_space.contains(seen[1]) and masked.observation_space.contains(seen[2])
        assert (seen[1] == seen[0][indices]).all() and (seen[2][indices] == seen[0][indices]).all()
        assert (seen[2][others] == 0.0).all()
        action = whole.action_space.sample()
        results = [one.step(action) for one in (whole, part, masked)]
        assert results[0][1:4] == results[1][1:4] == results[2][1:4]
        seen = [one[0] for one in results]
        if results[0][2]:
            break


def test_positions_and_velocities_cover_all_observations() -> None:
    for env, shown in SHOWN.items():
        assert set(shown["P"]) | set(shown["V"]) == set(range(gym.make(env).observation_space.shape[0]))  # type: ignore[index]


def test_env_without_known_positions_is_refused() -> None:
    with pytest.raises(mv.errors.InvalidRequest, match=r"'Acrobot-v1'.*CartPole-v1, Pendulum-v1"):
        make("Acrobot-v1")


def test_partly_observed_envs_are_found_in_workers_by_id_and_import_path() -> None:
    for env in ("CartPoleNoVel-v1", "multiverse.envs.partly_observed:TMaze"):
        with mv.make_vec(env, 3, "process", workers=2) as envs:
            observations, _ = envs.reset(seed=1)
            assert observations.shape == (3, *envs.single_observation_space.shape)  # type: ignore[misc]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("right", [True, False])
def test_t_maze_rewards_the_side_that_its_sign_showed(seed: int, right: bool) -> None:
    env = TMaze(length=3)
    first, _ = env.reset(seed=seed)
    results = [env.step(np.int64(0)) for _ in range(3)]
    assert first[0] in (-1.0, 1.0) and first[1] == 0.0
    assert [tuple(observation) for observation, *_ in results] == [(0.0, 0.0), (0.0, 0.0), (0.0, 1.0)]
    assert all(reward == 0.0 and not over for _, reward, over, *_ in results)
    assert env.step(np.int64(0))[1:4] == (-0.05, False, False)  # a wall
    side = 1 if (first[0] < 0) == right else 2
    assert env.step(np.int64(side))[1:4] == (float(right), True, False)


def test_t_maze_is_truncated_without_a_decision() -> None:
    env = TMaze(length=2)
    env.reset(seed=0)
    results = [env.step(np.int64(1))[1:4] for _ in range(6)]
    assert results == [(-0.05, False, False)] * 5 + [(-0.05, False, True)]
    assert {TMaze().reset(seed=seed)[0][0] for seed in range(20)} == {-1.0, 1.0}


def test_repeat_previous_rewards_the_symbol_of_k_steps_ago() -> None:
    env = RepeatPrevious(k=2, symbols=3, length=10)
    seen, rewards, over = [int(env.reset(seed=5)[0].argmax())], [], False
    while not over:
        action = seen[-3] if len(seen) > 2 else 0
        observation, reward, _, over, _ = env.step(np.int64(action))
        seen.append(int(observation.argmax()))
        rewards.append(reward)
    assert rewards == [0.0, 0.0] + [1 / 8] * 8 and set(seen) == {0, 1, 2}
    env.reset(seed=5)
    wrong = [env.step(np.int64((seen[max(0, t - 2)] + 1) % 3))[1] for t in range(10)]
    assert wrong == [0.0] * 10


@pytest.mark.parametrize(("make_env", "message"), [
    (lambda: TMaze(0), "length=0: expected at least 1"),
    (lambda: RepeatPrevious(k=8, length=8), "length=8: expected more than k=8"),
])  # fmt: skip
def test_invalid_sizes_are_refused(make_env: Any, message: str) -> None:
    with pytest.raises(mv.errors.InvalidRequest, match=message):
        make_env()

"""`mv.load`: the policy of a run, without its env, its algorithm and torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import multiverse as mv
from multiverse.training import loading
from tests.multi_agent.envs import Pair
from tests.training.small_runs import SMALL

BARE = """
import sys
for name in ("torch", "threadpoolctl"):
    sys.modules[name] = None  # as if it were not installed
import numpy as np
import multiverse as mv
policy = mv.load(sys.argv[1])
print(repr(policy))
print(policy.act(np.array([0.0, 0.1, 0.05, -0.2], np.float32)), policy.act(np.zeros((3, 4))).tolist())
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> mv.Run:
    return mv.train("CartPole-v1", run_dir=tmp_path_factory.mktemp("runs") / "run", **SMALL)


def test_load_needs_neither_torch_nor_the_env(run: mv.Run) -> None:
    done = subprocess.run([sys.executable, "-c", BARE, str(run.path)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    output, actions = done.stdout.splitlines()
    assert output.startswith("<policy of ppo for CartPole-v1 after ") and output.endswith("→ Discrete(2)>")
    policy = mv.load(run)
    one = policy.act(np.array([0.0, 0.1, 0.05, -0.2], np.float32))
    assert actions == f"{one} {policy.act(np.zeros((3, 4))).tolist()}"


def test_load_builds_no_env(run: mv.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **more: object) -> None:
        raise AssertionError("an env was built")

    monkeypatch.setattr(loading, "make_vec", refuse)
    monkeypatch.setattr(gym, "make", refuse)
    assert mv.load(run).act(np.zeros(4, np.float32)) in (0, 1)


def test_loaded_policy_acts_as_the_algorithm(run: mv.Run) -> None:
    loaded, made = mv.load(run), mv.load(run, env="CartPole-v1")
    rows = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
    assert (loaded.act(rows) == made.act(rows)).all()
    assert [loaded.act(row) for row in rows] == made.act(rows).tolist()


def test_act_refuses_batches_without_rows_and_rewards_of_wrong_shape(run: mv.Run) -> None:
    policy, one = mv.load(run), np.zeros(4, np.float32)
    with pytest.raises(mv.errors.InvalidRequest, match=r"has shape \(0, 4\): a batch needs at least one row"):
        policy.act(np.zeros((0, 4), np.float32))
    for reward in ([1.0, 2.0], "high"):
        with pytest.raises(mv.errors.InvalidRequest, match=r"previous_reward=.*: expected a number"):
            policy.act(one, previous_reward=reward)
    policy.reset()
    assert len(policy.act(np.stack([one, one]), previous_reward=[1.0, 2.0])) == 2


@pytest.fixture(scope="module")
def remembering(tmp_path_factory: pytest.TempPathFactory) -> mv.Run:
    settings = {**SMALL, "env_steps": 200, "memory": "gru", "memory_size": 8, "see_previous": True}
    return mv.train("Pendulum-v1", run_dir=tmp_path_factory.mktemp("remembering") / "run", **settings)


@pytest.mark.fault("B1")
@pytest.mark.parametrize(
    ("observation", "reward", "message"),
    [
        ([0.0, np.nan, 0.0], 0.0, "the observation is nan at index 1: a policy acts on finite"),
        ([0.0, 0.0, np.inf], 0.0, "the observation is inf at index 2"),
        ([1e39, 0.0, 0.0], 0.0, "the observation is 1e[+]39 at index 0, which is too large for float32"),
        (np.array([np.inf, 0, 0], np.float16), 0.0, "the observation is inf at index 0"),
        ([None, 0, 0], 0.0, "the observation is nan at index 0"),
        ([0, 10**39, 0], 0.0, "the observation is 1e[+]39 at index 1, which is too large for float32"),
        ([0, 0, 10**400], 0.0, "the observation is .*: expected numbers that floats can hold"),
        ([0.0, 0.0, 0.0], 10**39, "the previous reward is 1e[+]39, which is too large for float32"),
        ([0.0, 0.0, 0.0], np.nan, "the previous reward is nan: a policy acts on finite"),
        ([0.0, 0.0, 0.0], 1e300, "the previous reward is 1e[+]300, which is too large for float32"),
    ],
)
def test_non_finite_values_are_refused_before_they_reach_the_memory(
    remembering: mv.Run, observation: Any, reward: float, message: str
) -> None:
    disturbed, undisturbed, first = mv.load(remembering), mv.load(remembering), np.array([0.1, 0.9, 0.2])
    for policy in (disturbed, undisturbed):
        policy.reset(seed=3)
        policy.act(first, False, 0.0)
    with pytest.raises(mv.errors.InvalidRequest, match=message):
        disturbed.act(observation, False, reward)
    assert np.array_equal(disturbed.act(first, False, 1.0), undisturbed.act(first, False, 1.0))


@pytest.mark.fault("B1")
def test_non_finite_observation_of_one_agent_changes_no_memory(tmp_path: Path) -> None:
    settings = {**SMALL, "env_steps": 100, "memory": "gru", "memory_size": 8}
    policies = mv.load(mv.train(Pair, run_dir=tmp_path / "run", **settings))
    policies.act({"left": np.zeros(2), "right": np.zeros(2)})
    before = policies["left"]._memory
    with pytest.raises(mv.errors.InvalidRequest, match="the observation is nan at index 0"):
        policies.act({"left": np.ones(2), "right": np.full(2, np.nan)})
    assert policies["left"]._memory is before


def test_sampled_actions_repeat_with_their_seed(tmp_path: Path) -> None:
    """Each of several agents draws independently."""
    run = mv.train("Pendulum-v1", run_dir=tmp_path / "run", **{**SMALL, "env_steps": 100})
    policy, seen, drawn = mv.load(run), np.zeros(3, np.float32), []
    for seed in (1, 1, 2):
        policy.reset(seed=seed)
        drawn.append([float(policy.act(seen, deterministic=False)[0]) for _ in range(3)])
    assert drawn[0] == drawn[1] != drawn[2] and len(set(drawn[0])) == 3
    spread = {**SMALL, "env_steps": 100, "run_dir": tmp_path / "team"}
    team = mv.load(mv.train("mpe2.simple_spread_v3:parallel_env", **spread))
    team.reset(seed=1)
    first = [[team[agent]._rng.random() for agent in team] for _ in range(2)]
    team.reset(seed=1)
    assert [[team[agent]._rng.random() for agent in team] for _ in range(2)] == first and len(set(first[0])) == 3


@pytest.mark.parametrize("algorithm", ["ppo", "a2c"])
@pytest.mark.parametrize("env", ["Pendulum-v1", "CartPole-v1"])
def test_policies_of_every_algorithm_can_be_loaded(algorithm: str, env: str, tmp_path: Path) -> None:
    small = {key: value for key, value in SMALL.items() if key in ("num_envs", "executor", "evaluation_episodes")}
    run = mv.train(env, algorithm, run_dir=tmp_path / "run", env_steps=200, steps_per_env=20, preset=False, **small)
    policy = mv.load(run)
    observation = policy.observation_space.sample()
    assert policy.action_space.contains(np.asarray(policy.act(observation), policy.action_space.dtype))
    assert policy.action_space.contains(
        np.asarray(policy.act(observation, deterministic=False), policy.action_space.dtype)
    )
    policy.reset()

"""Check that parallel environments work on this machine. In multiverse: `multiverse doctor --self-test`.

    cd examples/ml_pipeline
    python test_parallel_env.py            # takes seconds; exit status 1 and the reason if a check fails

pytest can run the checks as well.
"""

from __future__ import annotations

import math
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import gymnasium as gym
import numpy as np
import psutil

from examples.ml_pipeline.models.rl.algorithms.ppo_trainer import PPOTrainer
from examples.ml_pipeline.models.rl.core.vec_env import ParallelEnv, StartMethod

N_ENVS, STEPS, SEED = 4, 60, 42


def cart_poles(count: int = N_ENVS) -> list[Callable[[], Any]]:
    return [lambda: gym.make("CartPole-v1") for _ in range(count)]


def trajectory(env: gym.vector.VectorEnv) -> list[np.ndarray[Any, Any]]:
    """Return observations, rewards and end flags of STEPS steps with fixed actions, in which episodes end."""
    results, actions = [env.reset(seed=SEED)[0]], np.random.default_rng(SEED).integers(0, 2, (STEPS, env.num_envs))
    for action in actions:
        results += env.step(action)[:4]
    return [np.array(result) for result in results]


def equal(first: list[np.ndarray[Any, Any]], second: list[np.ndarray[Any, Any]]) -> bool:
    return all(np.array_equal(left, right) for left, right in zip(first, second, strict=True))


# -- the checks ----------------------------------------------------------------------------------------------------
def test_every_start_method_matches_single_envs() -> None:
    """Compare with Gymnasium's SyncVectorEnv on the same seeds: seed + offset."""
    reference = gym.vector.SyncVectorEnv(cart_poles(), autoreset_mode=gym.vector.AutoresetMode.SAME_STEP)
    expected = trajectory(reference)
    reference.close()
    assert np.any(expected[3::4]), "no episode has ended, so that resets are not checked"
    for method in (None, *get_args(StartMethod)):
        with_method = ParallelEnv(cart_poles(), start_method=method)
        try:
            assert equal(trajectory(with_method), expected), f"start method {method}: results differ from single envs"
        finally:
            with_method.close()


def test_each_env_has_its_own_seed() -> None:
    env = ParallelEnv(cart_poles())
    try:
        first, _ = env.reset(seed=SEED)
        again, _ = env.reset(seed=SEED)
    finally:
        env.close()
    assert np.array_equal(first, again), "the same seed gave other first observations"
    assert len(np.unique(first, axis=0)) == N_ENVS, "two envs have the same first observation"


def test_local_env_classes_run_in_workers() -> None:
    """A local class that uses a variable of this function cannot be pickled with the standard library."""
    length = 3

    class Countdown(gym.Env[np.ndarray[Any, Any], np.int64]):
        observation_space = gym.spaces.Box(0, 10, (1,), np.float32)
        action_space = gym.spaces.Discrete(2)

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            self.left = length
            return np.array([self.left], np.float32), {}

        def step(self, action: Any) -> Any:
            self.left -= 1
            return np.array([self.left], np.float32), 1.0, self.left == 0, False, {}

    env = ParallelEnv([Countdown] * N_ENVS, start_method="spawn")
    try:
        env.reset()
        steps = [env.step(np.zeros(N_ENVS, np.int64)) for _ in range(length)]
    finally:
        env.close()
    assert steps[-1][2].all() and not steps[-2][2].any(), "the episodes did not end at the expected step"
    assert (steps[-1][0] == length).all(), "the next episodes did not start in the same step"
    assert [float(last[0]) for last in steps[-1][4]["final_obs"]] == [0.0] * N_ENVS, "the last observations are missing"


def test_close_stops_all_workers() -> None:
    env = ParallelEnv(cart_poles(), start_method="forkserver")
    env.reset(seed=SEED)
    workers = [psutil.Process(pid) for pid in env.engine.worker_pids]
    assert workers, "there are no worker processes"
    env.close()
    assert not psutil.wait_procs(workers, timeout=10)[1], "worker processes are still running"


def test_rollouts_are_trained_on_and_saved() -> None:
    """Train one rollout, resume, train another; the same seed gives the same results."""
    statistics = []
    for _ in range(2):
        with tempfile.TemporaryDirectory() as folder:
            with PPOTrainer(n_envs=N_ENVS, n_steps=32, checkpoint_dir=folder) as trainer:
                statistics.append(trainer.train_episode_vectorized())
            with PPOTrainer(resume_from=folder) as trainer:
                statistics.append(trainer.train_episode_vectorized())
    names = ("env_steps", "n_completed_episodes", "policy_loss", "value_loss", "kl")
    assert [rollout["env_steps"] for rollout in statistics[:2]] == [32 * N_ENVS, 64 * N_ENVS], (
        "wrong number of env steps"
    )
    assert all(math.isfinite(rollout["policy_loss"]) for rollout in statistics)
    assert [[rollout[name] for name in names] for rollout in statistics[:2]] == [
        [rollout[name] for name in names] for rollout in statistics[2:]
    ]


def passes(name: str, check: Callable[[], None]) -> bool:
    """Run a check and print its result; return whether it passed. Tracebacks go to standard error."""
    try:
        check()
    except Exception:
        traceback.print_exc()
        print(f"FAILED  {name}", flush=True)
        return False
    print(f"ok      {name}", flush=True)
    return True


def main() -> int:
    """Run all checks; return the exit status: 0 if all have passed."""
    checks = {name: check for name, check in globals().items() if name.startswith("test_")}
    failed = [name for name, check in checks.items() if not passes(name, check)]
    if failed:
        print(f"{len(failed)} of {len(checks)} tests failed")
        return 1
    print("ALL TESTS PASSED!\nAll tests completed successfully!")
    return 0


if __name__ == "__main__":
    sys.exit(main())

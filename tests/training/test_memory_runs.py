"""Runs with a memory: they learn what cannot be learned without, and resume exactly."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import multiverse as mv
from multiverse.training.loading import evaluate
from tests.forked_programs import ForkedPrograms
from tests.training.small_runs import SMALL, digest, lines_of
from tests.training.test_exact_resume import go_on

REMEMBERING: dict[str, Any] = {**SMALL, "memory": "lstm", "memory_size": 16, "hidden_sizes": [16], "see_previous": True,
                               "chunk_length": 8, "checkpoint_every_s": 0.0}  # fmt: skip
QUICK: dict[str, Any] = {"seed": 1, "num_envs": 8, "env_steps": 24_000, "steps_per_env": 64, "epochs": 6,
                         "batch_size": 256, "learning_rate": 0.003, "hidden_sizes": [16], "memory_size": 32,
                         "chunk_length": 16, "executor": "serial", "evaluate_every": 0, "evaluation_episodes": 50,
                         "preset": False}  # fmt: skip
MAZE: dict[str, Any] = {**QUICK, "env_kwargs": {"length": 5}, "entropy_coef": 0.01}


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return mv.train("CartPole-v1", run_dir=tmp_path_factory.mktemp("whole") / "run", **REMEMBERING).path


# -- learning ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("memory", ["lstm", "gru"])
def test_maze_is_solved_with_a_memory_and_not_without(memory: Any, tmp_path: Path) -> None:
    returns = {}
    for kind in (memory, None):
        run = mv.train("multiverse/TMaze-v0", run_dir=tmp_path / str(kind), **{**MAZE, "memory": kind})
        returns[kind] = run.summary["evaluation"]["mean_return"]
    assert returns[memory] > 0.9 and returns[None] < 0.7


def test_information_older_than_a_chunk_is_not_learned(tmp_path: Path) -> None:
    """At the junction the sign is ten rows back."""
    returns = {}
    for length in (4, 16):
        settings = {**MAZE, "env_kwargs": {"length": 10}, "env_steps": 48_000, "memory": "lstm", "chunk_length": length}
        run = mv.train("multiverse/TMaze-v0", run_dir=tmp_path / str(length), **settings)
        returns[length] = run.summary["evaluation"]["mean_return"]
    assert returns[16] > 0.9 and returns[4] < 0.7


# -- exactness ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("executor", "workers"), [("process", 1), ("process", 2), ("process", 3), ("hybrid", 2)])
def test_executor_and_worker_count_do_not_change_the_weights(
    executor: str, workers: int, uninterrupted: Path, tmp_path: Path
) -> None:
    run = mv.train("CartPole-v1", run_dir=tmp_path / "run", **{**REMEMBERING, "executor": executor, "workers": workers})
    assert digest(run.path) == digest(uninterrupted)


@pytest.mark.parametrize(("where", "at"), [("collect", 130), ("learn", 11), ("save", 31)])
def test_killed_run_resumes_exactly(
    where: str, at: int, uninterrupted: Path, tmp_path: Path, programs: ForkedPrograms
) -> None:
    assert not go_on(programs, tmp_path / "run", True, REMEMBERING, where, at), "it should have died on the way"
    mv.resume(tmp_path / "run")
    assert digest(tmp_path / "run") == digest(uninterrupted)
    for name in ("metrics.jsonl", "episodes.jsonl"):
        assert lines_of(tmp_path / "run", name) == lines_of(uninterrupted, name)


# -- the policy --------------------------------------------------------------------------------------------------
def played(policy: Any, seed: int) -> float:
    """The return of one episode with a loaded policy."""
    env, total, reward, over = gym.make("CartPole-v1"), 0.0, 0.0, False
    observation, _ = env.reset(seed=seed)
    policy.reset()
    while not over:
        observation, got, ended, cut, _ = env.step(policy.act(observation, previous_reward=reward))
        reward, over = float(got), ended or cut
        total += reward
    return total


def test_loaded_policy_plays_as_in_evaluations(uninterrupted: Path) -> None:
    from multiverse.core.seeds import evaluation_seed

    policy, found = mv.load(uninterrupted), evaluate(uninterrupted, episodes=4, seed=0)
    assert [played(policy, evaluation_seed(0, k)) for k in range(4)] == list(found.returns)
    assert len(set(found.returns)) > 1


def test_loaded_policy_keeps_its_memory_until_reset(uninterrupted: Path) -> None:
    policy, rng = mv.load(uninterrupted), np.random.default_rng(0)
    rows = rng.normal(size=(6, 4)).astype(np.float32)

    def remembered(*order: int, reward: float = 1.0) -> Any:
        policy.reset()
        for k in order:
            policy.act(rows[k], previous_reward=reward)
        return policy._memory["cells"].copy()

    assert (remembered(0, 1, 2) == remembered(0, 1, 2)).all()
    assert (remembered(0, 1, 2) != remembered(3, 1, 2)).any()
    assert (remembered(0, 1) != remembered(0, 1, reward=-3.0)).any()


def test_other_number_of_rows_without_reset_is_refused(uninterrupted: Path) -> None:
    policy, rows = mv.load(uninterrupted), np.zeros((6, 4), np.float32)
    policy.act(rows)
    with pytest.raises(mv.errors.InvalidRequest, match=r"4 rows after 6 .*.*reset\(\) first"):
        policy.act(rows[:4])
    policy.act(rows)
    policy.reset()
    policy.act(rows[:4])


def test_loading_a_recurrent_policy_needs_no_torch(uninterrupted: Path) -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import numpy as np, multiverse as mv\n"
        f"policy = mv.load({str(uninterrupted)!r})\n"
        "print([int(policy.act(np.full(4, x, np.float32), previous_reward=1.0)) for x in (0.1, -0.1, 0.2, -0.2)])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    policy = mv.load(uninterrupted)
    expected = [int(policy.act(np.full(4, x, np.float32), previous_reward=1.0)) for x in (0.1, -0.1, 0.2, -0.2)]
    assert done.returncode == 0 and done.stdout.strip() == str(expected), done.stderr

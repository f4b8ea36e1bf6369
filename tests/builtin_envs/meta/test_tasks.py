"""The hooks of envs with tasks: sampled by the env's own generator, kept until replaced, and saved with the env."""

from __future__ import annotations

import pickle
from typing import Any

import gymnasium
import numpy as np
import pytest

import multiverse as mv
from multiverse.envs import WITH_TASKS

NAMES = list(WITH_TASKS)
HORIZONS = {"PointRobot-v0": 20, "PointRobotSparse-v0": 60, "Wind-v0": 75}
TWO = "HalfCheetahDir-v0"


@pytest.fixture(params=NAMES)
def env(request: pytest.FixtureRequest) -> Any:
    pytest.importorskip("mujoco")
    made = gymnasium.make(f"multiverse/{request.param}")
    yield made
    made.close()


def name_of(env: Any) -> str:
    return str(env.spec.id.partition("/")[2])


def played(env: Any, steps: int, **reset: Any) -> list[Any]:
    actions = np.random.default_rng(3).uniform(-1, 1, (steps, *env.action_space.shape)) * env.action_space.high
    found: list[Any] = [env.reset(**reset)[0]]
    for action in actions.astype(np.float32):
        found += env.step(action)[:4]
    return found


def same(one: list[Any], other: list[Any]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def test_episode_is_truncated_exactly_at_the_horizon(env: Any) -> None:
    horizon = HORIZONS.get(name_of(env), 200)
    env.reset(seed=0)
    for step in range(1, horizon + 1):
        observation, reward, terminated, truncated, _ = env.step(np.zeros_like(env.action_space.low))
        assert observation in env.observation_space and isinstance(reward, float)
        assert truncated == (step == horizon) and not terminated


def test_equal_seeds_draw_equal_tasks_and_other_seeds_other_tasks(env: Any) -> None:
    drawn = []
    for seed in (5, 5, 6, 7, 8, 9):
        env.reset(seed=seed)
        drawn.append(env.sample_tasks(2))
    assert same(drawn[0], drawn[1]) and not all(same(drawn[0], other) for other in drawn[2:])
    for task in np.concatenate(drawn):
        assert task in env.task_space
    assert len(np.unique(drawn[0], axis=0)) == 2


def test_given_task_is_kept_until_another_is_given(env: Any) -> None:
    env.reset(seed=1)
    first, second = env.sample_tasks(2)
    env.reset_task(first)
    for seed in (2, None):
        env.reset(seed=seed)
        assert np.array_equal(env.get_task(), first)
    env.reset_task(second)
    assert np.array_equal(env.get_task(), first)  # until the next reset
    env.reset()
    assert np.array_equal(env.get_task(), second)
    env.reset_task(None)
    found = []
    for _ in range(8):
        env.reset()
        found.append(env.get_task())
    assert len(np.unique(found, axis=0)) > 1


def test_changing_the_returned_task_does_not_change_the_env(env: Any) -> None:
    task = env.reset(seed=1) and env.get_task()
    env.get_task()[...] = 0.5
    assert np.array_equal(env.get_task(), task)


@pytest.mark.parametrize("task", [[9.0] * 2, "there", [0.0] * 7, [np.nan]])
def test_invalid_task_is_refused(env: Any, task: Any) -> None:
    with pytest.raises(mv.errors.InvalidRequest, match=r"task .*: \w+ takes"):
        env.reset_task(task)


def test_task_and_seed_determine_the_episode(env: Any) -> None:
    env.reset(seed=1)
    env.reset_task(env.sample_tasks(1)[0])
    once = played(env, 30, seed=4)
    played(env, 7, seed=11)  # earlier steps have no effect
    assert same(once, played(env, 30, seed=4))


def test_start_of_an_episode_does_not_depend_on_whether_a_task_was_given(env: Any) -> None:
    starts = []
    for give in (False, True):
        env.reset(seed=1)
        env.reset_task(env.sample_tasks(1)[0] if give else None)
        starts.append([env.reset(seed=4)[0], env.reset()[0], env.sample_tasks(2)])
    assert same(*starts)


def test_restored_env_continues_exactly(env: Any) -> None:
    actions = np.random.default_rng(0).uniform(-1, 1, (40, *env.action_space.shape)) * env.action_space.high
    env.reset(seed=3)
    for action in actions[:15]:
        env.step(action)
    state = pickle.loads(pickle.dumps(env.save_state()))

    def rest() -> list[Any]:
        found = [part for action in actions[15:] for part in env.step(action)[:4]]
        return [*found, env.get_task(), env.reset()[0], env.get_task()]

    once = rest()
    played(env, 9, seed=12)
    env.restore_state(state)
    assert same(once, rest())


def test_task_before_the_first_reset_is_refused(env: Any) -> None:
    for ask in (env.get_task, lambda: env.step(env.action_space.sample())):
        with pytest.raises(mv.errors.InvalidRequest, match="before the first episode: call reset"):
            ask()


@pytest.mark.parametrize("count", [0, -1, 1.5])
def test_invalid_number_of_tasks_is_refused(env: Any, count: Any) -> None:
    with pytest.raises(mv.errors.InvalidRequest, match=r"count|sample_tasks"):
        env.sample_tasks(count)


def test_check_env_reports_no_problem(env: Any) -> None:
    report = mv.check_env(env.spec.id)
    assert [str(finding) for finding in report.findings if finding.severity != "info"] == []


@pytest.mark.parametrize("name", NAMES)
def test_building_and_stepping_prints_nothing(name: str, tmp_path: Any) -> None:
    """MuJoCo writes its warnings to stderr and to a file."""
    import subprocess
    import sys

    program = f"""
import warnings; warnings.simplefilter("error")
import gymnasium, multiverse.envs
env = gymnasium.make({f"multiverse/{name}"!r})
env.reset(seed=0)
for _ in range(250):
    _, _, terminated, truncated, _ = env.step(env.action_space.sample())
    if terminated or truncated: env.reset()
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout, done.stderr, list(tmp_path.iterdir())) == (0, "", "", [])


# -- through a vector env --------------------------------------------------------------------------------------------
@pytest.mark.parametrize("executor", ["serial", "process"])
def test_vector_env_gives_each_env_its_task(executor: Any) -> None:
    tasks = [[0.5, 0.5], [-1.0, 0.25], [0.0, 0.0]]
    with mv.make_vec("multiverse/PointRobot-v0", 3, executor, tasks=tasks) as envs:
        assert envs.can_be_saved()
        envs.reset(seed=0, tasks=[2, 0, 1])
        assert np.array_equal(envs.call("get_task"), [tasks[i] for i in (2, 0, 1)])
        envs.reset(env_ids=[1], tasks=[1])
        assert np.array_equal(envs.call("get_task")[1], tasks[1])

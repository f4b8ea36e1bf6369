"""Runs with replay and memory, or with tasks: exact resumes and executors, held-out tasks, and acting."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import multiverse as mv
from multiverse.training.config.train_config import TrainConfig
from multiverse.training.loading import evaluate
from multiverse.training.session_envs import evaluation_tasks, training_plan, with_tasks
from tests.forked_programs import ForkedPrograms
from tests.training.envs import Numbered
from tests.training.small_runs import digest, lines_of
from tests.training.test_exact_resume import go_on

RUN: dict[str, Any] = {
    "seed": 5, "num_envs": 3, "env_steps": 600, "steps_per_env": 10, "learning_starts": 100, "sequences": 4,
    "hidden_sizes": [8], "memory_size": 8, "evaluate_every": 0, "evaluation_episodes": 4, "executor": "serial",
    "preset": False, "gradient_steps": 1, "buffer_size": 400, "memory": "gru", "checkpoint_every_s": 0.0,
}  # fmt: skip
LOADED = ("multiverse.algorithms.sac", "multiverse.algorithms.td3")
TASKS = {"tasks": 6, "held_out_tasks": 4, "episodes_per_task": 2}
SEMI_CIRCLE = {**RUN, **TASKS, "env": "multiverse/PointRobotSparse-v0", "env_kwargs": {"horizon": 15}}
PARTLY = {**RUN, "env": "multiverse/Pendulum-V-v1", "env_kwargs": {"max_episode_steps": 40}}
EACH: dict[str, dict[str, Any]] = {
    "sac, memory": {**SEMI_CIRCLE, "algorithm": "sac"},
    "sac, Memory-Markov": {**SEMI_CIRCLE, "algorithm": "sac", "markov_actor": True},
    "sac, Markov": {**SEMI_CIRCLE, "algorithm": "sac", "memory": None, "batch_size": 16},
    "td3, memory": {**PARTLY, "algorithm": "td3", "memory": "lstm", "sequence_length": 16},
    "discrete sac, memory": {**RUN, "algorithm": "discrete_sac", "env": "multiverse/CartPole-V-v1"},
    "dqn, memory": {**RUN, "algorithm": "dqn", "env": "multiverse/CartPole-V-v1", "target_update_interval": 50},
}


def trained(home: Path, settings: dict[str, Any], **more: Any) -> Any:
    given = {**settings, **more}
    return mv.train(given.pop("env"), run_dir=home, **given)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {name: trained(tmp_path_factory.mktemp("whole") / "run", one).path for name, one in EACH.items()}


@pytest.mark.parametrize("name", EACH)
def test_collection_in_workers_gives_equal_weights(name: str, uninterrupted: dict[str, Path], tmp_path: Path) -> None:
    run = trained(tmp_path / "run", EACH[name], executor="process", workers=2)
    assert digest(run.path) == digest(uninterrupted[name])


@pytest.mark.parametrize(
    ("name", "where", "at"),
    [
        ("sac, memory", "collect", 60),
        ("sac, Memory-Markov", "learn", 8),
        ("td3, memory", "flush", 12),
        ("discrete sac, memory", "save", 14),
    ],
)
def test_killed_run_resumes_exactly(
    name: str, where: str, at: int, uninterrupted: dict[str, Path], tmp_path: Path, programs: ForkedPrograms
) -> None:
    home, settings = tmp_path / "run", EACH[name]
    assert not go_on(programs, home, True, settings, where, at), "it should have died on the way"
    mv.resume(home)
    assert digest(home) == digest(uninterrupted[name])
    for file in ("metrics.jsonl", "episodes.jsonl"):
        assert lines_of(home, file) == lines_of(uninterrupted[name], file)


# -- tasks -------------------------------------------------------------------------------------------------------
def test_evaluations_use_held_out_tasks_and_report_each_episode(uninterrupted: dict[str, Path]) -> None:
    found = evaluate(uninterrupted["sac, memory"], episodes=8)
    assert np.shape(found.by_episode) == (8, 2) and np.shape(found.success) == (8, 2)
    np.testing.assert_allclose(np.sum(found.by_episode, axis=1), found.returns, rtol=1e-6)
    result = found.summary()
    assert result["mean_return/episode_1"] + result["mean_return/episode_2"] == pytest.approx(result["mean_return"])
    assert 0.0 <= result["success_rate/episode_2"] <= 1.0
    last = [line for line in lines_of(uninterrupted["sac, memory"], "metrics.jsonl") if "evaluation_episodes" in line]
    assert {"evaluation_mean_return/episode_2", "evaluation_success_rate/episode_1"} <= last[-1].keys()


def test_train_and_evaluation_tasks_are_drawn_once_and_disjoint() -> None:
    config = mv.training.config.resolve.config_for("multiverse/Wind-v0", "sac", {"seed": 3, **TASKS}, False)  # type: ignore[attr-defined]
    one, again = (with_tasks(config, config.env)["tasks"] for _ in range(2))
    np.testing.assert_array_equal(one, again)
    for env in (gym.make("multiverse/Wind-v0"), mv.MetaEpisode(gym.make("multiverse/Wind-v0"), 2)):  # by hand
        train, held_out = mv.draw_tasks(env, 6, 4, seed=3)
        np.testing.assert_array_equal(one, [*train, *held_out])
    assert len({tuple(task) for task in one}) == 10
    plan = training_plan(config)
    trained_on = {plan(env, episode).task for env in range(20) for episode in range(20)}
    assert trained_on == set(range(6)) and list(evaluation_tasks(config)) == [6, 7, 8, 9]


class Told(gym.Env[Any, Any]):
    """Env that only shows its task."""

    _task: Any = -1

    observation_space, action_space = gym.spaces.Box(-9, 99, (1,), np.float32), gym.spaces.Discrete(2)

    def sample_tasks(self, count: int) -> list[int]:
        return list(range(count))

    def reset_task(self, task: Any) -> None:
        self._task = -1 if task is None else task

    def get_task(self) -> int:
        return self._task

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return np.array([self._task], np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.array([self._task], np.float32), float(self._task), False, True, {}


def test_held_out_tasks_are_never_trained_on(tmp_path: Path) -> None:
    """The return is the task: those of the training are the first ones."""
    settings = {**RUN, **TASKS, "episodes_per_task": 1, "algorithm": "dqn"}
    run = mv.train(Told, run_dir=tmp_path / "run", **settings)
    assert {line["return"] for line in lines_of(run.path, "episodes.jsonl")} == {0.0, 1.0, 2.0, 3.0, 4.0, 5.0}
    evaluation = evaluate(run.path, env=Told, episodes=8)
    assert evaluation.returns == (6.0, 7.0, 8.0, 9.0) * 2


def wind_of_two() -> Any:
    return gym.wrappers.RecordEpisodeStatistics(mv.MetaEpisode(gym.make("multiverse/Wind-v0"), 2))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"env": "CartPole-v1", "tasks": 3}, "CartPole-v1 has no tasks; an env with tasks has the methods"),
        ({"episodes_per_task": 2}, "need tasks"),
        ({"tasks": 0}, "tasks=0: expected at least 1"),
        ({"env": wind_of_two, "tasks": 3}, "is already wrapped in MetaEpisode, and a run with tasks adds that wrapper"),
    ],
)
def test_invalid_task_settings_are_refused(settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(mv.errors.InvalidRequest, match=message):
        trained(tmp_path / "run", {**RUN, "env": "multiverse/Wind-v0", "algorithm": "dqn", **settings})


# -- acting ------------------------------------------------------------------------------------------------------
def test_loaded_policy_plays_as_in_evaluations(uninterrupted: dict[str, Path]) -> None:
    policy = mv.load(uninterrupted["discrete sac, memory"])
    found = evaluate(uninterrupted["discrete sac, memory"], episodes=3, seed=1)
    for k in range(3):
        env, total, reward, over = gym.make("multiverse/CartPole-V-v1"), 0.0, 0.0, False
        observation, _ = env.reset(seed=mv.core.seeds.evaluation_seed(1, k))  # type: ignore[attr-defined]
        policy.reset()
        while not over:
            observation, reward, terminated, truncated, _ = env.step(policy.act(observation, previous_reward=reward))
            total, over = total + float(reward), terminated or truncated
        assert total == found.returns[k]


def test_policy_that_needs_rewards_warns_once_if_none_is_given(uninterrupted: dict[str, Path]) -> None:
    policy, seen = mv.load(uninterrupted["discrete sac, memory"]), np.zeros(2, np.float32)
    policy.act(seen)  # an episode's first: nothing was earned yet
    with pytest.warns(UserWarning, match="was not passed"):
        policy.act(seen)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        policy.act(seen)
        other = mv.load(uninterrupted["discrete sac, memory"])
        other.act(seen)
        other.act(seen, previous_reward=1.0)


def test_evaluations_play_every_held_out_task() -> None:
    tasks = {"tasks": 80, "held_out_tasks": 20}
    assert TrainConfig(**tasks).episodes_per_evaluation == 20
    assert TrainConfig(**tasks, evaluation_episodes=5).episodes_per_evaluation == 5
    assert TrainConfig().episodes_per_evaluation == TrainConfig(tasks=80).episodes_per_evaluation == 10


# -- faults ------------------------------------------------------------------------------------------------------


@pytest.mark.fault("G10")
@pytest.mark.parametrize("architecture", [{}, {"markov_actor": True}, {"sequence_length": 9}])
def test_replay_after_a_killed_worker_has_only_consecutive_steps(architecture: dict[str, Any], tmp_path: Path) -> None:
    found = []

    class Look(mv.Hook):
        def on_update(self, trainer: Any, report: Any) -> None:
            if trainer.clock.updates == 5:
                (tmp_path / "note").touch()
            found.append((trainer.session.algorithm.replay, trainer.clock.lost_steps))

    settings = {**RUN, **architecture, "algorithm": "discrete_sac", "executor": "process", "workers": 2}
    settings |= {"env_kwargs": {"note": str(tmp_path / "note")}, "buffer_size": 1000, "hooks": [Look()]}
    run = mv.train(Numbered, run_dir=tmp_path / "run", **settings)
    replay, lost = found[-1]
    assert run.summary["failures"]["worker_restarts"] == 1
    assert lost in (1, 2)  # one step of each env of the worker that dies, which has one or two envs
    assert replay.added * 3 == run.summary["env_steps"] == 600
    drawn = replay.sequences(np.random.default_rng(0), 400, architecture.get("sequence_length"))
    (seen,), lengths = drawn.observations.values(), drawn.mask.sum(axis=0)
    cut = 0
    for k, length in enumerate(lengths.tolist()):
        episode, step = seen[: length + 1, k].T
        assert (episode == episode[0]).all() and (np.diff(step) == 1).all()
        cut += drawn.starts[k] and length < 24 and "sequence_length" not in architecture
    assert cut or "sequence_length" in architecture  # what came before the loss is still learned from

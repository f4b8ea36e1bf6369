"""Evaluations on several envs at once: equal figures with any number of envs and workers."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import multiverse as mv
from multiverse.core.policy import Memory, Seen
from multiverse.core.seeds import evaluation_seed
from multiverse.rollouts.restoring import saved_states
from multiverse.training import evaluation as evaluation_module
from multiverse.training.config.train_config import TrainConfig
from multiverse.training.env_states import EvaluationEnvs, evaluation_log_prefix
from multiverse.training.evaluation import Evaluation, EvaluationOptions, evaluate
from multiverse.training.runs.checkpoint_format import migrated_state
from multiverse.training.saved_runs import checkpoint_of
from multiverse.vector.single import VectorEnv
from tests.training.envs import Uneven, Wanderer
from tests.training.small_runs import SMALL, digest, lines_of
from tests.vector.conftest import nothing_left_behind  # noqa: F401

EPISODES = 13
SEEDS = [evaluation_seed(0, k) for k in range(EPISODES)]
CASES = [(2, "serial", None), (5, "serial", None), (20, "serial", None), (3, "thread", 2)] + [
    (4, "process", workers) for workers in (1, 2, 3)
]


class Remembers:
    """A policy whose actions depend on all observations, actions and rewards of its episode."""

    version = 0

    def noise(self, rng: Any, steps: int, rows: int) -> Any: ...

    def first_memory(self, rows: int) -> Memory:
        return {"sum": np.full((rows, 2), 0.5, np.float32), "steps": np.zeros(rows, np.int64)}

    def act(self, seen: Seen, noise: Any, memory: Memory) -> tuple[Any, Memory]:
        assert noise is None and (seen.starts == (memory["steps"] == 0)).all()
        for row in np.flatnonzero(seen.starts):
            assert seen.previous_actions is None or not seen.previous_actions[row].any()
            assert seen.previous_rewards is not None and not seen.previous_rewards[row]
        before = np.zeros_like(memory["sum"]) if seen.previous_actions is None else seen.previous_actions
        paid = np.zeros(len(before), np.float32) if seen.previous_rewards is None else seen.previous_rewards
        kept = memory["sum"] * 0.5 + seen.observations[()][:, :2] + before * 0.25 + paid[:, None] * 0.125
        return np.tanh(kept), {"sum": kept, "steps": memory["steps"] + 1}

    def for_env(self, actions: Any) -> Any:
        return np.clip(actions, -2, 2)

    def portable(self) -> None: ...


class Draws(Remembers):
    """The same with random actions."""

    def noise(self, rng: Any, steps: int, rows: int) -> Any:
        return rng.normal(size=(steps, rows, 2)).astype(np.float32)

    def act(self, seen: Seen, noise: Any, memory: Memory) -> tuple[Any, Memory]:
        actions, after = super().act(seen, None, memory)
        return actions if noise is None else actions + noise, after


def make(count: int, executor: Any, workers: int | None, **kwargs: Any) -> VectorEnv:
    return mv.make_vec(
        Uneven,
        count,
        executor,
        workers=workers,
        env_kwargs=kwargs,
        autoreset="disabled",
        copy=False,
        infos=False,
        on_failure=mv.FailureOptions(on_failure="restart", on_bad_value="truncate"),
    )


def figures(envs: VectorEnv) -> Evaluation:
    with envs:
        found = evaluate(envs, [Remembers()], EPISODES, 0)
    assert found is not None
    return found


@functools.cache
def on_one_env(**kwargs: Any) -> Evaluation:
    return figures(make(1, "serial", None, **kwargs))


@pytest.mark.parametrize(("count", "executor", "workers"), CASES)
def test_number_of_envs_and_workers_does_not_change_evaluations(
    count: int, executor: str, workers: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluation_module, "MAX_STEPS", 35)
    for kwargs in ({}, {"fault": "endless", "seeds": tuple(SEEDS[5:8])}):
        found = figures(make(count, executor, workers, **kwargs))
        assert found == on_one_env(**kwargs)
        assert len(set(found.lengths)) > 5 and (max(found.lengths) == 35) == bool(kwargs)


def drawn(envs: VectorEnv, seed: int = 0, deterministic: bool = False) -> Evaluation:
    with envs:
        found = evaluate(envs, [Draws()], EPISODES, seed, EvaluationOptions(deterministic=deterministic))
    assert found is not None
    return found


def test_sampled_actions_depend_on_episode_and_seed() -> None:
    """They are equal on any number of envs, and differ between episodes and seeds."""
    alone = drawn(make(1, "serial", None))
    assert drawn(make(5, "serial", None)) == alone == drawn(make(4, "process", 2))
    assert drawn(make(1, "serial", None), seed=1) != alone != on_one_env()
    assert drawn(make(1, "serial", None), deterministic=True) == on_one_env()


@pytest.mark.fault("G9")
@pytest.mark.parametrize("fault", ["raise", "nan"])
@pytest.mark.parametrize(("count", "executor", "workers"), CASES)
def test_number_of_envs_and_workers_does_not_change_lost_episodes(
    fault: str, count: int, executor: str, workers: int | None
) -> None:
    kwargs = {"fault": fault, "seeds": (SEEDS[0], SEEDS[4], SEEDS[11])}
    found = figures(make(count, executor, workers, **kwargs))
    assert found == on_one_env(**kwargs) and found.lost == (0, 4, 11) and len(found.returns) == 10


def of_a_run(count: int, workers: int, restarts: int = 3, **kwargs: Any) -> tuple[EvaluationEnvs, Callable[[], Any]]:
    def made(count: int) -> VectorEnv:
        return make(count, "process", min(workers, count), **kwargs)

    envs = EvaluationEnvs(made, count, restarts)
    return envs, lambda: envs.evaluate([Remembers()], EPISODES, 0)


@pytest.mark.fault("G9")
@pytest.mark.parametrize(("count", "workers"), [(1, 1), (4, 1), (4, 3)])
def test_worker_killed_by_one_env_does_not_change_the_episodes_of_others(
    count: int, workers: int, caplog: pytest.LogCaptureFixture
) -> None:
    seeds = (SEEDS[2], SEEDS[7])
    envs, evaluated = of_a_run(count, workers, fault="die", seeds=seeds)
    try:
        with evaluation_log_prefix():
            found = evaluated()
            envs.succeeded(found)
        assert found == on_one_env(fault="raise", seeds=seeds) and found.lost == (2, 7)
        assert envs.account()["worker_restarts"] == (2 if count == 1 else 3) and envs.account()["lost_episodes"] == 2
        assert ("evaluation: repeated on one env: a worker was lost" in caplog.text) == (count > 1)
        assert envs.envs.num_envs == count  # for the next one
    finally:
        envs.close()


@pytest.mark.fault("G9")
def test_restart_limit_of_evaluations_holds_for_all_workers_together() -> None:
    """Each of three workers may restart an env: together they may not restart more than one worker would."""
    envs, evaluated = of_a_run(3, 3, restarts=1, fault="raise", seeds=tuple(SEEDS[:3]))
    try:
        assert evaluated().lost == (0, 1, 2) and envs.envs.num_envs == 1  # whose limit is 3
    finally:
        envs.close()


@pytest.mark.fault("G9")
def test_evaluation_env_is_named_by_its_number(caplog: pytest.LogCaptureFixture) -> None:
    with evaluation_log_prefix():
        figures(make(4, "serial", None, fault="raise", seeds=(SEEDS[3],)))
    assert "evaluation env 3 raised ValueError: not with me" in caplog.text
    assert "evaluation: episode 3 (seed " in caplog.text


@pytest.mark.parametrize("count", [1, 4])
def test_evaluation_stops_at_the_requested_step(count: int) -> None:
    asked = iter([False] * 5 + [True])
    with make(count, "serial", None) as envs:
        assert evaluate(envs, [Remembers()], EPISODES, 0, EvaluationOptions(should_stop=lambda: next(asked))) is None
        assert envs.failures.steps_sent == 5 * count


def test_number_of_evaluation_envs_depends_only_on_the_config() -> None:
    def of(**settings: Any) -> int:
        return TrainConfig(**settings).num_evaluation_envs

    assert (of(num_envs=4), of(num_envs=64, evaluation_episodes=99), of(num_envs=1)) == (10, 10, 1)
    assert of(evaluation_envs=9) == 9 and of(evaluation_envs=16, evaluation_episodes=3) == 3
    assert of(num_envs=3, workers=2, executor="process") == of(num_envs=3) == 10
    with pytest.raises(mv.errors.InvalidRequest, match="evaluation_envs=0: expected at least 1"):
        TrainConfig(evaluation_envs=0)


RUN = {**SMALL, "env_steps": 200, "evaluate_every": 100, "evaluation_episodes": 5}


@pytest.mark.parametrize(("executor", "workers"), [("serial", None), ("process", 2)])
def test_number_of_evaluation_envs_does_not_change_a_run(executor: str, workers: int | None, tmp_path: Path) -> None:
    settings = {**RUN, "executor": executor, "workers": workers}
    one, four = (mv.train("Pendulum-v1", run_dir=tmp_path / str(n), evaluation_envs=n, **settings).path for n in (1, 4))
    assert lines_of(one, "metrics.jsonl") == lines_of(four, "metrics.jsonl") and digest(one) == digest(four)
    found = [mv.evaluate(run, episodes=7, seed=1) for run in (one, four)]
    assert found[0] == found[1] and len(found[0].returns) == 7


# -- envs that remember earlier episodes -----------------------------------------------------------------------------
def test_changed_number_of_evaluation_envs_rebuilds_them_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = mv.train(Wanderer, run_dir=tmp_path / "run", **RUN, evaluation_envs=3)
    assert len(checkpoint_of(run).state["evaluation_env"]) == 3
    config = (run.path / "config.yaml").read_text()
    (run.path / "config.yaml").write_text(config.replace("evaluation_envs: 3", "evaluation_envs: 2"))
    assert mv.resume(run, env=Wanderer, env_steps=300).summary["evaluated_at"] == 300
    assert "evaluation: the envs could not be restored; new ones are built: 3 were saved" in caplog.text


def test_evaluation_env_state_of_earlier_versions_is_restored(tmp_path: Path) -> None:
    envs = EvaluationEnvs(lambda n: mv.make_vec(Wanderer, n, "serial", autoreset="disabled"), 1, 3)
    try:
        envs.saves = True
        envs.envs.reset(seed=[1])
        envs.envs.step([1])
        (state,) = saved_states(envs.envs)
        envs.envs.step([1])
        old = migrated_state({"evaluation_env": state}, {"config": {}})
        envs.load(old["evaluation_env"])
        assert envs.state() == [state] and saved_states(envs.envs)[0]["value"]["steps"] == 1
    finally:
        envs.close()

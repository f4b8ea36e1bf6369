"""Envs are opened (built and described) first, and bound to the block later."""

from __future__ import annotations

import os
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import multiverse as mv
from multiverse.algorithms.ppo import PPO
from multiverse.core.errors import InvalidRequest
from multiverse.core.failures import FailureOptions
from multiverse.core.layout import Field
from multiverse.vector.opening import VectorOptions, open_envs
from tests.envs import Walk
from tests.processes import has_not_ended
from tests.training.small_runs import SMALL
from tests.vector.configurations import ALL, Configuration, over
from tests.vector.conftest import worker_processes

config = over(ALL)


def options_of(config: Configuration, **more: Any) -> VectorOptions:
    return VectorOptions(
        executor=config.executor,
        workers=mv.WorkerOptions(count=config.workers, start_method=config.start_method),
        **more,
    )


def test_opened_envs_are_described_and_bind_with_the_given_fields(config: Configuration) -> None:
    with open_envs(Walk, config.num_envs, options_of(config)) as opened:
        (group,) = opened.description.groups
        extra = Field(("extra",), (config.num_envs, *group.observation_space.shape), np.dtype(np.float32))
        envs = opened.bind([extra])
    with envs, config.make(Walk) as expected:
        assert envs.views[("extra",)].shape == extra.shape
        envs.reset(seed=3), expected.reset(seed=3)
        actions = np.ones(config.num_envs, np.int64)
        for ours, theirs in zip(envs.step(actions)[:4], expected.step(actions)[:4]):
            np.testing.assert_array_equal(ours, theirs)


def test_opened_envs_that_are_never_bound_leave_no_process(config: Configuration) -> None:
    before = worker_processes()
    with pytest.raises(ZeroDivisionError), open_envs(Walk, config.num_envs, options_of(config)):
        _ = 1 / 0
    assert worker_processes() == before


@pytest.mark.parametrize("on_failure", ["raise", "restart"])
@pytest.mark.parametrize("method", ["forkserver", "fork", "spawn"])
def test_worker_killed_before_bind_is_reported_and_leaves_nothing(method: Any, on_failure: Any) -> None:
    before = worker_processes()
    policy = FailureOptions(on_failure=on_failure)
    options = VectorOptions(executor="process", workers=mv.WorkerOptions(count=2, start_method=method), failures=policy)
    with open_envs(Walk, 4, options) as opened:
        victim = next(one for one in worker_processes() if one not in before)
        victim.kill()
        while has_not_ended(victim):  # a forked worker is not reaped here
            os.sched_yield()
        with pytest.raises(mv.errors.WorkerDied, match="SIGKILL during start"):
            opened.bind()
    assert worker_processes() == before


def test_state_of_env_without_state_is_refused_before_bind() -> None:
    with pytest.raises(InvalidRequest, match="state"):
        mv.make_vec("CartPole-v1", 2, "serial", agents=mv.AgentOptions(state=True))


@pytest.mark.parametrize("executor", ["serial", "process"])
def test_learner_is_built_outside_of_vector_envs_and_executors(executor: Any, tmp_path: Path) -> None:
    rooms: set[str] = set()

    class Watched(PPO):
        def __init__(self, *arguments: Any, **more: Any) -> None:
            files = [Path(frame.filename).parts for frame in traceback.extract_stack()]
            rooms.update(parts[parts.index("multiverse") + 1] for parts in files if "multiverse" in parts[:-1])
            super().__init__(*arguments, **more)

    settings = {**SMALL, "executor": executor, "env_steps": 100}
    mv.train("CartPole-v1", algorithm=Watched, run_dir=tmp_path / "run", progress=False, **settings)
    assert "training" in rooms and not rooms & {"vector", "executors"}

"""In worker processes: HalfCheetah, killed in any phase and resumed, has the weights of an uninterrupted run; the
policy's outputs have equal bits on any number of workers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import multiverse as mv
from tests.forked_programs import ForkedPrograms
from tests.training.small_runs import SMALL, digest, lines_of

ENV = "HalfCheetah-v5"
RUN: dict[str, Any] = {
    **SMALL,
    "num_envs": 8,
    "workers": 3,
    "executor": "process",
    "env_steps": 640,
    "steps_per_env": 20,
    "evaluate_every": 320,
    "evaluation_episodes": 3,
    "checkpoint_every_s": 0.0,
    "env_kwargs": {"max_episode_steps": 30},
}

KILLED = """
import json, os, signal, sys
import multiverse as mv
from multiverse.training import evaluation
from multiverse.training.session import Session

env, home, settings, phase, at = json.loads(sys.argv[1])

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def counted(before, at):
    count = [0]
    def dying(*arguments, **named):
        count[0] += 1
        if count[0] == at:
            die()
        return before(*arguments, **named)
    return dying

if phase == "collect":
    collect, rollouts = Session.collect, [0]
    def dying(self, should_stop):
        rollouts[0] += 1
        if rollouts[0] < at:
            return collect(self, should_stop)
        collect(self, counted(should_stop, 7))
        die()  # if `should_stop` was called fewer than 7 times
    Session.collect = dying
elif phase == "learn":
    from multiverse.learning.optimizers import Adam
    Adam.step = counted(Adam.step, at)
elif phase == "evaluate":
    evaluation.step_slots = counted(evaluation.step_slots, at)
elif phase == "save":
    os.fsync = counted(os.fsync, at)
mv.train(env, run_dir=home, **settings)
"""


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """In this process: the place of the envs makes no difference."""
    pytest.importorskip("mujoco")
    home = tmp_path_factory.mktemp("whole") / "run"
    return mv.train(ENV, run_dir=home, **{**RUN, "executor": "serial", "workers": None}).path


@pytest.mark.fault("D5")
@pytest.mark.parametrize(("phase", "at"), [("collect", 3), ("learn", 13), ("evaluate", 20), ("save", 14)])
def test_run_killed_in_any_phase_ends_with_equal_weights(
    phase: str, at: int, uninterrupted: Path, tmp_path: Path, programs: ForkedPrograms
) -> None:
    home = tmp_path / "run"
    done = programs.run(KILLED, json.dumps([ENV, str(home), RUN, phase, at]))
    assert done.returncode == -signal.SIGKILL, done.stderr
    mv.resume(home)
    assert digest(home) == digest(uninterrupted)
    for name in ("metrics.jsonl", "episodes.jsonl"):
        assert lines_of(home, name) == lines_of(uninterrupted, name)


class Raw(mv.Hook):
    """Record the actions of the policy before they are clipped for the env."""

    def __init__(self) -> None:
        self.actions: list[bytes] = []

    def on_rollout(self, trainer: Any, collected: Any) -> None:
        rollout = trainer.session.rollouts[0]
        assert rollout.actions.dtype == np.float32 and len(np.unique(rollout.actions)) > rollout.actions.size / 2
        self.actions.append(rollout.actions.tobytes())


def test_policy_outputs_have_equal_bits_on_one_to_eight_workers(tmp_path: Path) -> None:
    settings = {**RUN, "env_steps": 192, "steps_per_env": 12, "evaluation_envs": 1, "evaluate_every": 0}
    said = []
    for workers in range(1, 9):
        raw = Raw()
        mv.train("Pendulum-v1", run_dir=tmp_path / str(workers), hooks=[raw], **{**settings, "workers": workers})
        said.append(raw.actions)
    assert len(said[0]) == 2 and all(one == said[0] for one in said)


def test_policy_outputs_have_equal_bits_with_another_matrix_kernel() -> None:
    file = f"{__file__}::{test_policy_outputs_have_equal_bits_on_one_to_eight_workers.__name__}"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", file]
    done = subprocess.run(command, env={**os.environ, "OPENBLAS_CORETYPE": "Haswell"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:]

"""The path from a command to the first optimizer step: how many files it enters, and what is on the stack."""

from __future__ import annotations

import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

import pytest

import multiverse as mv
from multiverse.algorithms import PPO

SOURCE = Path(mv.__file__).parent
LEARNING_HALF = {"cli", "training", "rollouts", "policies", "learning", "networks", "kernels", "algorithms"}
MOST_FILES, MOST_FILES_OF_LEARNING_HALF = 96, 51
"""Numbers of files in the present version. A change that enters more files has a reason."""


def test_files_entered_before_first_optimizer_step_do_not_become_more(tmp_path: Path) -> None:
    command = ["train", "CartPole-v1", "--env-steps", "1024", "--quiet", "--run-dir", str(tmp_path / "run")]
    run = subprocess.run(
        [sys.executable, "-m", "tests.entered_files", *command],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    files = [line for line in run.stdout.splitlines() if line.endswith(".py")]
    half = [file for file in files if file.partition("/")[0] in LEARNING_HALF]
    print(f"{len(files)} files, {len(half)} of them in the learning half:", *files, sep="\n")
    assert files[0] == "cli/main.py" and "learning/optimizers.py" in files
    assert len(files) <= MOST_FILES and len(half) <= MOST_FILES_OF_LEARNING_HALF


@pytest.mark.parametrize("executor", ["serial", "process"])
def test_stack_has_no_frame_of_vector_or_executors_when_learner_is_built(tmp_path: Path, executor: str) -> None:
    stacks: list[set[str]] = []

    class Recorded(PPO):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            files = [Path(frame.filename) for frame in traceback.extract_stack()]
            stacks.append({str(file.relative_to(SOURCE)) for file in files if file.is_relative_to(SOURCE)})
            super().__init__(*args, **kwargs)

    mv.train(
        "CartPole-v1", algorithm=Recorded, executor=executor, num_envs=2, workers=1 if executor == "process" else None,
        steps_per_env=8, env_steps=16, run_dir=tmp_path / "run", progress=False,
    )  # fmt: skip
    (stack,) = stacks
    assert "training/session.py" in stack
    assert not {file for file in stack if file.startswith(("vector/", "executors/"))}

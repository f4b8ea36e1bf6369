"""Training on Ray: equal bits as elsewhere, killed and resumed, moved, and with actors that die on the way."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import Any

import pytest

import multiverse as mv
from tests.envs import Walk
from tests.forked_programs import ForkedPrograms
from tests.training.mask_envs import Doors
from tests.training.small_runs import SMALL, digest, lines_of
from tests.training.test_exact_resume import go_on

RAY = {"executor": "ray", "workers": 2}
TEAM = {"env": "mpe2.simple_spread_v3:parallel_env", "env_kwargs": {"max_cycles": 10}}
OFF_POLICY = {
    "algorithm": "dqn", "env_steps": 600, "num_envs": 3, "steps_per_env": 10, "learning_starts": 100,
    "buffer_size": 400, "hidden_sizes": [8], "gradient_steps": 1, "evaluate_every": 0, "evaluation_episodes": 1,
    "seed": 5, "preset": False,
}  # fmt: skip
EACH: dict[str, dict[str, Any]] = {
    "one agent": SMALL,
    "weights through the object store": {**SMALL, "hidden_sizes": [400, 400], "env_steps": 400},
    "with memory": {**SMALL, "memory": "gru", "memory_size": 8},
    "a team, whole episodes": {**SMALL, **TEAM, "whole_episodes": True, "steps_per_env": 10, "env_steps": 400},
    "from replay": OFF_POLICY,
    "steps one by one": {**SMALL, "steps_per_env": 4, "env_steps": 400},
    "action masks in infos": {**SMALL, "env": Doors, "env_steps": 400},
}


def trained(home: Path, settings: dict[str, Any], **more: Any) -> mv.Run:
    given = {**settings, **more}
    return mv.train(given.pop("env", "CartPole-v1"), run_dir=home, **given)


@pytest.mark.parametrize("name", EACH)
def test_weights_and_records_equal_those_of_the_serial_run(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Rollouts too short to be filled by workers are stepped through Ray one by one, which is reported."""
    one, other = (
        trained(tmp_path / "serial", EACH[name], executor="serial"),
        trained(tmp_path / "ray", EACH[name], **RAY),
    )
    assert digest(one.path) == digest(other.path)
    assert ("every step is sent through Ray" in caplog.text) == (name == "steps one by one")
    assert lines_of(one.path, "episodes.jsonl") == lines_of(other.path, "episodes.jsonl")


def test_killed_run_resumes_and_moves_between_executors(tmp_path: Path, programs: ForkedPrograms) -> None:
    whole = trained(tmp_path / "whole", SMALL, checkpoint_every_s=0.0)
    home = tmp_path / "run"
    settings = {**SMALL, **RAY, "checkpoint_every_s": 0.0}
    assert not go_on(programs, home, True, settings, "learn", 60), "it should have died"
    assert not go_on(programs, home, False, {}, "learn", 40), "it should have died again"
    mv.resume(home, executor="process", workers=2)
    assert digest(home) == digest(whole.path)


class Noted(Walk):
    """Env that kills its worker once, if a note exists."""

    def __init__(self, note: str) -> None:
        super().__init__()
        self._note = Path(note)

    def step(self, action: Any) -> Any:
        with contextlib.suppress(FileNotFoundError):
            self._note.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)


@pytest.mark.fault("F1")
def test_actor_lost_in_a_rollout_costs_a_row_and_the_run_continues(tmp_path: Path) -> None:
    """Its rows are lost with it and collected again, except the first."""

    class Tell(mv.Hook):
        def on_update(self, trainer: Any, report: Any) -> None:
            if trainer.clock.updates == 3:
                (tmp_path / "note").touch()

    given = {**SMALL, **RAY, "env_kwargs": {"note": str(tmp_path / "note")}, "hooks": [Tell()]}
    run = mv.train(Noted, run_dir=tmp_path / "run", **given)
    failures = run.summary["failures"]
    assert failures["worker_restarts"] == 1 and run.summary["env_steps"] == 2_000
    assert run.summary["lost_steps"] == 2  # one of each of its envs
    assert failures["steps_sent"] == failures["steps_used"] + failures["steps_discarded"]


def test_actors_continue_while_the_algorithm_learns(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", {**SMALL, "asynchronous": True, "max_lag": 2}, **RAY)
    account = run.summary["asynchronous"]
    result = account["used"] + account["lost"] + account["waiting"]
    discarded = [count for name, count in account.items() if name.startswith("discarded_")]
    assert account["sent"] == result + sum(discarded) and account["largest_lag"] <= 2
    assert run.summary["env_steps"] == account["used"] == 2_000

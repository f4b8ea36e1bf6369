"""Ctrl-C while an env of a run hangs: the run is saved in its state after the last update, and ends."""

from __future__ import annotations

import functools
import json
import os
from pathlib import Path

import pytest

import multiverse as mv
from multiverse.ipc import interrupts
from multiverse.training import session_envs
from multiverse.training.saved_runs import checkpoint_of
from tests.training.envs import InterruptsAndHangs
from tests.training.small_runs import SMALL
from tests.vector.conftest import nothing_left_behind  # noqa: F401


@pytest.mark.fault("G4", "A14")
def test_run_with_a_hanging_env_is_saved_and_ended_by_ctrl_c(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interrupts, "PATIENCE_S", 0.2)
    monkeypatch.setattr(session_envs, "Timeouts", functools.partial(mv.Timeouts, close_s=0.2))
    settings = SMALL | {"executor": "process", "workers": 1, "num_envs": 2, "reply_timeout_s": None}
    kwargs = {"program": os.getpid(), "at": 40}
    with pytest.raises(KeyboardInterrupt):
        mv.train(InterruptsAndHangs, run_dir=tmp_path / "run", env_kwargs=kwargs, **settings)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["finished"], summary["env_steps"]) == (False, 50)  # one rollout of 25 steps
    assert checkpoint_of(tmp_path / "run").state["clock"]["env_steps"] == 50

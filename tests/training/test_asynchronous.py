"""Asynchronous runs: they learn, count every env step, survive losses, end on request, and are resumed."""

from __future__ import annotations

import functools
import json
import os
from pathlib import Path
from typing import Any

import pytest

import multiverse as mv
from multiverse.ipc import interrupts
from multiverse.training import session_envs
from multiverse.training.saved_runs import checkpoint_of
from tests.training.envs import Once
from tests.training.small_runs import SMALL, lines_of
from tests.training.test_teams import AGENTS, CIRCLE, SPREAD, TAAC, VILLAGE
from tests.vector.conftest import nothing_left_behind  # noqa: F401

RUN: dict[str, Any] = {**SMALL, "executor": "process", "workers": 2, "asynchronous": True, "progress": False}


def adds_up(account: dict[str, int]) -> bool:
    parts = ("used", "discarded_full", "discarded_old", "discarded_unfinished", "lost", "waiting")
    return account["sent"] == sum(account[name] for name in parts)


@pytest.mark.fault("F2", "F3")
def test_asynchronous_run_learns_and_accounts_for_every_env_step(tmp_path: Path) -> None:
    """Random actions have a return of 22 in CartPole."""
    options = {"asynchronous": True, "env_steps": 30_000, "evaluate_every": 10_000, "workers": 2, "progress": False}
    run = mv.train("CartPole-v1", run_dir=tmp_path / "run", seed=1, **options)
    assert run.summary["best_return"] > 100
    account, failures = run.summary["asynchronous"], run.summary["failures"]
    assert adds_up(account) and account["waiting"] == 0
    assert account["used"] == run.summary["env_steps"] and account["sent"] == failures["steps_sent"]
    assert account["largest_lag"] <= 4
    lines = [line for line in lines_of(run.path, "metrics.jsonl") if "steps_sent" in line]
    assert len(lines) == run.summary["updates"]
    for line in lines:
        assert adds_up({name.removeprefix("steps_"): count for name, count in line.items() if "steps_" in name})
        assert 0.0 <= line["policy_lag"] <= line["largest_lag"] <= 4
        assert line.get("importance_weight", 1.0) <= 1.0
    assert max(line["policy_lag"] for line in lines) > 0, "it was asynchronous"
    episodes = lines_of(run.path, "episodes.jsonl")
    assert len(episodes) == run.summary["episodes"] and {"version"} <= set(episodes[0])
    numbers = [(one["env_id"], one["episode"]) for one in episodes]
    assert len(set(numbers)) == len(numbers), "no episode is reported twice"


KINDS = {
    "a2c": ("CartPole-v1", {"algorithm": "a2c"}),
    "memory": ("CartPole-v1", {"memory": "gru", "memory_size": 8, "see_previous": True}),
    "a box, the ratio": ("Pendulum-v1", {"lag_correction": "ratio"}),
    "teams, central": (SPREAD, {"critic": "central"}),
    "on the state": (SPREAD, {"critic": "state"}),
    "come and go": (VILLAGE, AGENTS),
    "in turn, separate": (CIRCLE, {**AGENTS, "separate": True}),
    "taac": (SPREAD, TAAC),
    "learned in torch": ("CartPole-v1", {"hidden_sizes": [257]}),
    "threads": ("CartPole-v1", {"executor": "thread"}),
    "discarding": ("CartPole-v1", {"full_queue": "discard", "max_lag": 0}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_on_policy_algorithm_trains_asynchronously(kind: str, tmp_path: Path) -> None:
    env, settings = KINDS[kind]
    settings = {**RUN, "env_steps": 1_000, **settings}
    if settings.get("algorithm") == "a2c":
        settings = {name: value for name, value in settings.items() if name not in ("epochs", "batch_size")}
    run = mv.train(env, run_dir=tmp_path / "run", **settings)
    account = run.summary["asynchronous"]
    assert run.summary["finished"] and adds_up(account) and account["sent"] == run.summary["failures"]["steps_sent"]
    assert run.summary["env_steps"] >= 1_000 and run.summary["skipped_updates"] == 0
    assert account["largest_lag"] <= settings.get("max_lag", 4)


def arguments(tmp_path: Path, deed: str) -> dict[str, Any]:
    return {"mark": str(tmp_path / "mark"), "deed": deed, "program": os.getpid()}


@pytest.mark.fault("F2", "G7")
def test_dead_worker_costs_its_rows_and_the_run_continues(tmp_path: Path) -> None:
    settings = {**RUN, "env_steps": 8_000}
    run = mv.train(Once, run_dir=tmp_path / "run", env_kwargs=arguments(tmp_path, "die"), **settings)
    account, failures = run.summary["asynchronous"], run.summary["failures"]
    assert run.summary["finished"] and failures["worker_restarts"] == 1
    assert account["lost"] == 2, "a row of both envs of that worker"
    assert adds_up(account) and account["sent"] == failures["steps_sent"]


@pytest.mark.fault("A14", "G4")
@pytest.mark.parametrize("deed", ["interrupt", "interrupt and hang"])
def test_ctrl_c_saves_and_ends_the_run(deed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interrupts, "PATIENCE_S", 0.2)
    monkeypatch.setattr(session_envs, "Timeouts", functools.partial(mv.Timeouts, close_s=0.5))
    settings = {**RUN, "env_steps": 10**9, "reply_timeout_s": None}
    with pytest.raises(KeyboardInterrupt):
        mv.train(Once, run_dir=tmp_path / "run", env_kwargs=arguments(tmp_path, deed), **settings)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    saved = checkpoint_of(tmp_path / "run").state
    assert not summary["finished"] and summary["env_steps"] == saved["clock"]["env_steps"] > 0
    assert adds_up(summary["asynchronous"]) and saved["session"]["account"]["used"] == summary["env_steps"]
    again = {"env": Once, "env_steps": summary["env_steps"] + 1_000, "progress": False}
    run = mv.resume(tmp_path / "run", env_kwargs=arguments(tmp_path, deed), reply_timeout_s=60.0, **again)
    assert run.summary["finished"] and run.summary["asynchronous"]["used"] == run.summary["env_steps"]


@pytest.mark.fault("A9")
def test_error_of_the_envs_saves_and_ends_the_run(tmp_path: Path) -> None:
    settings = {**RUN, "env_steps": 10**9, "on_failure": "raise"}
    with pytest.raises(mv.errors.EnvFailed, match="it raised"):
        mv.train(Once, run_dir=tmp_path / "run", env_kwargs=arguments(tmp_path, "raise"), **settings)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert "it raised" in summary["error"] and adds_up(summary["asynchronous"])


@pytest.mark.fault("F2")
def test_resumed_run_continues_its_account_and_repeats_no_episode(tmp_path: Path) -> None:
    first = mv.train("CartPole-v1", run_dir=tmp_path / "run", **{**RUN, "env_steps": 2_000})
    second = mv.resume(first, env_steps=4_000, progress=False)
    before, after = (run.summary["asynchronous"] for run in (first, second))
    assert adds_up(after) and after["used"] == second.summary["env_steps"] >= 4_000
    assert all(after[name] >= before[name] for name in before)
    numbers = [(one["env_id"], one["episode"]) for one in lines_of(tmp_path / "run", "episodes.jsonl")]
    assert len(set(numbers)) == len(numbers) == second.summary["episodes"]


def test_run_can_become_asynchronous_and_synchronous_again(tmp_path: Path) -> None:
    settings = {**RUN, "asynchronous": False, "executor": "serial", "workers": None, "env_steps": 1_000}
    run = mv.train("CartPole-v1", run_dir=tmp_path / "run", **settings)
    run = mv.resume(run, asynchronous=True, executor="process", env_steps=2_000, progress=False)
    assert run.summary["asynchronous"]["used"] == 1_000 and run.summary["env_steps"] == 2_000
    account = run.summary["asynchronous"]
    run = mv.resume(run, asynchronous=False, executor="serial", env_steps=3_000, progress=False)
    assert run.summary["asynchronous"] == account and run.summary["env_steps"] == 3_000
    run = mv.resume(run, asynchronous=True, executor="process", env_steps=4_000, progress=False)
    assert run.summary["asynchronous"]["used"] == 2_000, "the account continues"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"executor": "serial"}, "executor='serial', where the process"),
        ({"executor": "hybrid"}, "executor='hybrid', where the process"),
        ({"algorithm": "dqn"}, "dqn learns from replay"),
        ({"num_envs": "auto"}, "cannot be used with num_envs='auto'"),
        ({"opponents": 2}, "cannot be used with opponents=2"),
        ({"whole_episodes": True}, "cannot be used with whole_episodes"),
        ({"render": True}, "cannot be used with render"),
        ({"max_lag": -1}, "max_lag=-1: expected at least 0"),
        ({"queue_size": 0}, "queue_size=0: expected at least 1"),
        ({"steps_per_env": 4}, "asynchronous needs a policy that acts in the workers"),
    ],
)
def test_incompatible_settings_are_refused(settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(mv.errors.InvalidRequest, match=message):
        mv.train("CartPole-v1", run_dir=tmp_path / "run", asynchronous=True, progress=False, **settings)
    assert not (tmp_path / "run").exists()

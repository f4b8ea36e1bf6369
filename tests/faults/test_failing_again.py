"""Row G3: replacements of failed envs or lost workers may fail too: that counts as a restart, up to the limit."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

import multiverse as mv
from multiverse.cli.main import one_line
from multiverse.executors.process import Processes
from tests.envs import Walk
from tests.faults.conftest import LoggedWarnings
from tests.faults.unlucky_envs import ExitsThenRaises, RaisesInSteps, RaisesOnceOrInReset, RaisesThenFails
from tests.vector.configurations import FORKSERVER, HYBRID, SERIAL, THREAD, Configuration
from tests.vector.conftest import Make
from tests.vector.runs import actions

everywhere = pytest.mark.parametrize("config", [SERIAL, THREAD, FORKSERVER, HYBRID], ids=str)
with_processes = pytest.mark.parametrize("config", [FORKSERVER, HYBRID], ids=str)
modes = pytest.mark.parametrize("autoreset", ["next_step", "same_step"])


def last_env(config: Configuration, **kwargs: Any) -> list[dict[str, Any]]:
    return [{}] * (config.num_envs - 1) + [kwargs]


@pytest.mark.fault("G3")
@everywhere
@modes
@pytest.mark.parametrize("again", ["constructor", "reset"])
def test_env_that_fails_again_while_replaced_is_replaced_again(
    make: Make, config: Configuration, autoreset: str, again: str, tmp_path: Path, logged_warnings: LoggedWarnings
) -> None:
    kwargs = last_env(config, folder=str(tmp_path), again=again, times=2)
    envs = make(
        RaisesThenFails,
        env_kwargs=kwargs,
        autoreset=autoreset,
        on_failure=mv.FailureOptions(on_failure="restart", restarts_per_minute=5),
    )
    envs.reset(seed=7)
    envs.step(actions(range(config.num_envs), 0))
    *_, truncated, infos = envs.step(actions(range(config.num_envs), 1))
    assert truncated.tolist() == infos["restarted"].tolist() == [False] * (config.num_envs - 1) + [True]
    while autoreset == "next_step" and truncated[-1]:  # the next step is its reset, which may fail too
        *_, truncated, _ = envs.step(actions(range(config.num_envs), 2))
    envs.step(actions(range(config.num_envs), 3))
    assert envs.call("steps")[-1] == 1 and len(os.listdir(tmp_path)) == 3
    assert [line for line in logged_warnings() if f"failed again in {again}, number 3" in line]


@pytest.mark.fault("G3")
@everywhere
def test_env_that_fails_again_in_the_callers_reset_is_replaced_again(
    make: Make, config: Configuration, tmp_path: Path
) -> None:
    envs = make(
        RaisesThenFails,
        env_kwargs=last_env(config, folder=str(tmp_path), again="reset", times=3),
        on_failure=mv.FailureOptions(on_failure="restart", restarts_per_minute=5),
    )
    envs.reset(seed=7)
    Path(tmp_path, "0").touch()
    observations, _ = envs.reset(seed=7)
    assert observations[-1][1] == 0 and len(os.listdir(tmp_path)) == 4
    envs.step(actions(range(config.num_envs), 0))


@pytest.mark.fault("G3", "A7")
@everywhere
@pytest.mark.parametrize("again", ["constructor", "reset"])
def test_env_beyond_the_restart_limit_is_an_error_with_both_failures_and_advice(
    make: Make, config: Configuration, again: str, tmp_path: Path
) -> None:
    envs = make(
        RaisesThenFails,
        env_kwargs=last_env(config, folder=str(tmp_path), again=again, times=99),
        autoreset="same_step",
        on_failure=mv.FailureOptions(on_failure="restart", restarts_per_minute=2),
    )
    envs.reset(seed=7)
    envs.step(actions(range(config.num_envs), 0))
    with pytest.raises(mv.errors.EnvFailed, match="failed first, number 1") as caught:
        envs.step(actions(range(config.num_envs), 1))
    assert_says_all(caught.value, "restarts_per_minute=2", f"failed again in {again}, number 3")
    assert caught.value.env_ids == (config.num_envs - 1,) and len(os.listdir(tmp_path)) == 3


def assert_says_all(error: mv.MultiverseError, *words: str) -> None:
    """In the error, and in the one line of it that a command prints."""
    for text in (str(error), one_line(error)):
        for word in (*words, "given up", "multiverse resume"):
            assert word in text, text


@pytest.mark.fault("G3", "A7")
@with_processes
def test_worker_beyond_the_restart_limit_is_an_error_with_both_failures_and_advice(
    make: Make, config: Configuration, tmp_path: Path
) -> None:
    kwargs = last_env(config, folder=str(tmp_path), times=99)
    envs = make(
        ExitsThenRaises, env_kwargs=kwargs, on_failure=mv.FailureOptions(on_failure="restart", restarts_per_minute=2)
    )
    envs.reset(seed=7)
    with pytest.raises(mv.errors.WorkerDied, match="exited with code 3") as caught:
        envs.step(actions(range(config.num_envs), 0))
    assert_says_all(caught.value, "restarts_per_minute=2", "no luck, number 3")


@pytest.mark.fault("G3")
@with_processes
def test_replacement_that_cannot_start_counts_as_a_restart_and_is_retried(
    make: Make, config: Configuration, monkeypatch: pytest.MonkeyPatch, logged_warnings: LoggedWarnings
) -> None:
    envs = make(Walk, on_failure="restart")
    envs.reset(seed=7)
    really, tries = Processes._started, []

    def fails_once(self: Any, *arguments: Any) -> Any:
        tries.append(arguments)
        if len(tries) == 1:
            raise mv.errors.PreflightError("no more processes just now")
        return really(self, *arguments)

    monkeypatch.setattr(Processes, "_started", fails_once)
    os.kill(envs.worker_pids[-1], signal.SIGKILL)
    *_, infos = envs.step(actions(range(config.num_envs), 0))
    assert infos["restarted"][-1] and len(tries) == 2
    assert any("no more processes just now: restart 2 of at most 5 in a row" in line for line in logged_warnings())


@pytest.mark.fault("G3", "A7")
@pytest.mark.parametrize("config", [SERIAL, FORKSERVER], ids=str)
def test_env_that_exceeds_the_limit_is_reported_with_the_first_and_must_be_reset(
    make: Make, config: Configuration
) -> None:
    last = config.last_range
    kwargs = [{}] * last.start + [{"fails_in": (1,)}, {"fails_in": (2,)}, {}, {}][: len(last)]
    envs = make(
        RaisesInSteps,
        env_kwargs=kwargs,
        autoreset="same_step",
        on_failure=mv.FailureOptions(on_failure="restart", restarts_per_minute=1),
    )
    envs.reset(seed=7)
    envs.step(actions(range(config.num_envs), 0))
    with pytest.raises(mv.errors.EnvFailed, match="in step 1") as caught:
        envs.step(actions(range(config.num_envs), 1))
    assert "in step 2" in str(caught.value) and last.start + 1 in caught.value.env_ids
    with pytest.raises(mv.errors.RequestPending, match=str(last.start + 1)):
        envs.step(actions(range(config.num_envs), 2))


@pytest.mark.fault("G3", "A7")
@pytest.mark.parametrize("config", [SERIAL, FORKSERVER], ids=str)
def test_env_that_never_worked_is_reported_unchanged(make: Make, config: Configuration) -> None:
    last = config.last_range
    kwargs = [{}] * last.start + [{"what": "once"}, {"what": "never"}, {}, {}][: len(last)]
    envs = make(RaisesOnceOrInReset, env_kwargs=kwargs, on_failure="restart")
    healthy = [i for i in range(config.num_envs) if i != last.start + 1]
    envs.reset(env_ids=healthy, seed=7)
    envs.step(actions([last.start], 0), env_ids=[last.start])
    assert envs.failures.env_restarts == 1
    with pytest.raises(mv.errors.EnvFailed, match="never worked") as caught:
        envs.reset(env_ids=[last.start + 1], seed=7)
    assert caught.value.env_ids == (last.start + 1,) and "worked before" not in str(caught.value)

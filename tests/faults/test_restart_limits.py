"""Row A7: restarts are limited relative to the episodes and steps between failures, or to a given rate."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import multiverse as mv
from multiverse.cli.main import one_line
from multiverse.core import failures
from multiverse.core.failures import FAILURES_COMPARED, RESTARTS_IN_A_ROW, RestartLimit, Work, restart_limit
from multiverse.executors.supervisor import HangsInARow
from tests.envs import Walk
from tests.fault_envs import Fault
from tests.faults.episode_envs import ExitsInSomeEpisodes
from tests.rollouts.envs import Stumbles
from tests.rollouts.test_whole_episodes import network
from tests.vector.configurations import FORKSERVER, HYBRID, SERIAL, THREAD, Configuration
from tests.vector.conftest import Make
from tests.vector.runs import actions

everywhere = pytest.mark.parametrize("config", [SERIAL, THREAD, FORKSERVER, HYBRID], ids=str)
modes = pytest.mark.parametrize("autoreset", ["next_step", "same_step"])


def last_env(config: Configuration, **kwargs: Any) -> list[dict[str, Any]]:
    return [{}] * (config.num_envs - 1) + [kwargs]


def run(envs: mv.VectorEnv, steps: int) -> None:
    envs.reset(seed=7)
    for k in range(steps):
        envs.step(actions(range(envs.num_envs), k))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A clock that the test sets."""
    now = SimpleNamespace(s=1000.0)
    monkeypatch.setattr(failures, "time", SimpleNamespace(monotonic=lambda: now.s))
    return now


def failures_allowed(limit: RestartLimit[int], episodes: int, steps: int, most: int = 1000) -> int:
    """Return how many failures are followed by a restart, with this work before each."""
    return next((k for k in range(most) if not limit.allows(k, Work(k * episodes, k * steps))), most)


# -- relative to work ----------------------------------------------------------------------------------------------
@pytest.mark.fault("A7")
@pytest.mark.parametrize(
    ("episodes", "steps", "allowed"),
    [
        (0, 0, RESTARTS_IN_A_ROW),
        (0, 99, RESTARTS_IN_A_ROW),
        (0, 400, FAILURES_COMPARED - 1),
        (1, 10, FAILURES_COMPARED - 1),
        (0, 2000, 1000),
        (2, 0, 1000),
    ],
)
def test_failures_are_allowed_relative_to_the_work_between_them(episodes: int, steps: int, allowed: int) -> None:
    limit: RestartLimit[int] = restart_limit(None)
    assert failures_allowed(limit, episodes, steps) == allowed
    if allowed < 1000:
        assert limit.first_cause == 0 and "given up" in limit.why_given_up("env 3", "ValueError: no")


@pytest.mark.fault("A7")
def test_first_cause_is_that_of_the_failures_that_exceed_the_limit() -> None:
    limit: RestartLimit[str] = restart_limit(None)
    assert limit.allows("long ago", Work(0, 0))
    for k in range(RESTARTS_IN_A_ROW):
        assert limit.allows(f"cause {k}", Work(50, 400))
    assert not limit.allows("last", Work(50, 400)) and limit.first_cause == "cause 0"


@pytest.mark.fault("A7")
@everywhere
@modes
def test_env_that_raises_in_every_third_episode_is_always_restarted(
    make: Make, config: Configuration, autoreset: str
) -> None:
    kwargs = last_env(config, what="raise", at=12)
    envs = make(Fault, env_kwargs=kwargs, autoreset=autoreset, on_failure="restart")
    run(envs, 400)
    assert envs.failures.env_restarts > FAILURES_COMPARED


@pytest.mark.fault("A7")
def test_env_that_raises_every_600_steps_of_an_endless_episode_is_always_restarted() -> None:
    with mv.make_vec(Fault, 1, "serial", env_kwargs={"what": "raise", "at": 600, "length": 10**9},
                     on_failure="restart") as envs:  # fmt: skip
        run(envs, 600 * (FAILURES_COMPARED + 3))
        assert envs.failures.env_restarts > FAILURES_COMPARED


@pytest.mark.fault("A7")
@everywhere
@modes
def test_env_that_raises_in_half_of_its_episodes_is_given_up(make: Make, config: Configuration, autoreset: str) -> None:
    envs = make(Fault, env_kwargs=last_env(config, what="raise", at=7), autoreset=autoreset, on_failure="restart")
    with pytest.raises(
        mv.errors.EnvFailed, match=f"{FAILURES_COMPARED} failures of env {config.num_envs - 1} within"
    ) as caught:
        run(envs, 1000)
    assert "--restarts-per-minute" in one_line(caught.value) and "multiverse resume" in one_line(caught.value)
    assert envs.failures.env_restarts == FAILURES_COMPARED - 1


@pytest.mark.fault("A7")
@pytest.mark.parametrize("config", [FORKSERVER, HYBRID], ids=str)
def test_worker_that_dies_in_every_few_episodes_is_always_replaced(make: Make, config: Configuration) -> None:
    kwargs = last_env(config, what="exit", at=12)
    envs = make(Fault, env_kwargs=kwargs, autoreset="same_step", on_failure="restart")
    run(envs, 12 * (RESTARTS_IN_A_ROW + 3))
    assert envs.failures.worker_restarts > RESTARTS_IN_A_ROW


@pytest.mark.fault("A7")
@pytest.mark.parametrize("config", [FORKSERVER, HYBRID], ids=str)
def test_worker_that_dies_in_its_first_reset_each_time_is_given_up(make: Make, config: Configuration) -> None:
    envs = make(Fault, env_kwargs=last_env(config, what="exit", phase="reset"), on_failure="restart")
    with pytest.raises(mv.errors.WorkerDied, match=f"{RESTARTS_IN_A_ROW + 1} failures of worker") as caught:
        envs.reset(seed=7)
    assert "0 completed episodes and 0 env steps" in str(caught.value) and "--restarts-per-minute" in str(caught.value)


@pytest.mark.fault("A7")
def test_occasionally_dying_workers_of_whole_episodes_are_always_replaced(tmp_path: Path) -> None:
    kwargs = {"folder": str(tmp_path), "every": 12}
    with mv.make_vec(Stumbles, 1, "serial") as envs:
        policy = network(envs)
    with mv.EpisodeCollector(ExitsInSomeEpisodes, mv.DerivedSeeds(8), num_envs=1, workers=1, env_kwargs=kwargs,
                           on_failure="restart") as workers:  # fmt: skip
        dropped = sum(workers.collect(policy, 8).dropped for _ in range(RESTARTS_IN_A_ROW + 3))
    assert dropped > 8 * RESTARTS_IN_A_ROW


@pytest.mark.fault("A7", "G4")
@pytest.mark.parametrize(("steps", "in_a_row"), [(499, 3), (500, 1)])
def test_timeouts_with_many_steps_between_them_are_not_in_a_row(steps: int, in_a_row: int) -> None:
    hangs, timeout = HangsInARow(), mv.errors.ReplyTimeout(0, range(2), "step", 60.0, "it is sleeping", "")
    for k in range(3):
        hangs.note(timeout, k * steps)
    assert len(hangs.causes) == in_a_row


# -- relative to time ----------------------------------------------------------------------------------------------
@pytest.mark.fault("A7")
@pytest.mark.parametrize("work", [0, 1000])
def test_given_rate_applies_whatever_work_is_done(work: int, clock: SimpleNamespace) -> None:
    assert failures_allowed(restart_limit(4), work, work) == 4
    limit: RestartLimit[int] = restart_limit(4)
    for k in range(20):
        clock.s += 15.1
        assert limit.allows(k, Work())


@pytest.mark.fault("A7")
@pytest.mark.parametrize("rate", [None, 3])
@pytest.mark.parametrize("every_s", [0.001, 0.7, 11.0])
def test_restart_rate_named_in_the_error_would_have_sufficed(
    rate: int | None, every_s: float, clock: SimpleNamespace
) -> None:
    limits: list[RestartLimit[int]] = [restart_limit(rate)]
    while True:
        clock.s += every_s
        if not limits[0].allows(0, Work()):
            break
    named = re.search(r"--restarts-per-minute (\d+)\)", limits[0].why_given_up("env 3", "no"))
    assert named is not None and int(named[1]) > (rate or 0)
    limits.append(restart_limit(int(named[1])))
    for k in range(6 if rate is None else 4):
        clock.s += every_s
        assert limits[1].allows(k, Work())


@pytest.mark.fault("A7")
def test_given_rate_limits_all_envs_of_a_worker_together() -> None:
    kwargs = [{"what": "raise", "at": 12}] * 4
    failures = mv.FailureOptions(on_failure="restart", restarts_per_minute=3)
    expected = pytest.raises(
        mv.errors.EnvFailed, match=r"failure 4 of envs .* within a minute exceeds restarts_per_minute=3"
    )
    with mv.make_vec(Fault, 4, "serial", env_kwargs=kwargs, on_failure=failures) as envs, expected:
        run(envs, 20)


# -- runs ------------------------------------------------------------------------------------------------------------
@pytest.mark.fault("A7")
def test_run_with_one_failure_in_hundreds_of_steps_finishes(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"env_steps": 6000, "num_envs": 2, "executor": "serial", "evaluate_every": 0}
    kwargs = {"what": "raise", "at": 400}
    trained = mv.train(Fault, "a2c", **settings, env_kwargs=kwargs, evaluation_episodes=1, run_dir=tmp_path / "run")
    assert trained.summary["finished"] and trained.summary["failures"]["env_restarts"] > RESTARTS_IN_A_ROW


@pytest.mark.fault("A7", "G9")
def test_evaluation_with_single_failures_is_not_played_again(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"env_steps": 20, "steps_per_env": 10, "num_envs": 2, "executor": "serial"}
    evaluations = {"evaluate_every": 0, "evaluation_episodes": 60, "evaluation_envs": 2}
    run = mv.train(
        Fault, "a2c", **settings, **evaluations, env_kwargs={"what": "raise", "at": 22}, run_dir=tmp_path / "run"
    )
    assert run.summary["evaluation"]["lost_episodes"] > RESTARTS_IN_A_ROW and "played again" not in caplog.text


def test_rate_below_one_is_refused() -> None:
    with pytest.raises(mv.errors.InvalidRequest, match="restarts_per_minute=0"):
        mv.make_vec(Walk, 1, "serial", on_failure=mv.FailureOptions(on_failure="restart", restarts_per_minute=0))

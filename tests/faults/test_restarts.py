"""Rows A1, A7, A9, B4: on_failure="restart" replaces what is lost, marks its row, and changes nothing else."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import multiverse as mv
from tests.envs import Walk
from tests.equality import assert_same
from tests.fault_envs import Fault
from tests.faults.value_envs import ExitsInSecondReset, FailsEachTime
from tests.vector.configurations import FORK, FORKSERVER, HYBRID, SERIAL, SPAWN, THREAD, Configuration
from tests.vector.conftest import Make
from tests.vector.runs import actions

everywhere = pytest.mark.parametrize("config", [SERIAL, THREAD, FORKSERVER, FORK, SPAWN, HYBRID], ids=str)
PROCESSES = [FORKSERVER, FORK, SPAWN, HYBRID]
with_processes = pytest.mark.parametrize("config", PROCESSES, ids=str)
modes = pytest.mark.parametrize("autoreset", ["next_step", "same_step"])


def last_env(config: Configuration, **kwargs: Any) -> list[dict[str, Any]]:
    return [{}] * (config.num_envs - 1) + [kwargs]


def steps(envs: mv.VectorEnv, count: int, first: int = 0) -> list[Any]:
    return [envs.step(actions(range(envs.num_envs), first + k)) for k in range(count)]


def rows(step: Any, chosen: list[int]) -> list[Any]:
    observations, rewards, terminated, truncated, _ = step
    return [observations[chosen], rewards[chosen], terminated[chosen], truncated[chosen]]


def assert_others_untouched(config: Configuration, found: list[Any], expected: list[Any], lost: range) -> None:
    others = [i for i in range(config.num_envs) if i not in lost]
    for one, other in zip(found, expected):
        assert_same(rows(one, others), rows(other, others))


def assert_lost_row(step: Any, before: Any, lost: range, autoreset: str) -> None:
    """As specified in DESIGN: reward 0, truncated, the last delivered observation as the final one, `restarted`."""
    observations, rewards, terminated, truncated, infos = step
    for i in lost:
        assert (rewards[i], terminated[i], truncated[i]) == (0.0, False, True)
        assert infos["restarted"][i] and infos["_restarted"][i]
        final = infos["final_obs"][i] if autoreset == "same_step" else observations[i]
        assert_same(final, before[0][i])
    assert not any(infos["_restarted"][i] for i in range(len(rewards)) if i not in lost)


@pytest.mark.fault("A1", "B4", "F2")
@pytest.mark.parametrize(
    ("config", "autoreset"), [(FORKSERVER, "same_step"), *((c, "next_step") for c in PROCESSES)], ids=str
)
def test_killed_worker_is_replaced_and_the_others_stay_bit_equal(
    make: Make, config: Configuration, autoreset: str
) -> None:
    clean = make(Walk, autoreset=autoreset)
    clean.reset(seed=7)
    expected = steps(clean, 6)
    envs = make(Walk, autoreset=autoreset, on_failure="restart")
    envs.reset(seed=7)
    found = steps(envs, 2)
    lost, pid = config.last_range, envs.worker_pids[-1]
    os.kill(pid, signal.SIGKILL)
    found += steps(envs, 4, first=2)
    assert_lost_row(found[2], found[1], lost, autoreset)
    assert_others_untouched(config, found, expected, lost)
    assert envs.worker_pids[-1] != pid
    assert envs.episode_counts[lost.start] >= 1  # the counters outlive their worker
    failures = envs.failures
    assert (failures.worker_restarts, failures.steps_discarded) == (1, len(lost))
    assert failures.steps_sent == failures.steps_used + failures.steps_discarded


@pytest.mark.fault("A1", "C3")
@pytest.mark.parametrize(("config", "what"), [(FORKSERVER, "exit"), *((c, "kill") for c in PROCESSES)], ids=str)
def test_worker_that_dies_inside_a_step_is_replaced(make: Make, config: Configuration, what: str) -> None:
    envs = make(Fault, env_kwargs=last_env(config, what=what, at=2), on_failure="restart")
    envs.reset(seed=7)
    before, lost_step = steps(envs, 2)
    assert_lost_row(lost_step, before, config.last_range, "next_step")
    steps(envs, 1)


@pytest.mark.fault("A9", "B4", "F2")
@everywhere
@modes
def test_env_that_raises_is_rebuilt_without_affecting_others(make: Make, config: Configuration, autoreset: str) -> None:
    clean = make(Walk, autoreset=autoreset)
    clean.reset(seed=7)
    expected = steps(clean, 3)
    envs = make(Fault, env_kwargs=last_env(config, what="raise", at=2), autoreset=autoreset, on_failure="restart")
    envs.reset(seed=7)
    found = steps(envs, 3)
    lost = range(config.num_envs - 1, config.num_envs)
    assert_lost_row(found[1], found[0], lost, autoreset)
    assert_others_untouched(config, found, expected, lost)
    failures = envs.failures
    assert (failures.env_restarts, failures.worker_restarts, failures.steps_discarded) == (1, 0, 1)
    assert failures.steps_sent == failures.steps_used + failures.steps_discarded


@pytest.mark.fault("A7")
@with_processes
def test_crash_loop_ends_with_its_first_cause(make: Make, config: Configuration) -> None:
    envs = make(Fault, env_kwargs=last_env(config, what="exit", at=1), on_failure="restart")
    envs.reset(seed=7)
    with pytest.raises(mv.errors.WorkerDied, match="exited with code 3") as caught:
        steps(envs, 20)
    assert caught.value.env_ids == config.last_range
    assert envs.failures.worker_restarts == 5
    for call in (lambda: steps(envs, 1), envs.reset, lambda: envs.call("method")):
        with pytest.raises(mv.MultiverseError):
            call()


@pytest.mark.fault("A7")
@everywhere
def test_env_that_fails_repeatedly_ends_with_its_first_cause(make: Make, config: Configuration) -> None:
    envs = make(Fault, env_kwargs=last_env(config, what="raise", at=1), on_failure="restart")
    envs.reset(seed=7)
    with pytest.raises(mv.errors.EnvFailed, match="asked to fail") as caught:
        steps(envs, 20)
    assert caught.value.env_ids == (config.num_envs - 1,)


@pytest.mark.fault("A7")
@pytest.mark.parametrize(
    ("config", "ends"),
    [*((config, "raise") for config in (SERIAL, THREAD, FORKSERVER)), *((c, "exit") for c in (FORKSERVER, FORK))],
    ids=str,
)
def test_first_of_several_causes_is_raised_after_three_restarts(
    make: Make, config: Configuration, ends: str, tmp_path: Path
) -> None:
    path = tmp_path / "failures"
    kwargs = last_env(config, path=str(path), ends=ends)
    envs = make(
        FailsEachTime, env_kwargs=kwargs, on_failure=mv.FailureOptions(on_failure="restart", restarts_per_minute=3)
    )
    envs.reset(seed=7)
    with pytest.raises(mv.MultiverseError, match=r"failure 1$|exited with code 1 ") as caught:
        steps(envs, 20)
    assert path.stat().st_size == 4  # the first, and its three replacements
    assert isinstance(caught.value, mv.errors.EnvFailed if ends == "raise" else mv.errors.WorkerDied)


@pytest.mark.fault("A7")
@everywhere
def test_failure_before_the_first_successful_reset_is_not_retried(
    make: Make, config: Configuration, tmp_path: Path
) -> None:
    path = tmp_path / "failures"
    envs = make(FailsEachTime, env_kwargs=last_env(config, path=str(path), phase="reset"), on_failure="restart")
    with pytest.raises(mv.errors.EnvFailed, match="failure 1"):
        envs.reset(seed=7)
    assert path.stat().st_size == 1


@pytest.mark.fault("A1")
@with_processes
def test_worker_that_dies_in_a_reset_is_replaced_and_reset_again(make: Make, config: Configuration) -> None:
    envs = make(Walk, on_failure="restart")
    expected, _ = envs.reset(seed=7)
    os.kill(envs.worker_pids[-1], signal.SIGKILL)
    found, _ = envs.reset(seed=7)
    assert_same(found, expected)
    assert envs.failures.worker_restarts == 1
    steps(envs, 2)


@pytest.mark.fault("A1", "B4")
@pytest.mark.parametrize(
    ("config", "autoreset"),
    [(FORKSERVER, "same_step"), (FORKSERVER, "next_step"), (FORK, "same_step"), (SPAWN, "same_step")],
    ids=str,
)
def test_replacement_that_dies_is_replaced_and_starts_an_episode(
    make: Make, config: Configuration, autoreset: str, tmp_path: Path
) -> None:
    kwargs = [{"index": i} for i in range(config.num_envs - 1)] + [{"path": str(tmp_path / "resets")}]
    envs = make(ExitsInSecondReset, env_kwargs=kwargs, autoreset=autoreset, on_failure="restart")
    envs.reset(seed=7)
    for k in range(4):
        *_, truncated, infos = envs.step(np.zeros(config.num_envs, np.int64))
        if k == 0:
            assert truncated.tolist() == [i in config.last_range for i in range(config.num_envs)]
            assert infos["restarted"].tolist() == truncated.tolist()
    assert envs.failures.worker_restarts > 0 and envs.failures.env_restarts == 0
    assert (tmp_path / "resets").stat().st_size == 3


@pytest.mark.fault("A1")
@with_processes
def test_worker_that_dies_in_a_call_is_replaced_and_must_be_reset(make: Make, config: Configuration) -> None:
    envs = make(Fault, env_kwargs=last_env(config, what="kill", phase="method"), on_failure="restart")
    envs.reset(seed=7)
    with pytest.raises(mv.errors.WorkerDied):
        envs.call("method")
    with pytest.raises(mv.errors.RequestPending, match="reset"):
        steps(envs, 1)
    envs.reset(env_ids=list(config.last_range), seed=3)
    steps(envs, 2)


@pytest.mark.fault("A3", "A4")
@with_processes
def test_hanging_worker_is_killed_and_replaced(make: Make, config: Configuration) -> None:
    envs = make(Walk, on_failure="restart", timeouts=mv.Timeouts(reply_s=0.3))
    envs.reset(seed=7)
    (before,) = steps(envs, 1)
    os.kill(envs.worker_pids[-1], signal.SIGSTOP)
    (lost_step,) = steps(envs, 1, first=1)
    assert_lost_row(lost_step, before, config.last_range, "next_step")
    assert (envs.failures.timeouts, envs.failures.worker_restarts) == (1, 1)


@pytest.mark.fault("A1", "B4")
@pytest.mark.parametrize("config", [FORKSERVER, HYBRID], ids=str)
def test_first_come_first_served_continues_after_a_death(make: Make, config: Configuration) -> None:
    envs = make(Walk, on_failure="restart")
    envs.reset(seed=7)
    lost = config.last_range
    os.kill(envs.worker_pids[-1], signal.SIGKILL)
    envs.send(actions(range(config.num_envs), 0))
    seen: set[int] = set()
    while len(seen) < config.num_envs:
        batch = envs.receive(min_envs=1)
        assert not seen & set(batch.env_ids.tolist())
        seen |= set(batch.env_ids.tolist())
        for row, env_id in enumerate(batch.env_ids.tolist()):
            assert batch.truncated[row] == (env_id in lost)
    steps(envs, 2)


@pytest.mark.fault("B4")
@pytest.mark.parametrize("config", [FORKSERVER, SPAWN], ids=str)
def test_infos_are_correct_after_a_restart(make: Make, config: Configuration) -> None:
    """The new worker numbers its info columns again."""
    clean = make(Walk)
    clean.reset(seed=7)
    expected = [infos for *_, infos in steps(clean, 5)]
    envs = make(Walk, on_failure="restart")
    envs.reset(seed=7)
    steps(envs, 2)
    os.kill(envs.worker_pids[0], signal.SIGKILL)
    found = [infos for *_, infos in steps(envs, 3, first=2)]
    untouched = config.ranges[1].start
    for one, other in zip(found, expected[2:]):
        for key in other:
            assert_same(np.asarray(one[key])[untouched], np.asarray(other[key])[untouched])


def test_auto_with_restart_chooses_processes() -> None:
    with mv.make_vec("CartPole-v1", 2, on_failure="restart") as envs:
        assert envs.plan.executor == "process"


def test_unknown_on_failure_value_is_refused() -> None:
    with pytest.raises(mv.errors.InvalidRequest, match="on_failure"):
        mv.make_vec("CartPole-v1", 2, on_failure="ignore")  # type: ignore[arg-type]


@pytest.mark.fault("A1")
@pytest.mark.parametrize("config", [FORKSERVER, FORK, SPAWN], ids=str)
def test_death_after_another_workers_replacement_is_no_timeout(make: Make, config: Configuration) -> None:
    """It is not treated as a hang, so there is no wait for a deadline."""
    envs = make(Walk, on_failure="restart", timeouts=mv.Timeouts(reply_s=10, reset_s=10))
    envs.reset(seed=7)
    for k, worker in enumerate((0, 1, 0, 1)):
        os.kill(envs.worker_pids[worker], signal.SIGKILL)
        *_, truncated, _ = envs.step(actions(range(config.num_envs), k))
        assert truncated[list(config.ranges[worker])].all()
    assert (envs.failures.worker_restarts, envs.failures.timeouts) == (4, 0)

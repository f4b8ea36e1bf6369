"""Rows A3 to A5: a worker that does not answer is named, with its current call, and can always be ended."""

from __future__ import annotations

import inspect
import os
import signal
from dataclasses import replace
from typing import Any

import pytest

import multiverse as mv
from tests.envs import Walk
from tests.equality import assert_same
from tests.fault_envs import Fault, Gate, Gated
from tests.processes import still_alive
from tests.vector.configurations import FORK, FORKSERVER, HYBRID, SERIAL, SPAWN, THREAD, Configuration
from tests.vector.conftest import Make
from tests.vector.runs import actions, lock_step

SHORT_S = 0.3
with_workers = pytest.mark.parametrize("config", [THREAD, FORKSERVER, HYBRID], ids=str)
with_processes = pytest.mark.parametrize("config", [FORKSERVER, FORK, SPAWN], ids=str)


def last_env(config: Configuration, **kwargs: Any) -> list[dict[str, Any]]:
    return [{}] * (config.num_envs - 1) + [kwargs]


def let_go(gate: Gate) -> None:
    gate.wait_for_arrival()
    gate.open()


@pytest.mark.fault("A4", "A19")
@with_workers
def test_hanging_step_is_an_error_with_the_stack(make: Make, config: Configuration, gate: Gate) -> None:
    envs = make(Gated, env_kwargs=last_env(config, gate=str(gate), phase="step"), timeouts=mv.Timeouts(reply_s=SHORT_S))
    envs.reset(seed=7)
    with pytest.raises(mv.errors.ReplyTimeout, match="step") as caught:
        envs.step(actions(range(config.num_envs), 0))
    assert caught.value.env_ids == config.last_range
    assert "fault_envs.py" in caught.value.stack
    let_go(gate)


@pytest.mark.fault("A4")
@with_workers
def test_hanging_reset_has_its_own_deadline(make: Make, config: Configuration, gate: Gate) -> None:
    kwargs = last_env(config, gate=str(gate), phase="reset")
    envs = make(Gated, env_kwargs=kwargs, timeouts=mv.Timeouts(reply_s=60))
    at_ease = envs._executor.timeouts
    envs._executor.timeouts = replace(at_ease, reset_s=SHORT_S)  # not from the start: building has that deadline too
    with pytest.raises(mv.errors.ReplyTimeout, match="reset"):
        envs.reset(seed=7)
    envs._executor.timeouts = at_ease
    with pytest.raises(mv.errors.RequestPending):
        envs.step(actions(range(config.num_envs), 0))
    let_go(gate)
    envs.reset(seed=7)


@pytest.mark.fault("A5")
@with_processes
def test_hang_in_c_that_holds_the_gil_has_a_stack(make: Make, config: Configuration) -> None:
    envs = make(
        Fault,
        env_kwargs=last_env(config, what="hold_the_gil"),
        timeouts=mv.Timeouts(reply_s=SHORT_S, close_s=0.2),
    )
    envs.reset(seed=7)
    with pytest.raises(mv.errors.ReplyTimeout) as caught:
        envs.step(actions(range(config.num_envs), 0))
    assert "_do_hold_the_gil" in caught.value.stack
    envs.close()  # bounded: killed from outside


@pytest.mark.fault("A3")
@with_processes
def test_stopped_worker_is_reported_as_stopped_and_close_is_bounded(make: Make, config: Configuration) -> None:
    envs = make(Walk, timeouts=mv.Timeouts(reply_s=SHORT_S, close_s=0.2))
    envs.reset(seed=7)
    os.kill(envs.worker_pids[-1], signal.SIGSTOP)
    with pytest.raises(mv.errors.ReplyTimeout, match="SIGSTOP"):
        envs.step(actions(range(config.num_envs), 0))
    envs.close()


@pytest.mark.fault("A3")
@with_processes
def test_stopped_worker_that_continues_has_lost_nothing(make: Make, config: Configuration) -> None:
    n = config.num_envs
    expected = lock_step(make(Walk), 2)
    envs = make(Walk, timeouts=mv.Timeouts(reply_s=SHORT_S))
    envs.reset(seed=7)
    os.kill(envs.worker_pids[-1], signal.SIGSTOP)
    with pytest.raises(mv.errors.ReplyTimeout):
        envs.step(actions(range(n), 0))
    os.kill(envs.worker_pids[-1], signal.SIGCONT)
    assert_same(list(envs.receive().rewards), [expected[i][0][1] for i in range(n)])


@pytest.mark.parametrize("name", ["reply_s", "reset_s", "close_s"])
def test_zero_timeout_is_refused(name: str) -> None:
    with pytest.raises(mv.errors.InvalidRequest, match=name):
        mv.make_vec("CartPole-v1", 2, "serial", timeouts=mv.Timeouts(**{name: 0}))


@pytest.mark.fault("A4")
def test_default_timeouts_are_one_minute_per_step_and_five_per_reset() -> None:
    default = inspect.signature(mv.make_vec).parameters["timeouts"].default
    assert (default.reply_s, default.reset_s) == ("auto", 300.0)
    with mv.make_vec(Walk, 2, "thread", workers=1) as envs:
        assert (envs._executor.timeouts.step_s, envs._executor.timeouts.reset_s) == (60.0, 300.0)


@pytest.mark.fault("A4", "A5", "A3")
@pytest.mark.parametrize(
    ("config", "what"),
    [*((FORKSERVER, what) for what in ("hold_the_gil", "sleep", "stop")), (FORK, "hold_the_gil"), (SPAWN, "stop")],
    ids=str,
)
def test_hanging_worker_is_killed_and_others_continue_with_restart(
    make: Make, config: Configuration, what: str
) -> None:
    n, others = config.num_envs, list(range(config.last_range.start))
    envs = make(
        Fault,
        env_kwargs=last_env(config, what=what, at=2),
        on_failure="restart",
        timeouts=mv.Timeouts(reply_s=2 * SHORT_S, close_s=0.2),
    )
    with SERIAL.make(Walk, n) as oracle:
        expected = lock_step(oracle, 3)
    envs.reset(seed=7)
    pid = envs.worker_pids[-1]
    for k in range(3):
        _, rewards, _, truncated, _ = envs.step(actions(range(n), k))
        assert_same(list(rewards[others]), [expected[i][k][1] for i in others])
        assert truncated[others].tolist() == [False] * len(others)
        assert truncated[n - 1] == (k == 1)
    assert still_alive([pid]) == []
    assert (envs.failures.timeouts, envs.failures.worker_restarts) == (1, 1)


@pytest.mark.fault("A3")
@pytest.mark.parametrize(
    ("config", "what"),
    [*((FORKSERVER, what) for what in ("stop", "hold_the_gil", "deaf")), (FORK, "deaf"), (SPAWN, "stop")],
    ids=str,
)
def test_close_ends_a_worker_whatever_it_is_doing(config: Configuration, what: str) -> None:
    """In the middle of a step, and whichever signals it ignores."""
    envs = config.make(Fault, env_kwargs=last_env(config, what=what))
    envs.reset(seed=7)
    pids = envs.worker_pids
    envs.send(actions(range(config.num_envs), 0))
    with pytest.raises(mv.errors.ReceiveTimeout):
        envs.receive(timeout_s=SHORT_S)
    envs.close(timeout_s=0.2)
    assert still_alive(pids) == []

"""Rows A3 to A6: a worker that does not answer is named, with what it is doing, and its reply is never mixed up."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

import multiverse as mv
from tests.contract.configurations import FORK, FORKSERVER, HYBRID, SPAWN, THREAD, Configuration
from tests.contract.conftest import Make
from tests.contract.runs import actions, lock_step
from tests.envs import Walk
from tests.equality import assert_same
from tests.fault_envs import Fault, Gate, Gated

SHORT_S = 0.3
with_workers = pytest.mark.parametrize("config", [THREAD, FORKSERVER, HYBRID], ids=str)
with_processes = pytest.mark.parametrize("config", [FORKSERVER, FORK, SPAWN], ids=str)


def last_env(config: Configuration, **kwargs: Any) -> list[dict[str, Any]]:
    return [{}] * (config.num_envs - 1) + [kwargs]


def let_go(gate: Gate) -> None:
    gate.wait_for_arrival()
    gate.open()


@with_workers
def test_a_step_that_hangs_is_an_error_that_shows_the_hung_stack(make: Make, config: Configuration, gate: Gate) -> None:
    envs = make(Gated, env_kwargs=last_env(config, gate=str(gate), phase="step"), reply_timeout_s=SHORT_S)
    envs.reset(seed=7)
    with pytest.raises(mv.ReplyTimeout, match="step") as caught:
        envs.step(actions(range(config.num_envs), 0))
    assert caught.value.env_ids == config.last_range
    assert "fault_envs.py" in caught.value.stack
    let_go(gate)


@with_workers
def test_a_reply_after_its_deadline_goes_to_the_call_that_asked_for_it(
    make: Make, config: Configuration, gate: Gate
) -> None:
    n = config.num_envs
    expected = lock_step(make(Walk), 3)
    envs = make(Gated, env_kwargs=last_env(config, gate=str(gate), phase="step"), reply_timeout_s=SHORT_S)
    envs.reset(seed=7)
    with pytest.raises(mv.ReplyTimeout):
        envs.step(actions(range(n), 0))
    with pytest.raises(mv.RequestPending):
        envs.step(actions(range(n), 1))
    let_go(gate)
    assert_same(list(envs.receive().rewards), [expected[i][0][1] for i in range(n)])
    for k in (1, 2):
        assert_same(list(envs.step(actions(range(n), k))[1]), [expected[i][k][1] for i in range(n)])


@with_workers
def test_a_late_reply_is_forgotten_by_a_reset(make: Make, config: Configuration, gate: Gate) -> None:
    expected = lock_step(make(Walk), 3, seed=20)
    envs = make(Gated, env_kwargs=last_env(config, gate=str(gate), phase="step"), reply_timeout_s=SHORT_S)
    envs.reset(seed=7)
    with pytest.raises(mv.ReplyTimeout):
        envs.step(actions(range(config.num_envs), 0))
    let_go(gate)
    assert_same(lock_step(envs, 3, seed=20), expected)


@with_workers
def test_a_reset_that_hangs_has_its_own_deadline(make: Make, config: Configuration, gate: Gate) -> None:
    kwargs = last_env(config, gate=str(gate), phase="reset")
    envs = make(Gated, env_kwargs=kwargs, reply_timeout_s=60, reset_timeout_s=SHORT_S)
    with pytest.raises(mv.ReplyTimeout, match="reset"):
        envs.reset(seed=7)
    with pytest.raises(mv.RequestPending):
        envs.step(actions(range(config.num_envs), 0))
    let_go(gate)
    envs.reset(seed=7)


@with_processes
def test_a_hang_in_c_that_holds_the_gil_shows_its_stack_too(make: Make, config: Configuration) -> None:
    envs = make(
        Fault,
        env_kwargs=last_env(config, what="hold_the_gil"),
        reply_timeout_s=SHORT_S,
        close_timeout_s=0.2,
    )
    envs.reset(seed=7)
    with pytest.raises(mv.ReplyTimeout) as caught:
        envs.step(actions(range(config.num_envs), 0))
    assert "_do_hold_the_gil" in caught.value.stack
    envs.close()  # bounded: killed from outside


@with_processes
def test_a_stopped_worker_is_called_stopped_and_close_is_bounded(make: Make, config: Configuration) -> None:
    envs = make(Walk, reply_timeout_s=SHORT_S, close_timeout_s=0.2)
    envs.reset(seed=7)
    os.kill(envs.worker_pids[-1], signal.SIGSTOP)
    with pytest.raises(mv.ReplyTimeout, match="SIGSTOP"):
        envs.step(actions(range(config.num_envs), 0))
    envs.close()


@with_processes
def test_a_stopped_worker_that_goes_on_has_lost_nothing(make: Make, config: Configuration) -> None:
    n = config.num_envs
    expected = lock_step(make(Walk), 2)
    envs = make(Walk, reply_timeout_s=SHORT_S)
    envs.reset(seed=7)
    os.kill(envs.worker_pids[-1], signal.SIGSTOP)
    with pytest.raises(mv.ReplyTimeout):
        envs.step(actions(range(n), 0))
    os.kill(envs.worker_pids[-1], signal.SIGCONT)
    assert_same(list(envs.receive().rewards), [expected[i][0][1] for i in range(n)])


@pytest.mark.parametrize("name", ["reply_timeout_s", "reset_timeout_s", "close_timeout_s"])
def test_a_timeout_must_be_more_than_nothing(name: str) -> None:
    with pytest.raises(mv.InvalidRequest, match=name):
        mv.make_vec("CartPole-v1", 2, "serial", **{name: 0})

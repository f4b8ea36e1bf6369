"""Ctrl-C during a call: the request stays pending, and no later call receives its answer."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

import multiverse as mv
from multiverse.ipc.waiting import WaitSet
from tests.envs import Walk
from tests.equality import assert_same
from tests.fault_envs import Fault, Gate, Gated
from tests.vector.configurations import FORKSERVER, HYBRID, SERIAL, THREAD, UNEVEN, Configuration
from tests.vector.conftest import Make
from tests.vector.runs import actions, lock_step

with_workers = pytest.mark.parametrize("config", [THREAD, FORKSERVER, HYBRID, UNEVEN], ids=str)


def gated(config: Configuration, gate: Gate, phase: str, at: int = 1) -> list[dict[str, Any]]:
    return [{}] * (config.num_envs - 1) + [{"gate": str(gate), "phase": phase, "at": at}]


def interrupted_at(gate: Gate, call: Callable[[], Any]) -> None:
    """Make the call; press Ctrl-C when its env waits at the gate and the caller sleeps."""
    caller = threading.main_thread().ident or 0

    def press() -> None:
        gate.wait_for_arrival()
        while not sleeps(caller):
            os.sched_yield()
        signal.pthread_kill(caller, signal.SIGINT)

    presser = threading.Thread(target=press)
    presser.start()
    with pytest.raises(KeyboardInterrupt):
        call()
    presser.join()


def sleeps(thread: int) -> bool:
    """Whether a thread is in the wait_set: everything is requested, and nothing is read yet."""
    frame = sys._current_frames().get(thread)
    while frame is not None and frame.f_code is not WaitSet.sleep_until.__code__:
        frame = frame.f_back
    return frame is not None


@pytest.mark.fault("A14")
@with_workers
def test_interrupted_step_can_still_be_received(make: Make, config: Configuration, gate: Gate) -> None:
    n = config.num_envs
    expected = lock_step(make(Walk), 2)
    envs = make(Gated, env_kwargs=gated(config, gate, "step"))
    envs.reset(seed=7)
    interrupted_at(gate, lambda: envs.step(actions(range(n), 0)))
    with pytest.raises(mv.errors.RequestPending):
        envs.step(actions(range(n), 1))
    gate.open()
    batch = envs.receive()
    assert_same(list(batch.rewards), [expected[i][0][1] for i in range(n)])
    _, rewards, *_ = envs.step(actions(range(n), 1))
    assert_same(list(rewards), [expected[i][1][1] for i in range(n)])


@with_workers
def test_interrupted_receive_can_be_repeated(make: Make, config: Configuration, gate: Gate) -> None:
    n = config.num_envs
    expected = lock_step(make(Walk), 1)
    envs = make(Gated, env_kwargs=gated(config, gate, "step"))
    envs.reset(seed=7)
    envs.send(actions(range(n), 0))
    interrupted_at(gate, envs.receive)
    gate.open()
    assert_same(list(envs.receive().rewards), [expected[i][0][1] for i in range(n)])


@with_workers
@pytest.mark.parametrize("phase", ["method", "reset"])
def test_answer_to_an_interrupted_call_is_given_to_no_later_call(
    make: Make, config: Configuration, gate: Gate, phase: str
) -> None:
    n = config.num_envs
    expected = lock_step(make(Walk), 3, seed=20)
    envs = make(Gated, env_kwargs=gated(config, gate, phase, at=1 if phase == "method" else 2))
    envs.reset(seed=7)
    interrupted_at(gate, {"method": lambda: envs.call("method"), "reset": lambda: envs.reset(seed=9)}[phase])
    with pytest.raises(mv.errors.RequestPending):
        envs.step(actions(range(n), 0))
    with pytest.raises(mv.errors.RequestPending):
        envs.send(actions(range(n), 0))
    with pytest.raises(mv.errors.RequestPending):
        envs.call("add", 5)
    gate.open()
    assert_same(lock_step(envs, 3, seed=20), expected)
    assert envs.call("add", 5) == (8,) * n
    assert envs.reset(seed=20)[1].keys() == {"resets", "_resets"}


@pytest.mark.fault("A14")
@with_workers
def test_large_answer_to_an_abandoned_call_does_not_block_later_calls(
    make: Make, config: Configuration, gate: Gate
) -> None:
    expected = lock_step(make(Walk), 3, seed=20)
    envs = make(Gated, env_kwargs=gated(config, gate, "method"), timeouts=mv.Timeouts(reset_s=10.0))
    envs.reset(seed=7)
    interrupted_at(gate, lambda: envs.call("large"))
    gate.open()
    assert_same(lock_step(envs, 3, seed=20), expected)
    assert [len(one) for one in envs.call("large")] == [1 << 20] * config.num_envs


@pytest.mark.fault("A14")
@with_workers
def test_interrupted_vector_env_can_be_closed_at_once(make: Make, config: Configuration, gate: Gate) -> None:
    envs = make(Gated, env_kwargs=gated(config, gate, "step"))
    envs.reset(seed=7)
    interrupted_at(gate, lambda: envs.step(actions(range(config.num_envs), 0)))
    if not config.has_processes:
        gate.open()  # a thread cannot be ended from outside
    envs.close(timeout_s=0.3 if config.has_processes else 5.0)


@pytest.mark.parametrize("config", [SERIAL, HYBRID], ids=str)
def test_own_envs_of_the_caller_interrupted_half_way_must_be_reset(make: Make, config: Configuration) -> None:
    n = config.num_envs
    expected = lock_step(make(Walk), 3, seed=20)
    envs = make(Fault, env_kwargs=[{"what": "interrupt"} if i == 1 else {} for i in range(n)])
    envs.reset(seed=7)
    with pytest.raises(KeyboardInterrupt):
        envs.step(actions(range(n), 0))
    for call in (lambda: envs.step(actions(range(n), 0)), envs.receive):
        with pytest.raises(mv.errors.RequestPending):
            call()
    assert_same(lock_step(envs, 3, seed=20), expected)

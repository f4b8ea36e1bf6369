"""Rows A6, F2: late replies are counted and reach no other call; every step sent is used or discarded."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

import multiverse as mv
from tests.envs import Walk
from tests.equality import assert_same
from tests.fault_envs import Fault, Gate, Gated
from tests.vector.configurations import FORK, FORKSERVER, HYBRID, SERIAL, SPAWN, THREAD, Configuration
from tests.vector.conftest import Make
from tests.vector.runs import actions, lock_step

SHORT_S = 0.5
everywhere = pytest.mark.parametrize("config", [SERIAL, THREAD, FORKSERVER, FORK, SPAWN, HYBRID], ids=str)
with_any_worker = pytest.mark.parametrize("config", [THREAD, FORKSERVER, FORK, SPAWN, HYBRID], ids=str)
with_workers = pytest.mark.parametrize("config", [THREAD, FORKSERVER, HYBRID], ids=str)


def late(make: Make, config: Configuration, gate: Gate, **options: Any) -> Any:
    """A step whose last worker misses its deadline."""
    kwargs = [{}] * (config.num_envs - 1) + [{"gate": str(gate)}]
    envs = make(Gated, env_kwargs=kwargs, timeouts=mv.Timeouts(reply_s=SHORT_S), **options)
    envs.reset(seed=7)
    with pytest.raises(mv.errors.ReplyTimeout):
        envs.step(actions(range(config.num_envs), 0))
    return envs


def let_go(gate: Gate) -> None:
    gate.wait_for_arrival()
    gate.open()


def assert_balanced(failures: mv.Failures, under_way: int = 0) -> None:
    assert failures.steps_sent == failures.steps_used + failures.steps_discarded + under_way


@pytest.mark.fault("A6", "F2")
@with_any_worker
def test_received_late_reply_is_counted_and_its_steps_are_used(make: Make, config: Configuration, gate: Gate) -> None:
    n = config.num_envs
    expected = lock_step(make(Walk), 2)
    envs = late(make, config, gate)
    found = envs.failures
    assert (found.timeouts, found.late_replies, found.steps_sent, found.steps_used) == (1, 0, n, 0)
    with pytest.raises(mv.errors.RequestPending):
        envs.step(actions(range(n), 1))
    let_go(gate)
    assert_same(list(envs.receive().rewards), [expected[i][0][1] for i in range(n)])
    found = envs.failures
    assert (found.timeouts, found.late_replies, found.steps_used, found.steps_discarded) == (1, 1, n, 0)
    assert_same(list(envs.step(actions(range(n), 1))[1]), [expected[i][1][1] for i in range(n)])
    assert envs.failures.late_replies == 1
    assert_balanced(envs.failures)


@pytest.mark.fault("A6", "F2")
@with_workers
def test_late_reply_discarded_by_a_reset_is_counted_with_its_steps(
    make: Make, config: Configuration, gate: Gate
) -> None:
    n = config.num_envs
    expected = lock_step(make(Walk), 3, seed=20)
    envs = late(make, config, gate)
    let_go(gate)
    assert_same(lock_step(envs, 3, seed=20), expected)
    found = envs.failures
    assert (found.late_replies, found.steps_discarded, found.steps_used) == (1, n, 3 * n)
    assert_balanced(found)


@pytest.mark.fault("A6")
@with_workers
def test_late_reply_to_a_call_is_given_to_no_other_call(make: Make, config: Configuration, gate: Gate) -> None:
    last = config.num_envs - 1
    envs = make(
        Gated, env_kwargs=[{}] * last + [{"gate": str(gate), "phase": "method"}], timeouts=mv.Timeouts(reply_s=SHORT_S)
    )
    envs.reset(seed=7)
    with pytest.raises(mv.errors.ReplyTimeout):
        envs.call("method")
    with pytest.raises(mv.errors.RequestPending):
        envs.call("add", 5)
    let_go(gate)
    envs.reset(seed=7)
    assert envs.call("add", 5) == (5,) * config.num_envs
    assert envs.failures.late_replies == 1


@pytest.mark.fault("A6", "A3")
@pytest.mark.parametrize("config", [FORKSERVER, FORK, HYBRID], ids=str)
def test_late_reply_of_a_replaced_worker_is_never_delivered(make: Make, config: Configuration) -> None:
    """A worker that was only stopped would answer later; it is killed, and none of its results is delivered."""
    n, lost = config.num_envs, list(config.last_range)
    envs = make(Walk, on_failure="restart", timeouts=mv.Timeouts(reply_s=SHORT_S))
    before, _ = envs.reset(seed=7)
    pid = envs.worker_pids[-1]
    os.kill(pid, signal.SIGSTOP)
    observations, _, _, truncated, _ = envs.step(actions(range(n), 0))
    assert truncated[lost].all()
    assert_same(observations[lost], before[lost])
    found = envs.failures
    assert (found.timeouts, found.late_replies, found.worker_restarts) == (1, 0, 1)
    assert (found.steps_used, found.steps_discarded) == (n - len(lost), len(lost))
    assert pid not in envs.worker_pids
    assert_balanced(found)


@pytest.mark.fault("F2")
@everywhere
def test_steps_sent_equal_used_plus_discarded_after_every_kind_of_event(make: Make, config: Configuration) -> None:
    n = config.num_envs
    fails = {"what": "raise", "at": 6}
    envs = make(Fault, env_kwargs=[{}] * (n - 1) + [fails], on_failure="restart", autoreset="same_step")
    envs.reset(seed=7)
    envs.step(actions(range(n), 0))
    assert_balanced(envs.failures)
    envs.send(actions(range(n), 1))
    assert_balanced(envs.failures, under_way=n)
    envs.receive()
    envs.step(actions([0], 2), env_ids=[0])
    assert_balanced(envs.failures)
    with pytest.raises(mv.errors.InvalidActions):
        envs.step(actions(range(n - 1), 0))
    assert envs.failures.steps_sent == 2 * n + 1  # refused is not sent
    envs.send(actions(range(n), 2))
    envs.reset(seed=8)  # forgets them
    assert envs.failures.steps_discarded == n
    assert_balanced(envs.failures)
    for k in range(4):
        envs.step(actions(range(n), k))
    found = envs.failures
    assert (found.env_restarts, found.steps_discarded) == (1, n + 1)
    assert_balanced(found)
    if config.has_processes:
        os.kill(envs.worker_pids[-1], signal.SIGKILL)
        envs.step(actions(range(n), 0))
        assert envs.failures.steps_discarded == n + 1 + len(config.last_range)
        assert_balanced(envs.failures)


@pytest.mark.fault("F2")
@everywhere
@pytest.mark.parametrize("how", ["step", "send"])
def test_failed_step_is_counted_as_sent_and_discarded(make: Make, config: Configuration, how: str) -> None:
    n = config.num_envs
    envs = make(Fault, env_kwargs=[{}] * (n - 1) + [{"what": "raise", "at": 2}])
    envs.reset(seed=7)
    envs.step(actions(range(n), 0))
    with pytest.raises(mv.errors.EnvFailed):
        if how == "step":
            envs.step(actions(range(n), 1))
        else:
            envs.send(actions(range(n), 1))
            envs.receive()
    assert (envs.failures.steps_sent, envs.failures.steps_used) == (2 * n, n)
    assert_balanced(envs.failures)


@pytest.mark.fault("F2")
@with_workers
def test_slow_worker_stays_pending_and_its_steps_are_used(make: Make, config: Configuration, gate: Gate) -> None:
    """The quick ones are received first; the slow one's steps arrive later, complete, and are counted as used."""
    n, slow = config.num_envs, config.last_range
    expected = lock_step(make(Walk), 1)
    envs = make(Gated, env_kwargs=[{}] * (n - 1) + [{"gate": str(gate)}])
    envs.reset(seed=7)
    envs.send(actions(range(n), 0))
    quick = envs.receive(min_envs=1)
    assert not set(quick.env_ids.tolist()) & set(slow)
    assert_balanced(envs.failures, under_way=n - len(quick.env_ids))
    let_go(gate)
    rest = {int(i): r for i, r in zip(quick.env_ids, quick.rewards)}
    while len(rest) < n:
        batch = envs.receive()
        rest |= {int(i): r for i, r in zip(batch.env_ids, batch.rewards)}
    assert_same([rest[i] for i in range(n)], [expected[i][0][1] for i in range(n)])
    assert (envs.failures.steps_used, envs.failures.steps_discarded) == (n, 0)
    assert_balanced(envs.failures)

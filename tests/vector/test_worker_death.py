"""A worker that dies is named, with the signal that killed it; nothing hangs, and only close() remains possible."""

from __future__ import annotations

import os
import signal
from typing import Any

import numpy as np
import pytest

import multiverse as mv
from tests.envs import AnySpace, Walk
from tests.fault_envs import Fault
from tests.space_catalogue import catalogue
from tests.vector.configurations import WITH_PROCESSES, Configuration
from tests.vector.conftest import Make
from tests.vector.runs import actions

pytestmark = pytest.mark.parametrize("config", WITH_PROCESSES, ids=str)

DEATHS = {"kill": "killed by SIGKILL", "exit": "exited with code 3"}


def dying(config: Configuration, **fault: Any) -> list[dict[str, Any]]:
    """Kwargs with which the last env, which a worker runs, ends its process."""
    return [{}] * (config.num_envs - 1) + [fault]


def last_worker(config: Configuration) -> int:
    return (config.workers or 0) - 1


def worker_pid(envs: Any) -> int:
    """Return the process id of the last worker."""
    return int(envs.call("process_id")[-1])


@pytest.mark.fault("A1")
@pytest.mark.parametrize("what", sorted(DEATHS))
@pytest.mark.parametrize("phase", ["step", "reset", "method"])
def test_death_names_the_worker_its_envs_and_the_cause(
    make: Make, config: Configuration, phase: str, what: str
) -> None:
    envs, ids = make(Fault, env_kwargs=dying(config, what=what, phase=phase, at=2)), range(config.num_envs)
    calls = {
        "reset": lambda: envs.reset(seed=0),
        "method": lambda: envs.call("method"),
        "step": lambda: envs.step(actions(ids, 0)),
    }
    for call in calls.values():
        call()
    with pytest.raises(mv.errors.WorkerDied) as caught:
        calls[phase]()
    error = caught.value
    assert error.worker == last_worker(config)
    assert error.env_ids == config.last_range
    assert DEATHS[what] in error.cause
    assert DEATHS[what] in str(error)
    assert {"step": "step", "reset": "reset", "method": "call"}[phase] in error.cause


@pytest.mark.fault("A1")
def test_calls_after_a_death_other_than_close_are_refused(make: Make, config: Configuration) -> None:
    envs = make(Fault, env_kwargs=dying(config, what="kill"))
    envs.reset(seed=0)
    batch = actions(range(config.num_envs), 0)
    with pytest.raises(mv.errors.WorkerDied):
        envs.step(batch)
    calls = [
        lambda: envs.step(batch),
        lambda: envs.step(batch[:1], env_ids=[0]),
        lambda: envs.reset(),
        lambda: envs.reset(env_ids=[0]),
        lambda: envs.send(batch),
        lambda: envs.receive(),
        lambda: envs.call("add", 1, env_ids=[0]),
        lambda: envs.set_attr("bonus", 1.0),
    ]
    for call in calls:
        with pytest.raises(mv.errors.WorkerDied, match="close"):
            call()
    envs.close()
    with pytest.raises(mv.errors.ClosedError):
        envs.reset()


@pytest.mark.fault("A1")
@pytest.mark.parametrize("call", ["step", "call", "reset"])
def test_worker_killed_while_idle_is_noticed_at_the_next_call(make: Make, config: Configuration, call: str) -> None:
    envs = make(Walk)
    envs.reset(seed=0)
    os.kill(worker_pid(envs), signal.SIGKILL)
    batch = actions(range(config.num_envs), 0)
    with pytest.raises(mv.errors.WorkerDied, match="SIGKILL"):
        {"step": lambda: envs.step(batch), "call": lambda: envs.call("add", 1), "reset": envs.reset}[call]()


@pytest.mark.fault("A1")
def test_death_before_receive_is_raised_by_receive(make: Make, config: Configuration) -> None:
    envs = make(Fault, env_kwargs=dying(config, what="kill"))
    envs.reset(seed=0)
    envs.send(actions(range(config.num_envs), 0))
    with pytest.raises(mv.errors.WorkerDied) as caught:
        while True:
            envs.receive(min_envs=1)
    assert caught.value.env_ids == config.last_range


@pytest.mark.fault("A1")
def test_death_while_objects_are_sent_is_reported(make: Make, config: Configuration) -> None:
    class Talks(AnySpace):
        def process_id(self) -> int:
            return os.getpid()

    envs = make(lambda: Talks(catalogue()["dict_mixed"], catalogue()["dict_mixed"]))
    envs.reset(seed=0)
    envs.action_space.seed(0)
    os.kill(worker_pid(envs), signal.SIGKILL)
    with pytest.raises(mv.errors.WorkerDied, match="SIGKILL"):
        for _ in range(3):
            envs.step(envs.action_space.sample())


@pytest.mark.fault("A8")
@pytest.mark.parametrize("what", sorted(DEATHS))
def test_death_in_a_constructor_leaves_nothing_half_built(config: Configuration, what: str) -> None:
    with pytest.raises(mv.errors.WorkerDied, match=DEATHS[what]) as caught:
        config.make(Fault, env_kwargs=dying(config, what=what, phase="constructor"))
    assert caught.value.worker == last_worker(config)


@pytest.mark.fault("A3")
def test_stopped_worker_does_not_block_close(config: Configuration) -> None:
    envs = config.make(Walk)
    envs.reset(seed=0)
    os.kill(worker_pid(envs), signal.SIGSTOP)
    envs.close(timeout_s=0.2)


@pytest.mark.fault("A3")
def test_worker_that_hangs_in_a_step_does_not_block_close(config: Configuration) -> None:
    class Hangs(Walk):
        def step(self, action: Any) -> Any:
            signal.pause()

    envs = config.make([*[Walk] * (config.num_envs - 1), Hangs])
    envs.reset(seed=0)
    last = list(config.last_range)
    envs.send(actions(last, 0), last)
    with pytest.raises(mv.errors.ReceiveTimeout):
        envs.receive(timeout_s=0.01)
    envs.close(timeout_s=0.2)


@pytest.mark.fault("A1")
def test_ranges_received_before_a_death_are_unaffected(make: Make, config: Configuration) -> None:
    """Whole ranges that were received before a death equal those without it."""
    envs = make(Fault, env_kwargs=dying(config, what="kill"))
    envs.reset(seed=7)
    others = list(range(config.last_range.start))
    envs.send(actions(others, 0), others)
    batch = envs.receive()
    with mv.make_vec(Walk, config.num_envs, "serial") as reference:
        reference.reset(seed=7)
        _, rewards, *_ = reference.step(actions(range(config.num_envs), 0))
        np.testing.assert_array_equal(batch.rewards, rewards[others])

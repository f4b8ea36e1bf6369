"""Rows A11 and A12: a killed program leaves neither its workers nor processes that their envs have started."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

import multiverse as mv
from multiverse.ipc import platform
from tests.fault_envs import Fault
from tests.faults.programs import Victim
from tests.processes import still_alive
from tests.vector.configurations import FORK, FORKSERVER, HYBRID, SPAWN, Configuration
from tests.vector.conftest import Make

PROGRAM = """
import signal
import numpy as np
import multiverse as mv
from multiverse.executors.launch import fork_server
from tests.fault_envs import Fault

executor, method, what = sys.argv[1:4]
workers = mv.WorkerOptions(count=1, start_method=method)
envs = mv.make_vec(Fault, 2, executor, workers=workers, env_kwargs=[{}, {"what": what}])
envs.reset(seed=0)
envs.send(np.zeros(2, np.int64))
if what == "fork_child":
    envs.receive()
say("pids", *children())
say("server", fork_server.fork_server().pid)
signal.pause()
"""


@pytest.mark.fault("A11")
@pytest.mark.parametrize(
    ("executor", "method"),
    [("process", "forkserver"), ("process", "fork"), ("process", "spawn"), ("hybrid", "forkserver")],
)
def test_worker_asleep_in_a_step_dies_with_its_killed_program(executor: str, method: str) -> None:
    """Idle workers and ones that hold the GIL: see `tests/vector/test_orphans.py`."""
    with Victim(PROGRAM, executor, method, "sleep") as victim:
        victim.lines_until("pids", "stuck")
        assert victim.pids
        victim.program.kill()
        assert victim.end() == -signal.SIGKILL
        assert victim.survivors() == []


@pytest.mark.fault("A11")
@pytest.mark.skipif(platform.fallback_forced(), reason="there it is the kernel that sees to it")
@pytest.mark.parametrize("method", ["forkserver", "fork", "spawn"])
def test_worker_dies_with_its_program_if_the_fork_server_is_killed_first(method: str) -> None:
    """As a machine out of memory may do: no process is left that could end the workers."""
    with Victim(PROGRAM, "process", method, "hold_the_gil") as victim:
        (server,) = victim.lines_until("pids", "stuck", "server")["server"]
        for pid in (int(server), victim.program.pid):
            os.kill(pid, signal.SIGKILL)
        assert victim.end() == -signal.SIGKILL
        assert victim.survivors() == []


@pytest.mark.fault("A12")
@pytest.mark.parametrize("method", ["forkserver", "fork", "spawn"])
def test_processes_started_by_an_env_end_with_a_killed_program(method: str) -> None:
    with Victim(PROGRAM, "process", method, "fork_child") as victim:
        victim.lines_until("pids")
        assert len(victim.pids) == 3  # the fork server, the worker, the env's own
        victim.program.kill()
        victim.end()
        assert victim.survivors() == []


@pytest.mark.fault("A12")
@pytest.mark.parametrize("config", [FORKSERVER, FORK, SPAWN, HYBRID], ids=str)
def test_processes_started_by_an_env_end_with_close(make: Make, config: Configuration) -> None:
    last = config.num_envs - 1
    envs = make(Fault, env_kwargs=[{}] * last + [{"what": "fork_child", "phase": "constructor"}])
    (child,) = envs.call("child_id", env_ids=[last])
    assert still_alive([child], 0) == [child]
    envs.close()
    assert still_alive([child]) == []


@pytest.mark.fault("A12")
@pytest.mark.parametrize("config", [FORKSERVER], ids=str)
@pytest.mark.parametrize("on_failure", ["raise", "restart"])
def test_processes_started_by_an_env_end_with_a_worker_killed_for_hanging(
    make: Make, config: Configuration, on_failure: Any
) -> None:
    last = config.num_envs - 1
    envs = make(
        Fault,
        env_kwargs=[{}] * last + [{"what": "fork_child", "phase": "reset"}],
        on_failure=on_failure,
        timeouts=mv.Timeouts(reply_s=0.3, close_s=0.2),
    )
    envs.reset(seed=0)
    (child,) = envs.call("child_id", env_ids=[last])
    os.kill(envs.worker_pids[-1], signal.SIGSTOP)
    if on_failure == "restart":
        envs.step(envs.action_space.sample())
    else:
        with pytest.raises(mv.errors.ReplyTimeout):
            envs.step(envs.action_space.sample())
        envs.close()
    assert still_alive([child]) == []

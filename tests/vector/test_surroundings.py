"""The surroundings of workers: signals, standard input, threads that start them, and forks of the program."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import multiverse as mv
from multiverse.executors.launch import fork_server
from tests.envs import Walk
from tests.equality import assert_same
from tests.processes import still_alive
from tests.vector.configurations import WITH_PROCESSES, Configuration
from tests.vector.conftest import Make
from tests.vector.runs import lock_step

ROOT = Path(__file__).parents[2]
with_processes = pytest.mark.parametrize("config", WITH_PROCESSES, ids=str)


@pytest.mark.fault("A14")
@with_processes
def test_workers_ignore_sigint_and_sigusr1(make: Make, config: Configuration) -> None:
    """SIGUSR1 too, which a scheduler may send to all processes of a job."""
    envs = make(Walk)
    envs.reset(seed=0)
    server = fork_server.running()
    for pid in {*envs.call("process_id"), *([server.pid] if server is not None else [])} - {os.getpid()}:
        os.kill(pid, signal.SIGINT)
        os.kill(pid, signal.SIGUSR1)
    envs.step(np.zeros(config.num_envs, np.int64))


@with_processes
def test_env_that_reads_standard_input_gets_end_of_file(make: Make, config: Configuration) -> None:
    class Asks(Walk):
        def ask(self) -> str:
            return os.read(0, 10).decode()

    envs = make(Asks)
    assert envs.call("ask", env_ids=list(config.last_range)) == ("",) * len(config.last_range)


def test_envs_made_in_a_thread_outlive_it(config: Configuration) -> None:
    made: list[Any] = []
    thread = threading.Thread(target=lambda: made.append(config.make(Walk)))
    thread.start()
    thread.join()
    with made.pop() as envs, mv.make_vec(Walk, config.num_envs, "serial") as reference:
        assert_same(lock_step(envs, 4), lock_step(reference, 4))


def test_two_vector_envs_are_independent(make: Make, config: Configuration) -> None:
    one, other = make(Walk), make(Walk)
    one.reset(seed=1)
    other.reset(seed=1)
    one.send(np.zeros(config.num_envs, np.int64))
    expected = other.step(np.zeros(config.num_envs, np.int64))
    other.close()
    assert_same(one.receive().rewards, expected[1])


@pytest.mark.parametrize("method", ["forkserver", "fork", "spawn"])
def test_forked_copy_of_the_program_does_not_affect_the_workers(method: str) -> None:
    program = f"""
import os, sys
import numpy as np
import multiverse as mv
from tests.envs import Walk

envs = mv.make_vec(Walk, 2, "process", workers=mv.WorkerOptions(count=2, start_method={method!r}))
envs.reset(seed=0)
for ending in ("close", "del", "exit"):
    child = os.fork()
    if child == 0:
        if ending == "close":
            envs.close()
        if ending == "del":
            del envs
        sys.exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    envs.step(np.zeros(2, np.int64))
print("still working")
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("still working\n", "")


@pytest.mark.fault("A12")
@pytest.mark.parametrize("method", ["forkserver", "fork", "spawn"])
def test_processes_started_by_an_env_end_with_its_worker(method: Any) -> None:
    class StartsAProcess(Walk):
        def __init__(self) -> None:
            super().__init__()
            self.child = subprocess.Popen(["sleep", "600"])

        def child_id(self) -> int:
            return self.child.pid

    envs = mv.make_vec(StartsAProcess, 2, "process", workers=mv.WorkerOptions(count=2, start_method=method))
    children, workers = envs.call("child_id"), envs.call("process_id")
    os.kill(workers[0], signal.SIGKILL)
    with pytest.raises(mv.errors.WorkerDied):
        envs.reset(seed=0)
    envs.close()
    assert still_alive(children) == []

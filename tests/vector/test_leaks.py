"""No process, descriptor, thread, mapping or output is left, however a vector env or its program ends."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

import multiverse as mv
from multiverse.executors.launch import fork_server
from tests.envs import AnySpace, Walk
from tests.fault_envs import Fault
from tests.processes import still_alive
from tests.vector.configurations import ALL, UNEVEN, Configuration, over
from tests.vector.conftest import worker_processes

ROOT = Path(__file__).parents[2]
config = over([c for c in ALL if c is not UNEVEN])


def descriptors() -> dict[int, str]:
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
        except OSError:  # the descriptor of the listing itself
            pass
    return found


def shared_files(pid: int) -> set[str]:
    """Names under /dev/shm that a process has mapped or open."""
    maps = {line.split(maxsplit=5)[-1] for line in Path(f"/proc/{pid}/maps").read_text().splitlines()}
    return {name for name in maps if name.startswith("/dev/shm")}


@pytest.fixture
def nothing_open(config: Configuration) -> Iterator[None]:
    """After the test this process has the descriptors and threads that it had before."""
    if config.has_processes:
        fork_server.fork_server()  # one per program, and not the subject of this test
    if config.executor == "ray":  # as is the cluster, and what Ray opens for its first actors
        for env in (Walk, large_env, Walk):
            envs = config.make(env)
            envs.reset(seed=0)
            envs.send(np.zeros(envs.num_envs, np.int64))
            envs.close()
    gc.collect()
    before, threads = descriptors(), set(threading.enumerate())
    yield
    gc.collect()
    assert descriptors().keys() == before.keys()
    assert set(threading.enumerate()) == threads
    assert worker_processes() == []


def large_env() -> AnySpace:
    """An env whose observations are larger than a pipe."""
    return AnySpace(spaces.Sequence(spaces.Box(-1, 1, (100_000,), np.float32), stack=True), spaces.Discrete(2))


def use(envs: Any) -> None:
    envs.reset(seed=0)
    for _ in range(6):
        envs.step(np.zeros(envs.num_envs, np.int64))


@pytest.mark.fault("A13")
@pytest.mark.usefixtures("nothing_open")
def test_close_leaves_nothing_behind(config: Configuration) -> None:
    for _ in range(2):
        envs = config.make(Walk)
        use(envs)
        envs.close()


@pytest.mark.fault("A13")
@pytest.mark.usefixtures("nothing_open")
def test_deleted_vector_env_leaves_nothing_behind(config: Configuration) -> None:
    envs = config.make(Walk)
    use(envs)
    envs.send(np.zeros(envs.num_envs, np.int64))
    envs.receive()
    del envs


@pytest.mark.fault("A13")
@pytest.mark.usefixtures("nothing_open")
def test_close_during_a_step_leaves_nothing_behind(config: Configuration) -> None:
    envs = config.make(Walk)
    use(envs)
    envs.send(np.zeros(envs.num_envs, np.int64))
    envs.close()


@pytest.mark.fault("A13")
@pytest.mark.usefixtures("nothing_open")
def test_close_with_a_reply_that_fills_the_pipe_leaves_nothing_behind(config: Configuration) -> None:
    envs = config.make(large_env)
    envs.reset(seed=0)
    envs.send(np.zeros(envs.num_envs, np.int64))
    envs.close()


@pytest.mark.fault("A13")
@pytest.mark.usefixtures("nothing_open")
def test_exception_that_holds_an_open_vector_env_leaves_nothing_behind(config: Configuration) -> None:
    def fails() -> None:
        envs = config.make(Walk)
        use(envs)
        raise LookupError("while an env is open")

    try:
        fails()
    except LookupError as error:
        assert worker_processes() != [] or not config.has_processes
        del error


@pytest.mark.fault("A8")
@pytest.mark.usefixtures("nothing_open")
def test_failed_start_leaves_nothing_behind(config: Configuration) -> None:
    last = config.num_envs - 1
    faults = [{"what": "raise", "phase": "constructor"} if i == last else {} for i in range(config.num_envs)]
    with pytest.raises(mv.errors.EnvFailed):
        config.make(Fault, env_kwargs=faults)
    with pytest.raises(mv.errors.SpacesDiffer):
        config.make([lambda d=d: Walk(dtype=d) for d in [np.float64] * last + [np.float32]])


@pytest.mark.fault("A1")
@pytest.mark.usefixtures("nothing_open")
def test_dead_worker_leaves_nothing_behind(config: Configuration) -> None:
    if not config.has_processes:
        pytest.skip("no worker process")
    envs = config.make(Fault, env_kwargs=[{}] * (config.num_envs - 1) + [{"what": "kill"}])
    envs.reset(seed=0)
    with pytest.raises(mv.errors.WorkerDied):
        envs.step(np.zeros(config.num_envs, np.int64))
    envs.close()


@pytest.mark.fault("C2")
def test_dev_shm_is_never_used(config: Configuration) -> None:
    before = shared_files(os.getpid())
    with config.make(Walk) as envs:
        use(envs)
        for pid in {os.getpid(), *envs.call("process_id")}:
            assert shared_files(pid) <= before


def test_stopped_fork_server_is_started_again() -> None:
    with mv.make_vec(Walk, 2, "process", workers=1) as envs:
        use(envs)
    fork_server.stop_fork_server()
    assert worker_processes() == []
    with mv.make_vec(Walk, 2, "process", workers=1) as envs:
        use(envs)


OPEN_EVERYTHING = """
import os, sys
import numpy as np
import psutil
import multiverse as mv
from tests.envs import AnySpace, Walk

opened = []
for how in [("serial", {}), ("thread", {"workers": 2}), ("hybrid", {"workers": 1}),
            *(("process", {"workers": mv.WorkerOptions(count=2, start_method=m)})
              for m in ("forkserver", "fork", "spawn"))]:
    envs = mv.make_vec(Walk, 4, how[0], **how[1])
    envs.reset(seed=0)
    envs.step(np.zeros(4, np.int64))
    opened.append(envs)
opened[1].send(np.zeros(4, np.int64))
opened[3].send(np.zeros(4, np.int64))
print(*(p.pid for p in psutil.Process().children(recursive=True)), flush=True)
"""


@pytest.mark.fault("A13", "C2")
@pytest.mark.parametrize(
    ("ending", "code"),
    [
        ("", 0),
        ("sys.exit(4)", 4),
        ("del opened", 0),
    ],
)
def test_program_that_ends_without_closing_leaves_nothing_and_prints_nothing(ending: str, code: int) -> None:
    done = run_script(OPEN_EVERYTHING + ending)
    assert done.stderr == ""
    assert done.returncode == code
    pids = [int(pid) for pid in done.stdout.split()]
    assert len(pids) >= 8
    assert still_alive(pids) == []


@pytest.mark.fault("A13")
def test_program_that_ends_with_an_exception_leaves_nothing_and_prints_only_it() -> None:
    done = run_script(OPEN_EVERYTHING + "raise LookupError('mine')")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "LookupError: mine"
    assert done.stderr.count("Traceback") == 1
    assert still_alive(int(pid) for pid in done.stdout.split()) == []


def run_script(text: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(text)], cwd=ROOT, capture_output=True, text=True, timeout=60
    )

"""Rows A16, A17, C1, C2, E4: impossible requests are refused before the start; failed starts leave no traces."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import psutil
import pytest
from gymnasium import spaces

import multiverse as mv
from multiverse.executors import machine
from multiverse.executors.launch import fork_server
from tests.envs import AnySpace, Walk
from tests.faults.programs import quiet_program
from tests.faults.value_envs import SHARED_LOCK, TakesTheLock
from tests.vector.configurations import FORK, FORKSERVER, HYBRID, SERIAL, SPAWN, THREAD, Configuration
from tests.vector.conftest import worker_processes
from tests.vector.runs import actions

EVERYWHERE = [SERIAL, THREAD, FORKSERVER, FORK, SPAWN, HYBRID]
with_processes = pytest.mark.parametrize("config", [FORKSERVER, FORK, SPAWN, HYBRID], ids=str)


# -- A16: forks that cannot go well ----------------------------------------------------------------------------
@pytest.fixture
def a_thread_holds_the_lock() -> Iterator[None]:
    held, let_go = threading.Event(), threading.Event()

    def hold() -> None:
        with SHARED_LOCK:
            held.set()
            let_go.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    yield
    let_go.set()
    thread.join()


@pytest.mark.fault("A16")
@pytest.mark.parametrize("method", [None, "forkserver", "spawn"])
@pytest.mark.usefixtures("a_thread_holds_the_lock")
def test_workers_do_not_inherit_locks_of_the_program(method: Any) -> None:
    """The default is not fork: a copy of this process would wait for that lock without end."""
    with mv.make_vec(
        TakesTheLock,
        2,
        "process",
        workers=mv.WorkerOptions(count=2, start_method=method),
        timeouts=mv.Timeouts(reply_s=20),
    ) as envs:
        assert envs.plan.start_method == (method or "forkserver")
        envs.reset(seed=0)
        envs.step(np.zeros(2, np.int64))


@pytest.mark.fault("A16")
def test_workers_can_be_forked_with_other_threads_running() -> None:
    """An explicit fork works while other threads run, as long as they hold no lock that it needs."""
    stop = threading.Event()
    threads = [threading.Thread(target=stop.wait) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        with FORK.make(Walk) as envs, SERIAL.make(Walk) as oracle:
            for one in (envs, oracle):
                one.reset(seed=0)
            for k in range(3):
                batch = actions(range(4), k)
                assert envs.step(batch)[1].tolist() == oracle.step(batch)[1].tolist()
    finally:
        stop.set()
        for thread in threads:
            thread.join()


@pytest.mark.fault("A16")
@pytest.mark.parametrize("executor", ["process", "hybrid"])
def test_refusal_starts_nothing(executor: Any) -> None:
    lock = threading.Lock()
    fork_server.stop_fork_server()
    with pytest.raises(mv.errors.PreflightError, match="cannot be sent to a worker process") as caught:
        mv.make_vec(lambda: Walk() if lock else None, 2, executor, workers=1)
    assert "\n" not in str(caught.value)
    assert psutil.Process().children() == []


# -- A17: limits -----------------------------------------------------------------------------------------------
LIMITED = """
import resource
import numpy as np
import multiverse as mv
from tests.envs import Walk

soft, hard, workers = map(int, sys.argv[2:5])
opened = psutil.Process().num_fds()
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
try:
    options = mv.WorkerOptions(count=workers, start_method=sys.argv[1])
    with mv.make_vec(Walk, workers, "process", workers=options) as envs:
        envs.reset(seed=0)
        envs.step(np.zeros(workers, np.int64))
    say("worked", resource.getrlimit(resource.RLIMIT_NOFILE)[0] > soft)
except mv.errors.PreflightError as error:
    say("refused", opened, len(children()), error)
"""


@pytest.mark.fault("A17")
@pytest.mark.parametrize("method", ["forkserver", "fork", "spawn"])
def test_low_soft_limit_of_open_files_is_raised(method: str) -> None:
    assert quiet_program(LIMITED, method, "30", "4096", "2")[-1] == "worked True"


@pytest.mark.fault("A17")
@pytest.mark.parametrize("method", ["forkserver", "fork", "spawn"])
def test_low_hard_limit_is_refused_with_the_number_needed_and_nothing_is_started(method: str) -> None:
    (line,) = quiet_program(LIMITED, method, "30", "40", "8")
    word, opened, started, *said = line.split()
    assert (word, started) == ("refused", "0")
    numbers = [int(number) for number in re.findall(r"\d+", " ".join(said))]
    workers, needed, for_workers, opened_by_then, to_spare, limit = numbers[:6]
    assert (workers, limit) == (8, 40)
    assert needed == for_workers + opened_by_then + to_spare > limit
    assert opened_by_then >= int(opened)


# -- C1, C2: memory --------------------------------------------------------------------------------------------
@pytest.mark.fault("C1", "A17")
@with_processes
def test_block_larger_than_memory_is_refused_with_both_sizes(
    config: Configuration, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "memory_available", lambda: 1_000_000)
    large = spaces.Box(0, 255, (600, 500, 3), np.uint8)
    with pytest.raises(mv.errors.PreflightError, match=r"needs 3,[67]\d\d,\d\d\d bytes and 1,000,000 are available"):
        config.make(lambda: AnySpace(large, spaces.Discrete(3)))
    assert worker_processes() == []


@pytest.mark.fault("C1")
def test_block_that_the_kernel_refuses_is_an_error_and_no_bus_error() -> None:
    """With a real limit: the bytes are requested at once, and not touched if they are refused."""
    text = """
import resource, signal
import numpy as np
from gymnasium import spaces
import multiverse as mv
from tests.envs import AnySpace

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))
try:
    mv.make_vec(lambda: AnySpace(spaces.Box(0, 255, (600, 500, 3), np.uint8), spaces.Discrete(3)), 4, "process")
    say("worked")
except mv.errors.PreflightError as error:
    say("refused", error)
"""
    (line,) = quiet_program(text)
    assert re.match(r"refused the shared block needs 3,[67]\d\d,\d\d\d bytes", line)


@pytest.mark.fault("C2")
def test_program_leaves_nothing_in_dev_shm_and_prints_no_warning() -> None:
    text = """
import glob, tempfile
import numpy as np
import multiverse as mv
from multiprocessing import resource_tracker
from pathlib import Path
from tests.envs import Walk

def names():
    return set(glob.glob("/dev/shm/*")) | set(glob.glob(tempfile.gettempdir() + "/multiverse*"))

before = names()
for method in ("forkserver", "fork", "spawn"):
    with mv.make_vec(Walk, 4, "process", workers=mv.WorkerOptions(count=2, start_method=method)) as envs:
        envs.reset(seed=0)
        envs.step(np.zeros(4, np.int64))
        maps = [Path(f"/proc/{pid}/maps").read_text() for pid in (os.getpid(), *envs.worker_pids)]
        mapped = sum("/dev/shm" in text for text in maps)
        say(method, len(names() - before), mapped, resource_tracker._resource_tracker._pid)
"""
    found = quiet_program(text, python=("-X", "dev"))
    assert found == [f"{method} 0 0 None" for method in ("forkserver", "fork", "spawn")]


# -- E4: the network -------------------------------------------------------------------------------------------
@pytest.mark.fault("E4")
@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not show the sockets of others")
@pytest.mark.parametrize("config", EVERYWHERE, ids=str)
def test_no_process_has_an_internet_socket(config: Configuration) -> None:
    server = fork_server.fork_server()
    with config.make(Walk) as envs:
        envs.reset(seed=0)
        envs.step(actions(range(config.num_envs), 0))
        pids = {psutil.Process().pid, server.pid, *envs.worker_pids}
        assert len(pids) == 2 + (config.workers or 0) * config.has_processes
        for pid in pids:
            assert psutil.Process(pid).net_connections(kind="inet") == []

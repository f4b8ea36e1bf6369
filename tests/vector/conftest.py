"""The configuration under test, vector envs that are closed after each test, and a check for leftovers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from multiverse.executors.launch import fork_server
from tests.fault_envs import Gate
from tests.processes import still_alive
from tests.vector.configurations import ALL, Configuration

Make = Callable[..., Any]


@pytest.fixture(params=ALL, ids=str)
def config(request: pytest.FixtureRequest) -> Configuration:
    return request.param


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """No worker process and no thread remains after the test."""
    threads = set(threading.enumerate())
    yield
    processes = worker_processes()
    actors = [process.pid for process in processes if _is_actor(process)]  # Ray ends them a moment later
    assert [process for process in processes if process.pid not in actors] == [] and still_alive(actors) == []
    left = [t.name for t in threading.enumerate() if t not in threads and t.is_alive()]
    assert [name for name in left if not name.startswith(("ray_", "PythonGC"))] == []  # Ray's own


@pytest.fixture
def make(config: Configuration) -> Iterator[Make]:
    """`make_vec` for the configuration under test; the vector envs are closed at the end."""
    made = []

    def make_and_remember(env: Any, num_envs: int | None = None, **options: Any) -> Any:
        envs = config.make(env, num_envs, **options)
        made.append(envs)
        return envs

    yield make_and_remember
    for envs in made:
        envs.close()


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    return Gate(tmp_path / "gate")


def worker_processes() -> list[psutil.Process]:
    """All descendants except the fork server and the Ray cluster, which may stay until the program ends."""
    server = fork_server._server
    found = [p for p in psutil.Process().children(recursive=True) if server is None or p.pid != server.pid]
    return [p for p in found if not _of_the_cluster(p)]


def _is_actor(process: psutil.Process) -> bool:
    try:
        return process.name().startswith("ray::RayActor")
    except psutil.Error:
        return False


def _of_the_cluster(process: psutil.Process) -> bool:
    """Whether a process belongs to Ray, or is an ended actor that Ray has not reaped yet."""
    try:
        if _is_actor(process):
            return process.status() == psutil.STATUS_ZOMBIE
        # In a program of Ray: its folders are in the sys.path that our workers receive.
        programs = [part for part in process.cmdline() if " " not in part]
        return process.name().startswith("ray::") or any("/ray/" in part for part in programs)
    except psutil.Error:
        return True

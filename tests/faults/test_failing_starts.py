"""Row G5: a failed start is one typed error, and does not affect others."""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import multiverse as mv
from multiverse.executors.launch import fork_server, start_methods
from tests.envs import Walk
from tests.faults import spoilt_server
from tests.faults.conftest import LoggedWarnings
from tests.processes import count_descriptors, still_alive
from tests.vector.runs import actions


def make(**options: Any) -> Any:
    return mv.make_vec(Walk, 2, "process", **{"workers": 1, **options})


def assert_steps(envs: Any) -> None:
    envs.step(actions(range(2), 0))


@pytest.fixture
def spoilt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder with whose files a test tells the fork server what to do next."""
    fork_server.stop_fork_server()
    monkeypatch.setenv(spoilt_server.FOLDER, str(tmp_path))
    monkeypatch.setattr(fork_server, "SERVER", spoilt_server.__name__)
    yield tmp_path
    fork_server.stop_fork_server()


@pytest.mark.fault("G5")
@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_failed_fork_is_one_error_and_other_vector_envs_continue(spoilt: Path, method: Any) -> None:
    with make() as others:
        others.reset(seed=0)
        (spoilt / spoilt_server.FAILS).touch()
        with pytest.raises(mv.errors.PreflightError, match=r"worker 0 .*Resource temporarily unavailable.*ulimit -u"):
            make(workers=mv.WorkerOptions(count=1, start_method=method))
        assert_steps(others)
        with make(workers=mv.WorkerOptions(count=1, start_method=method)) as envs:
            envs.reset(seed=0)
            assert_steps(envs)
        assert_steps(others)


@pytest.mark.fault("G5")
def test_one_failed_fork_of_several_ends_the_whole_start(spoilt: Path) -> None:
    (spoilt / spoilt_server.FAILS).touch()
    with pytest.raises(mv.errors.PreflightError, match="worker 0"):
        mv.make_vec(Walk, 4, "process", workers=2)


@pytest.mark.fault("G5", "G3")
def test_failed_fork_in_a_restart_is_retried(spoilt: Path, logged_warnings: LoggedWarnings) -> None:
    with make(on_failure="restart") as envs:
        envs.reset(seed=0)
        os.kill(envs.worker_pids[0], signal.SIGKILL)
        (spoilt / spoilt_server.FAILS).touch()
        *_, infos = envs.step(actions(range(2), 0))
        assert infos["restarted"].all()
    assert any("Resource temporarily unavailable" in line and "restart 2 of" in line for line in logged_warnings())


@pytest.mark.fault("G5")
def test_abandoned_start_does_not_end_the_fork_server(spoilt: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with make() as others:
        others.reset(seed=0)
        server = fork_server.fork_server().pid
        os.mkfifo(spoilt / spoilt_server.WAITS)
        monkeypatch.setattr(start_methods, "START_DEADLINE_S", 0.1)
        with pytest.raises(mv.errors.PreflightError, match=r"within 0\.1 s"):
            make()
        (spoilt / spoilt_server.WAITS).write_bytes(b"")
        monkeypatch.undo()
        assert_steps(others)
        with make() as envs:
            envs.reset(seed=0)
        assert fork_server.fork_server().pid == server


@pytest.mark.fault("G5", "A17")
def test_fork_server_without_descriptors_refuses_one_start_and_continues() -> None:
    with make() as others:
        others.reset(seed=0)
        server = psutil.Process(fork_server.fork_server().pid)
        before = resource.prlimit(server.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (server.num_fds() + 2, before[1]))
        with pytest.raises(mv.errors.PreflightError, match="open files"):
            make()
        assert_steps(others)
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, before)
        with make() as envs:
            envs.reset(seed=0)
        assert_steps(others)


def _no_more(*_: Any, **__: Any) -> Any:
    raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))


@pytest.mark.fault("G5")
@pytest.mark.parametrize("method", ["forkserver", "fork"])
def test_process_that_cannot_be_started_is_one_error(method: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    if method == "forkserver":
        fork_server.stop_fork_server()
        monkeypatch.setattr(subprocess, "Popen", _no_more)
    else:
        fork_server.fork_server()
        monkeypatch.setattr(os, "fork", _no_more)
    opened = count_descriptors()
    with pytest.raises(mv.errors.PreflightError, match="Resource temporarily unavailable"):
        make(workers=mv.WorkerOptions(count=1, start_method=method))
    assert psutil.Process().num_fds() == opened
    monkeypatch.undo()
    with make(workers=mv.WorkerOptions(count=1, start_method=method)) as envs:
        envs.reset(seed=0)


@pytest.mark.fault("G5")
def test_thread_that_cannot_be_started_is_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    opened = count_descriptors()
    with monkeypatch.context() as patched, pytest.raises(mv.errors.PreflightError, match="can't start new thread"):
        patched.setattr(threading.Thread, "start", start)
        mv.make_vec(Walk, 2, "thread", workers=2)
    assert psutil.Process().num_fds() == opened


@pytest.mark.fault("G5")
@pytest.mark.parametrize("on_failure", ["raise", "restart"])
def test_workers_that_end_with_their_fork_server_are_not_called_out_of_memory(
    on_failure: Any, logged_warnings: LoggedWarnings
) -> None:
    with make(on_failure=on_failure) as envs:
        envs.reset(seed=0)
        pids = envs.worker_pids
        os.kill(fork_server.fork_server().pid, signal.SIGKILL)
        assert still_alive(pids) == []
        if on_failure == "raise":
            with pytest.raises(mv.errors.WorkerDied, match="with its fork server") as caught:
                assert_steps(envs)
            assert "memory" not in str(caught.value)
        else:
            assert envs.step(actions(range(2), 0))[4]["restarted"].all()
            assert any("with its fork server" in line for line in logged_warnings())


@pytest.fixture
def removed_directory(tmp_path: Path) -> Iterator[Callable[[], None]]:
    """Change to a temporary directory and remove it."""
    before, here = Path.cwd(), tmp_path / "here"
    here.mkdir()
    os.chdir(here)
    yield here.rmdir
    os.chdir(before)


@pytest.mark.fault("G5")
@pytest.mark.parametrize("method", ["forkserver", "fork", "spawn"])
def test_removed_working_directory_is_named(removed_directory: Callable[[], None], method: Any) -> None:
    removed_directory()
    with pytest.raises(mv.errors.PreflightError, match=r"working directory .*removed.*os\.chdir"):
        make(workers=mv.WorkerOptions(count=1, start_method=method))


@pytest.mark.fault("G5", "G3")
def test_removed_working_directory_is_named_in_a_restart(removed_directory: Callable[[], None]) -> None:
    with make(on_failure=mv.FailureOptions(on_failure="restart", restarts_per_minute=1)) as envs:
        envs.reset(seed=0)
        os.kill(envs.worker_pids[0], signal.SIGKILL)
        removed_directory()
        with pytest.raises(mv.errors.WorkerDied, match=r"working directory .*removed"):
            assert_steps(envs)

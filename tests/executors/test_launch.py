"""Starting workers in unusual programs: thousands of open files, children reaped by others, Ctrl-C at any moment."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import multiverse as mv
from multiverse.executors import machine, preflight
from multiverse.executors.launch import fork_server, orphan_guard
from multiverse.executors.launch.start_methods import UNKNOWN_EXIT, ForkedProcess
from multiverse.ipc import platform
from multiverse.ipc.doorbell import descriptors_per_doorbell
from tests.envs import Walk
from tests.processes import still_alive

MANY = 1_100  # select() stops at 1,024


# -- many open files -------------------------------------------------------------------------------------------
@pytest.fixture
def many_open_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * MANY
    if hard != resource.RLIM_INFINITY and hard < wanted:
        pytest.skip(f"this process may open {hard} files only")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    nothing = os.open(os.devnull, os.O_RDONLY)
    held = [nothing, *(os.dup(nothing) for _ in range(MANY))]
    yield
    for fd in held:
        os.close(fd)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("many_open_files")
@pytest.mark.parametrize("method", ["forkserver", "fork", "spawn"])
@pytest.mark.parametrize("fallback", [False, True])
def test_workers_work_with_a_thousand_open_files(method: Any, fallback: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "has_pidfd", lambda: not fallback)
    fork_server.stop_fork_server()  # the new server gets descriptors with large numbers
    with mv.make_vec(Walk, 2, "process", workers=mv.WorkerOptions(count=2, start_method=method)) as envs:
        envs.reset(seed=0)
        envs.step(np.zeros(2, np.int64))
        pids = envs.call("process_id")
    assert still_alive(pids) == []


@pytest.mark.usefixtures("many_open_files")
def test_end_of_a_process_is_noticed_with_a_thousand_open_files() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    orphan_guard.wait_for_end(process.pid)
    assert process.wait() == 0


# -- children reaped by others ---------------------------------------------------------------------------------
def test_exit_code_reaped_elsewhere_is_unknown() -> None:
    process = ForkedProcess(lambda: 3)
    assert os.waitpid(process.pid, 0)[0] == process.pid
    assert process.exit_code(5.0) == UNKNOWN_EXIT
    process.kill()
    process.release()


def test_exit_code_is_known_if_nothing_else_reaps() -> None:
    process = ForkedProcess(lambda: 3)
    assert process.exit_code(5.0) == 3
    process.release()


@pytest.fixture
def ignored_children() -> Iterator[None]:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGCHLD, before)


@pytest.mark.usefixtures("ignored_children")
def test_program_that_ignores_its_children_can_fork_workers() -> None:
    with mv.make_vec(Walk, 2, "process", workers=mv.WorkerOptions(count=2, start_method="fork")) as envs:
        envs.reset(seed=0)
        pids = envs.call("process_id")
        envs.step(np.zeros(2, np.int64))
    assert still_alive(pids) == []


@pytest.mark.usefixtures("ignored_children")
def test_death_of_a_forked_worker_reaped_elsewhere_is_reported() -> None:
    with mv.make_vec(Walk, 2, "process", workers=mv.WorkerOptions(count=1, start_method="fork")) as envs:
        envs.reset(seed=0)
        os.kill(envs.call("process_id")[0], signal.SIGKILL)
        with pytest.raises(mv.errors.WorkerDied):
            envs.step(np.zeros(2, np.int64))


@pytest.mark.usefixtures("ignored_children")
def test_child_that_ends_before_it_can_be_watched_has_an_unknown_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    def too_late(pid: int) -> int:
        raise ProcessLookupError

    monkeypatch.setattr(platform, "has_pidfd", lambda: True)
    monkeypatch.setattr(os, "pidfd_open", too_late, raising=False)
    process = ForkedProcess(lambda: 0)
    assert process.exit_code(5.0) == UNKNOWN_EXIT
    process.release()


@pytest.mark.fault("A12")
def test_processes_of_an_env_end_if_its_worker_was_reaped_elsewhere(tmp_path: Path) -> None:
    path = tmp_path / "pid"

    def start_something() -> int:
        started = subprocess.Popen(["sleep", "600"])
        path.write_text(str(started.pid))
        return 0

    process = ForkedProcess(start_something)
    os.waitpid(process.pid, 0)
    assert process.exit_code(5.0) == UNKNOWN_EXIT
    process.release()
    assert still_alive([int(path.read_text())]) == []


def test_process_with_a_reused_pid_is_not_killed() -> None:
    other = subprocess.Popen(["sleep", "600"], process_group=0)
    orphan_guard.kill_group_left_by(other.pid)
    assert other.poll() is None
    other.kill()
    assert other.wait() == -signal.SIGKILL


# -- Ctrl-C ----------------------------------------------------------------------------------------------------
@pytest.mark.fault("A14")
def test_ctrl_c_of_the_terminal_does_not_reach_the_fork_server() -> None:
    fork_server.stop_fork_server()
    server = fork_server.fork_server()
    assert os.getpgid(server.pid) == server.pid != os.getpgid(0)


# -- the machine -----------------------------------------------------------------------------------------------
def test_tightest_quota_of_all_levels_counts_in_v2_and_v1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = tmp_path / "outer" / "inner"
    inner.mkdir(parents=True)
    monkeypatch.setattr(machine, "_own_directories", lambda root: [inner, inner.parent, root])
    (inner / "cpu.max").write_text("800000 100000\n")
    (inner.parent / "cpu.max").write_text("300000 100000\n")
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert machine.cpu_quota(tmp_path) == 3.0
    group = tmp_path / "cpu" / "a"
    group.mkdir(parents=True)
    monkeypatch.setattr(machine, "_own_directories_v1", lambda root: [group, group.parent])
    for directory, quota in ((group, "250000"), (group.parent, "-1")):
        (directory / "cpu.cfs_quota_us").write_text(f"{quota}\n")
        (directory / "cpu.cfs_period_us").write_text("100000\n")
    assert machine.cpu_quota(tmp_path) == 2.5


def test_cgroup_of_v1_is_found_among_the_controllers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ["4:memory:/m", "3:cpuset:/s", "2:cpu,cpuacct:/a/b", "0::/"]
    monkeypatch.setattr(machine, "_CGROUP", tmp_path)
    monkeypatch.setattr(machine, "_lines", lambda path: lines)
    assert machine._own_directories_v1(tmp_path) == [tmp_path / "cpu/a/b", tmp_path / "cpu/a", tmp_path / "cpu"]


# -- preflight -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("torch", [SimpleNamespace(), SimpleNamespace(cuda=SimpleNamespace()), None])
def test_partly_imported_torch_does_not_prevent_fork(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", torch)
    preflight.check_fork("fork")


def test_too_few_descriptors_error_lists_what_needs_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "descriptor_limits", lambda: (10, 20))
    monkeypatch.setattr(machine, "open_descriptors", lambda: 7)
    monkeypatch.setattr(preflight, "descriptors_per_worker", lambda: 5)
    said = r"4 worker processes need 91 open files in total \(20 for the workers, 7 already open, 64 to spare\).* 20; "
    with pytest.raises(mv.errors.PreflightError, match=said):
        preflight.check_descriptors(4)


@pytest.mark.fault("A17")
def test_thread_workers_need_descriptors_too(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "setrlimit", lambda _, pair: asked.append(pair))
    monkeypatch.setattr(machine, "open_descriptors", lambda: 7)
    monkeypatch.setattr(machine, "descriptor_limits", lambda: (10, 1_000))
    preflight.check_threads(4)
    needed = 12 * descriptors_per_doorbell() + 7 + preflight.SPARE_DESCRIPTORS
    assert asked == [(needed, 1_000)]
    monkeypatch.setattr(machine, "descriptor_limits", lambda: (10, 20))
    with pytest.raises(mv.errors.PreflightError, match=f"4 worker threads need {needed} open files"):
        preflight.check_threads(4)

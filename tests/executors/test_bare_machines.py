"""Machines without /proc, without /dev, or at their limit of threads: it works, or one sentence states why not."""

from __future__ import annotations

import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import psutil
import pytest

import multiverse as mv
from multiverse.executors import machine
from multiverse.executors.launch import fork_server
from tests.processes import count_descriptors


@pytest.fixture
def no_proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path))


class Sleepy(gym.Wrapper):  # type: ignore[type-arg]
    def step(self, action: Any) -> Any:
        time.sleep(60)


@pytest.mark.fault("A17")
def test_envs_run_without_proc(no_proc: None) -> None:
    assert machine.memory_available() > 0 and machine.open_descriptors() == 0
    with mv.make_vec("CartPole-v1", 2, "process", workers=1) as envs:
        envs.reset(seed=0)
        envs.step([0, 1])


@pytest.mark.fault("A4")
def test_hang_without_proc_shows_its_stack(no_proc: None) -> None:
    timeouts = mv.Timeouts(reply_s=0.2, close_s=0.1)
    with mv.make_vec(lambda: Sleepy(gym.make("CartPole-v1")), 1, "process", workers=1, timeouts=timeouts) as envs:
        envs.reset(seed=0)
        with pytest.raises(mv.errors.ReplyTimeout, match="its state is unknown without /proc") as hung:
            envs.step([0])
    assert "test_bare_machines.py" in hung.value.stack


@pytest.mark.fault("A17")
def test_worker_processes_without_dev_are_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_dev(*_: Any, **__: Any) -> Any:
        raise FileNotFoundError(2, "No such file or directory", "/dev/null")

    monkeypatch.setattr(fork_server, "_server", None)
    monkeypatch.setattr(subprocess, "Popen", no_dev)
    before = count_descriptors()
    with pytest.raises(
        mv.errors.PreflightError, match=r"cannot be started here .*/dev/null.* executor='serial'"
    ) as refused:
        mv.make_vec("CartPole-v1", 2, "process", workers=1)
    assert "\n" not in str(refused.value)
    del refused
    assert psutil.Process().num_fds() == before


@pytest.mark.fault("A17")
@pytest.mark.parametrize("before", [0, 2])
def test_thread_that_cannot_start_is_refused_and_the_others_end(before: int, monkeypatch: pytest.MonkeyPatch) -> None:
    start, begun = threading.Thread.start, []

    def limited(self: threading.Thread) -> None:
        if len(begun) == before:
            raise RuntimeError("can't start new thread")
        begun.append(self)
        start(self)

    monkeypatch.setattr(threading.Thread, "start", limited)
    with pytest.raises(
        mv.errors.PreflightError, match=r"worker \d cannot be started: can't start new thread.*ulimit -u"
    ):
        mv.make_vec("CartPole-v1", 4, "thread", workers=4)
    assert not any(thread.is_alive() for thread in begun)

"""Checks before anything is started: impossible requests are refused in one message, unwise ones get a warning."""

from __future__ import annotations

import resource
import sys
import threading
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

import multiverse as mv
from multiverse.executors import machine, preflight
from multiverse.executors.launch import fork_server
from multiverse.executors.preflight import descriptors_per_worker
from tests.envs import Walk


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Set the limits of open files as this process sees them; returns the limits that are then set in the kernel."""
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "setrlimit", lambda _, pair: asked.append(pair))

    def set_limits(soft: int, hard: int) -> list[tuple[int, int]]:
        monkeypatch.setattr(machine, "descriptor_limits", lambda: (soft, hard))
        return asked

    return set_limits


def needed(workers: int) -> int:
    return machine.open_descriptors() + workers * descriptors_per_worker() + preflight.SPARE_DESCRIPTORS


def test_sufficient_descriptor_limit_is_unchanged(limits: Any) -> None:
    asked = limits(needed(4), needed(4))
    preflight.check_descriptors(4)
    assert asked == []


@pytest.mark.fault("A17")
def test_low_soft_descriptor_limit_is_raised(limits: Any) -> None:
    asked = limits(10, 100_000)
    preflight.check_descriptors(4)
    assert asked == [(needed(4), 100_000)]


def test_infinite_hard_descriptor_limit_is_accepted(limits: Any) -> None:
    asked = limits(10, resource.RLIM_INFINITY)
    preflight.check_descriptors(4)
    assert len(asked) == 1
    limits(resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    preflight.check_descriptors(4)
    assert len(asked) == 1


@pytest.mark.fault("A17")
def test_low_hard_descriptor_limit_is_refused_with_the_number_needed(limits: Any) -> None:
    asked = limits(10, 20)
    with pytest.raises(mv.errors.PreflightError, match=rf"4 worker processes need {needed(4)} open files.*20"):
        preflight.check_descriptors(4)
    assert asked == []


@pytest.mark.fault("A17")
def test_vector_env_refused_for_descriptors_starts_nothing(limits: Any) -> None:
    limits(10, 20)
    fork_server.stop_fork_server()
    with pytest.raises(mv.errors.PreflightError, match="open files"):
        mv.make_vec(Walk, 4, "process", workers=2)
    assert psutil.Process().children() == []


def fake_torch(initialized: bool) -> Any:
    return SimpleNamespace(cuda=SimpleNamespace(is_initialized=lambda: initialized))


@pytest.mark.fault("A16")
def test_fork_is_refused_once_cuda_is_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", fake_torch(True))
    with pytest.raises(mv.errors.PreflightError, match=r"CUDA.*forkserver"):
        mv.make_vec(Walk, 2, "process", workers=mv.WorkerOptions(count=1, start_method="fork"))
    preflight.check_fork("forkserver")
    preflight.check_fork("spawn")


def test_fork_is_allowed_with_torch_on_the_cpu_or_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", fake_torch(False))
    preflight.check_fork("fork")
    monkeypatch.delitem(sys.modules, "torch")
    preflight.check_fork("fork")


def test_unsupported_platform_error_names_what_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "os", SimpleNamespace(name="nt"))
    with pytest.raises(mv.errors.PreflightError, match="executor='thread'"):
        preflight.check_platform()


def test_more_workers_than_cores_give_one_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(machine, "usable_cores", lambda: 2)
    preflight._advise.cache_clear()
    preflight.advise_workers(2)
    assert caplog.messages == []
    preflight.advise_workers(7)
    preflight.advise_workers(7)  # without a second warning
    (message,) = caplog.messages
    assert "7 worker processes share 2 usable cores" in message
    assert "workers=2" in message


@pytest.mark.fault("A16")
@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_unpicklable_factory_is_refused_with_alternatives(method: Any) -> None:
    lock = threading.Lock()

    def build() -> Any:
        assert lock
        return Walk()

    with pytest.raises(mv.errors.PreflightError, match=r"cannot be sent to a worker process.*lock.*executor='thread'"):
        mv.make_vec(build, 2, "process", workers=mv.WorkerOptions(count=1, start_method=method))
    with mv.make_vec(build, 2, "process", workers=mv.WorkerOptions(count=1, start_method="fork")) as envs:
        envs.reset(seed=0)
    with mv.make_vec(build, 2, "thread", workers=1) as envs:
        envs.reset(seed=0)


def test_workers_are_limited_to_the_number_of_envs(caplog: pytest.LogCaptureFixture) -> None:
    with mv.make_vec(Walk, 2, "thread", workers=5) as envs:
        assert envs.plan.workers == 2
    assert any("workers=5 for 2 envs: using 2" in m for m in caplog.messages)
    with mv.make_vec(Walk, 3, "hybrid", workers=9) as envs:
        assert envs.plan.workers == 2  # one env is the caller's own

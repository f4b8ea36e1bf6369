"""`multiverse doctor`: each check in its bad state has the right status, advice and exit code."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import subprocess
from collections.abc import Callable
from typing import Any

import psutil
import pytest

from multiverse.cli import doctor_checks
from multiverse.cli.doctor_checks import Finding
from multiverse.cli.main import main
from multiverse.core.errors import PreflightError
from multiverse.executors import machine, process, startup
from multiverse.ipc.block import Block

Fake = Callable[[pytest.MonkeyPatch], None]
NO_LIMIT = -1


def answering(value: Any) -> Callable[..., Any]:
    return lambda *_, **__: value


def refusing(error: BaseException) -> Callable[..., Any]:
    def refuse(*_: Any, **__: Any) -> Any:
        raise error

    return refuse


def python(version: str, implementation: str = "CPython") -> Fake:
    def fake(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(platform, "python_version", answering(version))
        patch.setattr(platform, "python_version_tuple", answering(tuple(version.split("."))))
        patch.setattr(platform, "python_implementation", answering(implementation))

    return fake


def system(name: str) -> Fake:
    return lambda patch: patch.setattr(platform, "system", answering(name))


def cores(usable: int, affinity: int, quota: float | None, physical: int | None) -> Fake:
    def fake(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(machine, "usable_cores", answering(usable))
        patch.setattr(machine, "cpu_quota", answering(quota))
        patch.setattr(os, "sched_getaffinity", answering(set(range(affinity))), raising=False)
        patch.setattr(psutil, "cpu_count", answering(physical))

    return fake


def memory(available: int) -> Fake:
    return lambda patch: patch.setattr(machine, "memory_available", answering(available))


def files(limits: tuple[int, int] | None) -> Fake:
    def fake(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(machine, "descriptor_limits", answering(limits))
        patch.setattr(machine, "open_descriptors", answering(10))
        patch.setattr(machine, "usable_cores", answering(4))

    return fake


def block(error: BaseException) -> Fake:
    return lambda patch: patch.setattr(Block, "resize", refusing(error))


def start(outcome: Any) -> Fake:
    act = refusing(outcome) if isinstance(outcome, BaseException) else answering(outcome)
    return lambda patch: patch.setattr(startup, "start_hosts", act)


def no_processes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(process, "usable_here", answering(False))
    patch.setattr(startup, "start_hosts", refusing(AssertionError("nothing may be started")))


def gpu(driver: bool, torch: dict[str, Any] | BaseException | None) -> Fake:
    def fake(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(shutil, "which", answering("/usr/bin/nvidia-smi" if driver else None))
        patch.setattr(importlib.util, "find_spec", answering(object() if torch is not None else None))
        act = refusing(torch) if isinstance(torch, BaseException) else answering(torch)
        patch.setattr(doctor_checks, "ask_torch", act)

    return fake


def torch(devices: list[str], cuda: str | None = None, mps: bool = False) -> dict[str, Any]:
    return {"version": "2.13.0", "built_for_cuda": cuda, "devices": devices, "mps": mps}


BROKEN_TORCH = subprocess.CalledProcessError(1, "python", stderr="Traceback:\nImportError: libcudart is missing\n")

STATES: dict[str, tuple[str, Fake, str, str, str]] = {
    # (check, replacement, status, part of the finding, part of the advice)
    "old Python": ("Python", python("3.10.2"), "blocking", "3.10.2", "3.11 or newer"),
    "another Python": ("Python", python("3.11.1", "PyPy"), "warning", "PyPy", "CPython"),
    "good Python": ("Python", python("3.14.0"), "ok", "3.14.0", ""),
    "Linux": ("platform", system("Linux"), "ok", "Linux", ""),
    "macOS": ("platform", system("Darwin"), "warning", "Darwin", "tested on Linux only"),
    "Windows": ("platform", system("Windows"), "warning", "Windows", "executor='thread'"),
    "one core": ("usable cores", cores(1, 1, None, 8), "warning", "1 usable", "more cores"),
    "half a core": ("usable cores", cores(2, 8, 1.5, 8), "warning", "quota is 1.5", "2 whole cores"),
    "part of the cores": ("usable cores", cores(2, 8, 2.0, 8), "ok", "quota is 2", "raise the container's quota"),
    "all cores": ("usable cores", cores(8, 8, None, 4), "ok", "8 usable", ""),
    "unknown cores": ("usable cores", cores(8, 8, None, None), "ok", "unknown number", ""),
    "no memory": ("memory", memory(90_000_000), "blocking", "0.1 GB", "memory limit"),
    "little memory": ("memory", memory(500_000_000), "warning", "0.5 GB", "MB per worker"),
    "memory": ("memory", memory(8_000_000_000), "ok", "8.0 GB", ""),
    "hard limit": ("open files", files((40, 50)), "blocking", "hard limit 50", "ulimit -Hn 94"),
    "soft limit": ("open files", files((40, 4096)), "ok", "soft limit 40", "nothing to do"),
    "enough files": ("open files", files((1024, NO_LIMIT)), "ok", "hard limit none", ""),
    "no file limits": ("open files", files(None), "ok", "no limit", ""),
    "block refused": ("shared memory", block(PreflightError("no space")), "blocking", "no space", "memory limit"),
    "no memfd": ("shared memory", block(OSError(38, "not implemented")), "blocking", "not implemented", "serial"),
    "no forkserver": ("start by forkserver", start(PreflightError("gone")), "blocking", "gone", "the default"),
    "no fork": ("start by fork", start(OSError("EAGAIN")), "warning", "EAGAIN", "'forkserver'"),
    "spawn hangs": (
        "start by spawn",
        start(startup.TooSlow("the worker did not answer within 2 s")),
        "warning",
        "did not answer",
        "'forkserver'",
    ),
    "no processes": ("start by forkserver", no_processes, "ok", "skipped", ""),
    "no GPU": ("GPU", gpu(False, torch([])), "ok", "no GPU", ""),
    "no torch": ("GPU", gpu(False, None), "ok", "torch is not installed", ""),
    "GPU without torch": ("GPU", gpu(True, None), "ok", "torch is not", "pip install torch"),
    "GPU": ("GPU", gpu(True, torch(["H200"], "12.8")), "ok", "H200", ""),
    "Apple": ("GPU", gpu(False, torch([], mps=True)), "ok", "mps", ""),
    "CPU build": ("GPU", gpu(True, torch([])), "warning", "without CUDA", "install torch for CUDA"),
    "driver too old": ("GPU", gpu(True, torch([], "12.8")), "warning", "finds no GPU", "nvidia-smi"),
    "broken torch": ("GPU", gpu(False, BROKEN_TORCH), "warning", "libcudart is missing", "reinstall"),
    "silent torch": ("GPU", gpu(False, ValueError("no answer")), "warning", "no answer", "reinstall"),
}


@pytest.mark.parametrize("state", list(STATES))
def test_each_check_gives_its_status_and_advice(state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, fake, status, found, advice = STATES[state]
    fake(monkeypatch)
    finding = doctor_checks.all_checks()[name]()
    assert finding.status == status
    assert found in finding.found
    assert advice in finding.advice and bool(advice) == bool(finding.advice)


@pytest.mark.parametrize("state", [s for s in STATES if STATES[s][2] != "ok"])
def test_each_bad_state_is_printed_and_sets_the_exit_code(
    state: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name, fake, status, found, advice = STATES[state]
    only = {name: doctor_checks.all_checks()[name]}
    monkeypatch.setattr(doctor_checks, "all_checks", lambda: only)
    fake(monkeypatch)
    code = 1 if status == "blocking" else 0
    assert main(["doctor"]) == code
    printed = " ".join(capsys.readouterr().out.split())
    assert printed.startswith(f"{status} {name} ") and found in printed and advice in printed
    assert ("Fix the problems listed above" in printed) == bool(code)
    assert main(["doctor", "--json"]) == code
    said = json.loads(capsys.readouterr().out)
    assert said["healthy"] is not bool(code)
    assert [c["status"] for c in said["checks"]] == [status]


def test_every_check_has_a_tested_bad_state() -> None:
    bad = {name for name, _, status, _, _ in STATES.values() if status != "ok"}
    assert bad == set(doctor_checks.all_checks()) - {"extras"}  # extras are optional: their absence is never an error


def test_check_that_raises_is_a_blocking_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    finding = doctor_checks.examine(refusing(KeyError("no such file")))
    assert finding.status == "blocking" and "KeyError" in finding.found and "report" in finding.advice


def test_doctor_reports_this_machine_as_healthy(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["healthy"] is True
    assert [c["name"] for c in said["checks"]] == list(doctor_checks.all_checks())
    assert all("answered after" in c["found"] for c in said["checks"] if c["name"].startswith("start by"))


def test_progress_names_each_check(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_checks, "all_checks", lambda: {"a": lambda: Finding("ok", "fine")})
    assert main(["doctor"]) == 0
    assert capsys.readouterr().err == "[1/1] checking: a\n"


# -- optional packages -----------------------------------------------------------------------------------------
def test_torch_is_queried_in_a_separate_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def fake_run(command: list[str], **_: Any) -> Any:
        assert "import json, torch" in command[-1]
        return subprocess.CompletedProcess(command, 0, f"some banner\n{json.dumps(torch(['H200']))}\n", "")

    monkeypatch.setattr(subprocess, "run", fake_run)
    assert doctor_checks.ask_torch()["devices"] == ["H200"]


def test_extras_advice_names_extras_only_if_they_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    requirements = [
        "numpy>=1.26",
        'gymnasium[mujoco]; extra == "mujoco"',
        "stable-baselines3>=2.4; extra == 'peers'",
        "torch>=2.2; extra == 'peers'",
        'gymnasium[box2d]; extra == "box2d"',
        "tensorboard; extra == 'dev'",
    ]
    monkeypatch.setattr(importlib.metadata, "requires", answering(requirements))
    monkeypatch.setattr(importlib.util, "find_spec", answering(None))
    finding = doctor_checks.extras()
    assert finding.status == "ok" and finding.found.startswith("installed: none; not installed: torch, mujoco")
    assert "box2d (for LunarLander, BipedalWalker, CarRacing, BoxJump)" in finding.found
    assert "pip install 'multiverse[box2d,mujoco,peers]'" in finding.advice
    assert "pip install pettingzoo ale-py pyboy ray tensorboard imageio-ffmpeg" in finding.advice


def test_extras_lists_installed_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", answering(object()))
    monkeypatch.setattr(importlib.metadata, "version", answering("1.2"))
    finding = doctor_checks.extras()
    assert finding.advice == "" and "torch 1.2, mujoco 1.2" in finding.found
    assert {"mpe2 1.2", "pygame-ce 1.2", "matplotlib 1.2", "pandas 1.2"} <= {*finding.found.split(", ")}


def test_installed_package_without_metadata_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", refusing(importlib.metadata.PackageNotFoundError("torch")))
    monkeypatch.setattr(importlib.util, "find_spec", answering(object()))
    assert "installed: torch, mujoco" in doctor_checks.extras().found

"""The self-test passes here, and fails for every fault that it should find."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import multiverse as mv
from multiverse.cli import doctor_checks, self_test
from multiverse.cli.doctor_checks import Finding
from multiverse.cli.main import main
from multiverse.executors import process


@pytest.fixture
def quick_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The self-test alone: the other checks have separate tests."""
    monkeypatch.setattr(doctor_checks, "all_checks", lambda: {"a": lambda: Finding("ok", "fine")})


@pytest.fixture
def short_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(self_test, "SETTLE_S", 0.1)


def test_self_test_passes_in_a_fresh_process() -> None:
    command = [sys.executable, "-m", "multiverse.cli", "doctor", "--self-test"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [" ".join(line.split()) for line in done.stdout.partition("Self-test")[2].splitlines()]
    expected = ["serial equals SyncVectorEnv"]
    expected += [f"{name} equals serial" for name in self_test.contenders()] + ["nothing left behind"]
    for line, name in zip(lines[1:], expected, strict=False):
        assert line.startswith(f"ok {name}") and line.endswith(" s")
    assert "multiverse works on this machine." in done.stdout


def test_self_test_covers_every_executor_and_start_method() -> None:
    methods = ["process (forkserver)", "process (fork)", "process (spawn)"]
    assert list(self_test.contenders()) == ["thread", *methods, "hybrid"]


def test_self_test_without_processes_covers_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "usable_here", lambda: False)
    assert list(self_test.contenders()) == ["thread"]


@pytest.mark.usefixtures("quick_checks")
def test_json_has_every_outcome(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(self_test, "contenders", dict)
    assert main(["doctor", "--self-test", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert [o["passed"] for o in said["self_test"]] == [True, True]
    assert said["self_test"][-1]["name"] == "nothing left behind"


class OneBitOff:
    """A serial vector env whose 100th step has one bit wrong."""

    def __init__(self) -> None:
        self._envs, self._steps = mv.make_vec(self_test.ENV, self_test.NUM_ENVS, "serial"), 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._envs, name)

    def step(self, actions: Any) -> Any:
        observations, *rest = self._envs.step(actions)
        self._steps += 1
        if self._steps == 100:
            observations.view(np.uint32)[3, 2] ^= 1
        return observations, *rest


@pytest.mark.usefixtures("quick_checks")
def test_one_wrong_bit_fails_the_self_test(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(self_test, "contenders", lambda: {"hybrid": OneBitOff})
    assert main(["doctor", "--self-test"]) == 1
    out = capsys.readouterr().out
    assert "observations differ at step 100" in out and "Fix the problems listed above" in out


@pytest.mark.usefixtures("quick_checks")
def test_executor_that_raises_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> Any:
        raise mv.errors.PreflightError("no such luck\nmore")

    monkeypatch.setattr(self_test, "contenders", lambda: {"hybrid": broken})
    serial, hybrid, left = self_test.run_self_test()
    assert serial.passed and left.passed and not hybrid.passed
    assert hybrid.detail == "PreflightError: no such luck"


def leaked_process() -> Iterator[None]:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield
    child.communicate()


def leaked_file() -> Iterator[None]:
    fds = os.pipe()
    yield
    for fd in fds:
        os.close(fd)


def leaked_thread() -> Iterator[None]:
    end = threading.Event()
    thread = threading.Thread(target=end.wait, name="forgotten")
    thread.start()
    yield
    end.set()
    thread.join()


@pytest.mark.usefixtures("short_wait")
@pytest.mark.parametrize(
    ("leak", "words"), [(leaked_process, "processes ["), (leaked_file, "2 open files"), (leaked_thread, "forgotten")]
)
def test_leak_is_found_and_named(leak: Any, words: str) -> None:
    before = self_test.Resources.now()
    assert self_test.left_behind(before) == ""
    leaking = leak()
    next(leaking)
    assert words in self_test.left_behind(before)
    next(leaking, None)
    assert self_test.left_behind(before) == ""


def test_difference_is_reported_with_its_field_and_step() -> None:
    reset = (np.zeros((2, 4), np.float32),)
    step = (np.zeros((2, 4), np.float32), np.ones(2), np.zeros(2, bool), np.zeros(2, bool))
    assert self_test.difference([reset, step], [reset, step]) == ""
    other = (step[0], step[1].astype(np.float32), *step[2:])
    assert self_test.difference([reset, step], [reset, other]) == "rewards differ at step 1"
    assert self_test.difference([(reset[0] + 1,)], [reset]) == "observations differ after reset"

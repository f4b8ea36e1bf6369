"""Crashes of native code in the calling process cannot be contained, but their env and place are reported."""

from __future__ import annotations

import signal
from typing import Any

import pytest

import multiverse as mv
from multiverse.executors.launch.crash_report import NOW, OwnShare, described
from tests.faults.programs import Victim, quiet_program

PROGRAM = """
import ctypes, resource, signal
import numpy as np
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
import multiverse as mv
from tests.envs import Walk

executor, phase = sys.argv[1:3]

class Crashes(Walk):
    def __init__(self, crashes=False):
        super().__init__()
        self._crashes = crashes
        if crashes and phase == "constructor":
            say("pids", *children())
            ctypes.string_at(0)

    def reset(self, **kwargs):
        if self._crashes and phase == "reset" and self.resets == 1:
            ctypes.string_at(0)
        return super().reset(**kwargs)

    def step(self, action):
        if self._crashes and phase == "step" and self.resets == 2 and self.steps == 2:
            ctypes.string_at(0)
        return super().step(action)

how = {} if executor in ("serial", "auto") else {"workers": 1}
if executor == "served":
    with mv.make_vec(Walk, 1, "process", workers=1):
        executor = "serial"
with mv.make_vec("CartPole-v1", 2, "serial"):
    envs = mv.make_vec(Crashes, 4, executor, env_kwargs=[{}, {"crashes": True}, {}, {}], **how)
    say("pids", *children())
    envs.reset(seed=7)
    for _ in range(20):
        envs.step(np.zeros(4, np.int64))
"""
TRACEBACK = "Fatal Python error: Segmentation fault"
IN_STEP = "native code of env 1, in its step (step 3 of episode 1, seed 8, 1 episode before), line "


def crashed(*arguments: str) -> str:
    """Return the standard error of a program that a segmentation fault ends."""
    with Victim(PROGRAM, *arguments) as victim:
        victim.lines_until("pids")
        assert victim.end() == -signal.SIGSEGV
        assert victim.survivors() == []
        return victim.stderr()


@pytest.mark.parametrize("executor", ["hybrid", "served"])
def test_crash_of_an_env_in_the_caller_names_env_step_and_seed(executor: str) -> None:
    said = crashed(executor, "step")
    assert said.count(TRACEBACK) == 1 and "step of env 1" in said
    assert said.count(IN_STEP) == 1 and "executor='process'" in said, said


def test_crash_in_a_reset_in_the_caller_names_env_episode_and_seed() -> None:
    said = crashed("hybrid", "reset")
    assert TRACEBACK in said and "native code of env 1, in its reset (episode 1, seed 8, 1 episode before)" in said


def test_crash_in_a_constructor_in_the_caller_names_the_env() -> None:
    said = crashed("hybrid", "constructor")
    assert TRACEBACK in said and "native code of env 1, in its constructor, line " in said


@pytest.mark.parametrize("executor", ["serial", "thread"])
def test_traceback_names_the_env_without_a_fork_server(executor: str) -> None:
    said = crashed(executor, "step")
    assert said.count(TRACEBACK) == 1 and "step of env 1" in said
    assert "multiverse: " not in said


QUIET = """
import faulthandler, signal
import numpy as np
import multiverse as mv
from tests.envs import Walk

envs = mv.make_vec(Walk, 4, "hybrid", workers=1)
envs.reset(seed=7)
envs.step(np.zeros(4, np.int64))
if os.fork() == 0:
    assert not faulthandler.is_enabled()
    os._exit(0)
os.wait()
say("pids", *children())
if sys.argv[1] == "exit":
    os._exit(3)
if sys.argv[1] == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.fault("A13")
@pytest.mark.parametrize("ends", ["end", "exit", "kill"])
def test_program_that_ends_otherwise_prints_nothing(ends: str) -> None:
    with Victim(QUIET, ends) as victim:
        victim.lines_until("pids")
        assert victim.end() == {"end": 0, "exit": 3, "kill": -signal.SIGKILL}[ends]
        assert victim.survivors() == []
        assert victim.stderr() == ""


def test_faulthandler_of_the_program_is_kept() -> None:
    program = "import faulthandler\nfaulthandler.enable()\n" + PROGRAM
    with Victim(program, "hybrid", "step") as victim:
        victim.lines_until("pids")
        assert victim.end() == -signal.SIGSEGV
        assert victim.stderr().count(TRACEBACK) == 1 and "multiverse: " not in victim.stderr()


BORROWED = """
import faulthandler, gc, psutil
import multiverse as mv
from multiverse.executors.launch import fork_server

opened = psutil.Process().num_fds()
one, other = mv.make_vec("CartPole-v1", 2, "serial"), mv.make_vec("CartPole-v1", 2, "thread", workers=1)
assert faulthandler.is_enabled()
for _ in range(2):
    one.close()
assert faulthandler.is_enabled()
third = mv.make_vec("CartPole-v1", 2, "hybrid", workers=1)
fork_server.stop_fork_server()
for envs in (other, third):
    envs.close(timeout_s=0.1)
del one, other, third, envs
gc.collect()
assert not faulthandler.is_enabled()
say(psutil.Process().num_fds() - opened)
"""


@pytest.mark.fault("A13")
def test_faulthandler_is_enabled_temporarily_and_restored() -> None:
    assert quiet_program(BORROWED) == ["0"]


# -- the record ----------------------------------------------------------------------------------------------------
@pytest.fixture
def share() -> Any:
    opened = OwnShare.empty()
    opened.open(3)
    yield opened
    opened.close()


def content(share: OwnShare) -> bytes:
    return bytes(share.words)


def take_step(share: OwnShare) -> None:
    share.words[NOW] = 1 + abs(share.words[NOW])


def test_steps_are_counted_from_the_reset_of_each_env(share: OwnShare) -> None:
    for i in range(3):
        share.begin(i, 0, 5 + i, 0)
    take_step(share)
    take_step(share)
    share.leave_out([1])
    share.begin(2, 1, 7, 0)
    take_step(share)
    said = [described(content(share), i, True) for i in range(3)]
    assert said == [
        "step 3 of episode 0, seed 5",
        "step 2 of episode 0, seed 6",
        "step 1 of episode 1, seed 7, 1 episode before",
    ]
    assert described(content(share), 3, True) == "", "there is no such env"
    share.words[NOW] = -share.words[NOW]
    assert described(content(share), 0, True) == "", "it was not at work"


@pytest.mark.parametrize("seed", [None, 2**70])
def test_unknown_seed_is_reported_as_never_seeded(share: OwnShare, seed: int | None) -> None:
    share.begin(0, 4, seed, None if seed is None else 4)
    share.words[NOW] = 1
    assert described(content(share), 0, False) == "episode 4, never seeded"


# -- the plan ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("executor", "said"),
    [
        ("serial", "a crash costs this program"),
        ("thread", "a crash costs this program"),
        ("hybrid", "a crash costs the envs of a worker or, in the caller's own share, this program"),
        ("process", "a crash costs the envs of a worker"),
    ],
)
def test_plan_states_what_a_crash_costs(executor: Any, said: str) -> None:
    with mv.make_vec("CartPole-v1", 4, executor, **({} if executor == "serial" else {"workers": 1})) as envs:
        assert str(envs.plan).endswith(said) and said.endswith(envs.plan.a_crash_costs)

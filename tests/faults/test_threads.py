"""Row A19: a hanging thread cannot be killed, which is reported; it blocks neither the others nor the program."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import multiverse as mv
from tests.fault_envs import Fault, Gate, Gated
from tests.faults.programs import Victim, quiet_program
from tests.processes import still_alive
from tests.vector.configurations import THREAD
from tests.vector.runs import actions


@pytest.mark.fault("A19")
def test_hanging_thread_is_reported_and_the_others_can_be_closed(tmp_path: Path) -> None:
    gate = Gate(tmp_path / "gate")
    kwargs = [{}] * 3 + [{"gate": str(gate), "phase": "step"}]
    envs = THREAD.make(Gated, env_kwargs=kwargs, timeouts=mv.Timeouts(reply_s=0.3, close_s=0.2), on_failure="restart")
    envs.reset(seed=0)
    with pytest.raises(mv.errors.ReplyTimeout, match="threads cannot be killed") as caught:
        envs.step(actions(range(4), 0))
    assert caught.value.env_ids == THREAD.last_range
    assert "wait_at" in caught.value.stack
    envs.close()
    gate.wait_for_arrival()
    gate.open()  # now it ends


PROGRAM = """
import numpy as np
import multiverse as mv
from tests.fault_envs import Fault

ending = sys.argv[1]
kwargs = [{}] * 3 + [{"what": "sleep"}]
envs = mv.make_vec(Fault, 4, "thread", workers=2, env_kwargs=kwargs, timeouts=mv.Timeouts(reply_s=0.3, close_s=0.2))
envs.reset(seed=0)
try:
    envs.step(np.zeros(4, np.int64))
except mv.errors.ReplyTimeout as error:
    say("reported", *str(error).split())
if ending == "close":
    envs.close()
if ending == "sys.exit":
    sys.exit(4)
"""


@pytest.mark.fault("A19", "A13")
@pytest.mark.parametrize(("ending", "code"), [("close", 0), ("nothing", 0), ("sys.exit", 4)])
def test_program_with_a_hanging_thread_can_exit(ending: str, code: int) -> None:
    with Victim(PROGRAM, ending) as victim:
        assert victim.line() == ["stuck"]
        assert victim.line()[0] == "reported"
        assert victim.end() == code
        said = victim.stderr().splitlines()
        assert all("has not closed its envs in time" in line for line in said) and len(said) <= 1


@pytest.mark.fault("A19")
@pytest.mark.parametrize("phase", ["step", "reset", "method"])
def test_sys_exit_in_an_env_thread_is_an_error_and_does_not_end_the_program(phase: str) -> None:
    with THREAD.make(Fault, env_kwargs=[{}] * 3 + [{"what": "system_exit", "phase": phase}]) as envs:
        calls: dict[str, Any] = {
            "reset": lambda: envs.reset(seed=0),
            "step": lambda: envs.step(actions(range(4), 0)),
            "method": lambda: envs.call("method"),
        }
        if phase != "reset":
            envs.reset(seed=0)
        with pytest.raises((mv.errors.EnvFailed, mv.errors.WorkerDied), match="SystemExit") as caught:
            calls[phase]()
        assert caught.value.env_ids in (THREAD.last_range, (3,))


@pytest.mark.fault("A19")
def test_sys_exit_in_a_constructor_in_a_thread_is_an_error() -> None:
    with pytest.raises((mv.errors.EnvFailed, mv.errors.WorkerDied), match="SystemExit"):
        THREAD.make(Fault, env_kwargs=[{}] * 3 + [{"what": "system_exit", "phase": "constructor"}])


NO_NOISE = """
import multiverse as mv
from tests.envs import Walk

class Holder:
    pass

for executor in ("serial", "thread", "process", "hybrid"):
    holder = Holder()
    holder.me = holder
    holder.envs = mv.make_vec(Walk, 2, executor)
    holder.envs.reset(seed=0)
kept = [mv.make_vec(Walk, 2, executor) for executor in ("serial", "thread", "process", "hybrid")]
say("pids", *children())
"""


@pytest.mark.fault("A13")
def test_vector_envs_in_cycles_or_globals_print_nothing_at_exit() -> None:
    """In Python's development mode, which reports everything that is not closed."""
    (line,) = quiet_program(NO_NOISE, python=("-X", "dev"))
    assert still_alive(int(pid) for pid in line.split()[1:]) == []

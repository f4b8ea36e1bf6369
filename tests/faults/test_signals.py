"""Row A14: Ctrl-C and SIGTERM, once or twice, end a program as those signals do, quietly and with no process left."""

from __future__ import annotations

import signal
import sys

import pytest

from tests.faults.programs import Victim

PROGRAM = """
import signal, threading
import numpy as np
import multiverse as mv
from tests.fault_envs import Fault

executor, method, doing, close_timeout_s = sys.argv[1:5]
count = None if executor == "serial" else 1 if executor == "hybrid" else 2
workers = mv.WorkerOptions(count=count, start_method=None if method == "-" else method)
timeouts = mv.Timeouts(close_s=float(close_timeout_s))
kwargs = [{}] * 3 + [{"what": "sleep"} if doing == "waiting" else {}]
envs = mv.make_vec(Fault, 4, executor, env_kwargs=kwargs, workers=workers, timeouts=timeouts)
envs.reset(seed=0)
say("pids", *children())
actions = np.zeros(4, np.int64)
if doing == "stepping":
    say("stuck")
    while True:
        envs.step(actions)
elif doing == "waiting":
    envs.step(actions)
else:
    say("stuck")
    signal.pause()
"""

FULL = [("process", "forkserver", doing) for doing in ("stepping", "waiting", "idle")]
SMOKE = [
    ("process", "fork", "waiting"),
    ("process", "spawn", "stepping"),
    ("thread", "-", "waiting"),
    ("serial", "-", "waiting"),
    ("hybrid", "forkserver", "waiting"),
]
LONG_S = "60"  # longer than the limit of a test: no test waits for a worker to finish


@pytest.mark.fault("A14")
@pytest.mark.parametrize(("executor", "method", "doing"), [*FULL, *SMOKE])
def test_first_ctrl_c_prints_only_one_python_traceback(executor: str, method: str, doing: str) -> None:
    with Victim(PROGRAM, executor, method, doing, "0.3") as victim:
        victim.lines_until("pids", "stuck")
        victim.send(signal.SIGINT)
        assert victim.end() == -signal.SIGINT
        assert victim.survivors() == []
        assert_only_interrupted(victim.stderr(), tracebacks=1)


@pytest.mark.fault("A14")
@pytest.mark.parametrize(("executor", "method"), [("process", "forkserver"), ("process", "fork"), ("hybrid", "spawn")])
def test_second_ctrl_c_does_not_wait_for_a_hanging_worker(executor: str, method: str) -> None:
    with Victim(PROGRAM, executor, method, "waiting", LONG_S) as victim:
        victim.lines_until("pids", "stuck")
        victim.send(signal.SIGINT)
        victim.wait_for_stderr("KeyboardInterrupt")
        victim.send(signal.SIGINT)
        assert victim.end() == -signal.SIGINT
        assert victim.survivors() == []
        assert_only_interrupted(victim.stderr(), tracebacks=2)


@pytest.mark.fault("A14")
@pytest.mark.parametrize(
    ("executor", "method", "doing", "times"),
    [*((*options, 1) for options in [*FULL, *SMOKE[:4]]), ("process", "forkserver", "waiting", 2)],
)
def test_sigterm_ends_the_program_at_once_and_silently(executor: str, method: str, doing: str, times: int) -> None:
    with Victim(PROGRAM, executor, method, doing, LONG_S) as victim:
        victim.lines_until("pids", "stuck")
        for _ in range(times):
            victim.send(signal.SIGTERM)
        assert victim.end() == -signal.SIGTERM
        assert victim.survivors() == []
        assert victim.stderr() == ""


def assert_only_interrupted(stderr: str, tracebacks: int) -> None:
    """Python's own report of KeyboardInterrupt; one line may name a worker that has to be killed."""
    lines = [line for line in stderr.splitlines() if "has not closed its envs in time" not in line]
    assert len(stderr.splitlines()) - len(lines) <= 1, stderr
    assert stderr.count("Traceback (most recent call last)") <= tracebacks, stderr
    starts = [line for line in lines if not line.startswith((" ", "Traceback", "Exception ignored in"))]
    assert set(starts) <= {"KeyboardInterrupt", "KeyboardInterrupt: ", ""}, stderr
    assert "KeyboardInterrupt" in starts, stderr


COMMANDS = {
    "bench": ["bench", "CartPole-v1", "--seconds", "60"],
    "demo": ["demo", "--no-train", "--seconds", "60"],
}


@pytest.mark.fault("A14")
@pytest.mark.parametrize(
    ("name", "times", "number", "code"),
    [
        *(
            (name, times, number, code)
            for name, times in [("bench", 1), ("bench", 2), ("demo", 1)]
            for number, code in [(signal.SIGINT, 130), (signal.SIGTERM, 143)]
        ),
        ("bench", 1, signal.SIGUSR1, 138),
    ],
)
def test_commands_end_with_the_exit_code_of_the_signal_and_no_traceback(
    name: str, times: int, number: int, code: int
) -> None:
    with Victim(command=[sys.executable, "-m", "multiverse.cli", *COMMANDS[name]]) as victim:
        victim.wait_for_stderr("\n")  # the first round is announced: it measures now
        victim.see_processes()
        for _ in range(times):
            victim.send(number)
        assert victim.end() == code
        assert victim.survivors() == []
        assert "Traceback" not in victim.stderr() and "Exception" not in victim.stderr()
        assert victim.program.stdout is not None and victim.program.stdout.read() == b""

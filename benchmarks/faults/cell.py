"""One cell: a program of its own is run, watched and, whatever it did, taken away with everything it started."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.faults.judge import Seen, Verdict
from benchmarks.faults.scenarios import SCENARIOS, Scenario

ROOT = Path(__file__).resolve().parents[2]
MARK = "FAULT_TABLE_CELL"
START_LIMIT_S = 90.0
"""For imports and starting workers, which is not what is measured."""
LEFT_AFTER_S = 1.0
BROKEN, CRASH = "not measured", "crash"


@dataclass(frozen=True, slots=True)
class Cell:
    """What one library made of one scenario."""

    scenario: str
    contender: str
    verdict: Verdict
    left: tuple[str, ...]  # processes 1 s after the program ended
    close: str  # how its close() went, if it got that far: "", or what is to be said of it


def run_cell(scenario_name: str, contender: str, limit_s: float) -> Cell:
    """Run the program, watch it, judge it."""
    scenario = SCENARIOS[scenario_name]
    with tempfile.TemporaryDirectory() as folder:
        seen = watch(scenario, [scenario_name, contender, folder], Path(folder), limit_s)
    return Cell(scenario_name, contender, decide(scenario, seen), tuple(seen.left), _closing(seen))


def decide(scenario: Scenario, seen: Seen) -> Verdict:
    """The scenario's rule, unless the program did not live to be judged by it."""
    if seen.hung_after is None and not seen.killed and not any(e["event"] == "end" for e in seen.events):
        begun = sum(e["event"] == "begin" for e in seen.events) > 1
        lines = seen.stderr.strip().splitlines() or ["no word"]
        return Verdict(CRASH if begun else BROKEN, lines[-1])
    if seen.hung_after in ("start", "begin") and not any(e["event"] == "made" for e in seen.events):
        return Verdict(BROKEN, f"did not start in {START_LIMIT_S:g} s")
    return scenario.rule(seen)


def _closing(seen: Seen) -> str:
    if seen.hung_after == "closing":
        return "close hangs"
    if seen.hung_after in ("closed", "end"):
        return "exit hangs"
    raised = [e for e in seen.events if e["event"] == "raised" and e["call"] == "close"]
    return f"close raises {raised[0]['type']}" if raised else ""


# -- watching ----------------------------------------------------------------------------------------------------
def watch(scenario: Scenario, arguments: list[str], folder: Path, limit_s: float) -> Seen:
    """Everything the program says until it ends, is killed, or says nothing for too long."""
    mark = f"{MARK}={uuid.uuid4().hex}"
    seen = Seen(dtype=scenario.dtype)
    with open(folder / "stderr", "w+b") as stderr:
        program = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.faults.victim", *arguments],
            cwd=ROOT,
            env={**os.environ, MARK: mark.partition("=")[2]},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            process_group=0,  # not a new session: the kernel would continue stopped members of an orphaned group
        )
        try:
            _listen(program, scenario, seen, limit_s)
            if seen.hung_after is None:
                program.wait()
                seen.left = left_after(mark, LEFT_AFTER_S)
        finally:
            take_away(program, mark)
        stderr.seek(0)
        seen.stderr = stderr.read().decode(errors="replace")
    return seen


def _listen(program: subprocess.Popen[bytes], scenario: Scenario, seen: Seen, limit_s: float) -> None:
    for line in _lines(program, seen, limit_s):
        event = json.loads(line)
        seen.events.append(event)
        if event["event"] == "arrived" and scenario.when_arrived == "kill":
            seen.killed = True
            program.kill()
        elif event["event"] == "arrived" and scenario.when_arrived == "interrupt":
            program.send_signal(signal.SIGINT)
        elif event["event"] == "arrived" and scenario.when_arrived == "interrupt_group":
            os.killpg(program.pid, signal.SIGINT)


def _lines(program: subprocess.Popen[bytes], seen: Seen, limit_s: float) -> Iterator[bytes]:
    """Lines as they come, until the program's end (whoever else may hold its stdout) or its silence."""
    assert program.stdout is not None
    out, end, text = program.stdout.fileno(), os.pidfd_open(program.pid), b""
    os.set_blocking(out, False)
    try:
        while True:
            started = any(event["event"] == "made" for event in seen.events)
            ready, *_ = select.select([out, end], [], [], limit_s if started else START_LIMIT_S)
            if not ready:
                seen.hung_after = seen.events[-1]["event"] if seen.events else "start"
                return
            *lines, text = (text + _read(out)).split(b"\n")
            yield from lines
            if end in ready and not lines:
                return
    finally:
        os.close(end)


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 1 << 20)
    except BlockingIOError:
        return b""


# -- what is left ------------------------------------------------------------------------------------------------
def marked(mark: str) -> list[psutil.Process]:
    """Every live process that was started, by whatever way, from the program with this mark."""
    name, _, value = mark.partition("=")
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(name) == value and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:  # ended meanwhile, or somebody else's
            continue
    return found


def left_after(mark: str, seconds: float) -> list[str]:
    """Command lines of those still alive after that time; at once if nobody is left before."""
    deadline = time.monotonic() + seconds
    while (left := marked(mark)) and time.monotonic() < deadline:
        time.sleep(0.02)  # nobody tells of the end of a process that is not a child
    return [_command(process) for process in left]


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return "?"


def take_away(program: subprocess.Popen[bytes], mark: str) -> None:
    """Kill the program and everybody it started, until nobody is left."""
    program.kill()
    program.wait()
    while left := marked(mark):
        for process in left:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        psutil.wait_procs(left, timeout=1.0)
    if program.stdout is not None:
        program.stdout.close()

"""One cell of the table: run a program, watch it, and kill it with everything it started."""

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

from benchmarks.faults.judge import Record, Verdict
from benchmarks.faults.scenarios import SCENARIOS, Scenario

ROOT = Path(__file__).resolve().parents[2]
MARK = "FAULT_TABLE_CELL"
START_LIMIT_S = 90.0
"""Time limit of imports and the start of workers, which are not measured."""
LEFT_AFTER_S = 1.0
BROKEN, CRASH = "not measured", "crash"


@dataclass(frozen=True, slots=True)
class Cell:
    """Result of one library in one scenario."""

    scenario: str
    contender: str
    verdict: Verdict
    left: tuple[str, ...]  # processes 1 s after the program ended
    close: str  # problem of close(), or "" if there was none


def run_cell(scenario_name: str, contender: str, limit_s: float) -> Cell:
    """Run the program of a cell, watch it and judge it."""
    scenario = SCENARIOS[scenario_name]
    with tempfile.TemporaryDirectory() as folder:
        record = watch(scenario, [scenario_name, contender, folder], Path(folder), limit_s)
    return Cell(scenario_name, contender, decide(scenario, record), tuple(record.left), _closing(record))


def decide(scenario: Scenario, record: Record) -> Verdict:
    """Apply the rule of the scenario, unless the program crashed or did not start."""
    if record.hung_after is None and not record.killed and not any(e["event"] == "end" for e in record.events):
        begun = sum(e["event"] == "begin" for e in record.events) > 1
        lines = record.stderr.strip().splitlines() or ["no output"]
        return Verdict(CRASH if begun else BROKEN, lines[-1])
    if record.hung_after in ("start", "begin") and not any(e["event"] == "made" for e in record.events):
        return Verdict(BROKEN, f"did not start in {START_LIMIT_S:g} s")
    return scenario.rule(record)


def _closing(record: Record) -> str:
    if record.hung_after == "closing":
        return "close hangs"
    if record.hung_after in ("closed", "end"):
        return "exit hangs"
    raised = [e for e in record.events if e["event"] == "raised" and e["call"] == "close"]
    return f"close raises {raised[0]['type']}" if raised else ""


# -- watching ----------------------------------------------------------------------------------------------------
def watch(scenario: Scenario, arguments: list[str], folder: Path, limit_s: float) -> Record:
    """Record the output of the program until it ends, is killed, or is silent for too long."""
    mark = f"{MARK}={uuid.uuid4().hex}"
    record = Record(dtype=scenario.dtype)
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
            _listen(program, scenario, record, limit_s)
            if record.hung_after is None:
                program.wait()
                record.left = left_after(mark, LEFT_AFTER_S)
        finally:
            kill_all(program, mark)
        stderr.seek(0)
        record.stderr = stderr.read().decode(errors="replace")
    return record


def _listen(program: subprocess.Popen[bytes], scenario: Scenario, record: Record, limit_s: float) -> None:
    for line in _lines(program, record, limit_s):
        event = json.loads(line)
        record.events.append(event)
        if event["event"] == "arrived" and scenario.on_arrival == "kill":
            record.killed = True
            program.kill()
        elif event["event"] == "arrived" and scenario.on_arrival == "interrupt":
            program.send_signal(signal.SIGINT)
        elif event["event"] == "arrived" and scenario.on_arrival == "interrupt_group":
            os.killpg(program.pid, signal.SIGINT)


def _lines(program: subprocess.Popen[bytes], record: Record, limit_s: float) -> Iterator[bytes]:
    """Yield lines until the program ends (even if other processes hold its stdout) or is silent for too long."""
    assert program.stdout is not None
    out, end, text = program.stdout.fileno(), os.pidfd_open(program.pid), b""
    os.set_blocking(out, False)
    try:
        while True:
            started = any(event["event"] == "made" for event in record.events)
            ready, *_ = select.select([out, end], [], [], limit_s if started else START_LIMIT_S)
            if not ready:
                record.hung_after = record.events[-1]["event"] if record.events else "start"
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


# -- remaining processes -----------------------------------------------------------------------------------------
def marked(mark: str) -> list[psutil.Process]:
    """Return all live processes that the program with this mark has started, directly or indirectly."""
    name, _, value = mark.partition("=")
    processes = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(name) == value and process.status() != psutil.STATUS_ZOMBIE:
                processes.append(process)
        except psutil.Error:  # ended meanwhile, or owned by another user
            continue
    return processes


def left_after(mark: str, seconds: float) -> list[str]:
    """Return the command lines of processes that are still alive after `seconds`, earlier if none is left."""
    deadline = time.monotonic() + seconds
    while (left := marked(mark)) and time.monotonic() < deadline:
        time.sleep(0.02)  # the end of a process that is not a child cannot be waited for
    return [_command(process) for process in left]


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return "?"


def kill_all(program: subprocess.Popen[bytes], mark: str) -> None:
    """Kill the program and all processes it started, until none is left."""
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

"""Whole programs as victims: what they print, how they end, and whether anybody outlives them."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from tests.processes import still_alive

ROOT = Path(__file__).parents[2]
LIMIT_S = 20
GONE_S = 10

PRELUDE = f"""
import faulthandler, os, sys
os.setpgrp()  # a group of its own in the same session: stopped members of an orphaned group would be continued
faulthandler.dump_traceback_later({LIMIT_S}, exit=True)
import psutil

def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

def children():
    return [p.pid for p in psutil.Process().children(recursive=True)]
"""


def hear_ctrl_c() -> None:
    """What a shell starts in the background ignores SIGINT, and so would whatever these tests start."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Victim:
    """A program of ours, or a command, with the processes it says (or is seen) to have; nobody is left at the end."""

    def __init__(self, text: str = "", *arguments: str, command: list[str] | None = None) -> None:
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self.program = subprocess.Popen(
            command or [sys.executable, "-c", PRELUDE + text, *arguments],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            process_group=0 if command else None,
            preexec_fn=hear_ctrl_c,
        )
        self.pids: set[int] = set()
        self._said = b""

    def __enter__(self) -> Victim:
        return self

    def line(self) -> list[str]:
        """The words of the next line it prints."""
        assert self.program.stdout is not None
        fd, give_up = self.program.stdout.fileno(), time.monotonic() + LIMIT_S
        while b"\n" not in self._said:
            ready, _, _ = select.select([fd], [], [], max(0.0, give_up - time.monotonic()))
            more = os.read(fd, 4096) if ready else b""
            assert more, f"it said {self._said!r} and no more; on stderr: {self.stderr()}"
            self._said += more
        first, _, self._said = self._said.partition(b"\n")
        return first.decode().split()

    def lines_until(self, *awaited: str) -> dict[str, list[str]]:
        """Read on until every awaited first word was said, in any order; what came after each. `pids …` names its
        processes."""
        found: dict[str, list[str]] = {}
        while not found.keys() >= set(awaited):
            word, *rest = self.line()
            found[word] = rest
            if word == "pids":
                self.pids |= {int(pid) for pid in rest}
        return found

    def wait_for_stderr(self, text: str) -> None:
        give_up = time.monotonic() + LIMIT_S
        while text not in self.stderr():
            assert time.monotonic() < give_up, self.stderr()
            time.sleep(0.01)  # a file tells nobody that it grows

    def see_processes(self) -> None:
        """For a command that does not tell: the processes it has now."""
        self.pids |= {p.pid for p in psutil.Process(self.program.pid).children(recursive=True)}

    def send(self, number: int) -> None:
        """As a terminal (SIGINT: to the whole group) or a supervisor (anything else: to the program) does."""
        if number == signal.SIGINT:
            os.killpg(self.program.pid, number)
        else:
            os.kill(self.program.pid, number)

    def end(self) -> int:
        """Its exit code, negative for a signal."""
        return self.program.wait(LIMIT_S)

    def survivors(self) -> list[int]:
        return still_alive(self.pids, GONE_S)

    def stderr(self) -> str:
        self._errors.seek(0)
        return self._errors.read()

    def __exit__(self, *exception: object) -> None:
        self.program.kill()
        self.program.wait()
        for pid in still_alive(self.pids, 0):
            os.kill(pid, signal.SIGKILL)
        assert self.program.stdout is not None
        self.program.stdout.close()
        self._errors.close()


def quiet_program(text: str, *arguments: str, python: tuple[str, ...] = ()) -> list[str]:
    """The lines that a program prints which must end well and say nothing on stderr."""
    command = [sys.executable, *python, "-c", PRELUDE + text, *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S + 10)
    assert (done.returncode, done.stderr) == (0, ""), (done.returncode, done.stderr)
    return done.stdout.splitlines()

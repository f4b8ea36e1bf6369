"""Programs that tests end: their output, their exit codes, and the processes that survive them."""

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
os.setpgrp()  # a separate group in the same session: stopped members of an orphaned group would be continued
faulthandler.dump_traceback_later({LIMIT_S}, exit=True)
import psutil

def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

def children():
    return [p.pid for p in psutil.Process().children(recursive=True)]
"""


def restore_sigint() -> None:
    """Undo that a shell makes its background programs ignore SIGINT: the programs of tests would inherit it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Victim:
    """A program or a command, with the processes that it reports or is observed to have; all are killed at the end."""

    def __init__(self, text: str = "", *arguments: str, command: list[str] | None = None) -> None:
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self.program = subprocess.Popen(
            command or [sys.executable, "-c", PRELUDE + text, *arguments],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            process_group=0 if command else None,
            preexec_fn=restore_sigint,
        )
        self.pids: set[int] = set()
        self._unread = b""

    def __enter__(self) -> Victim:
        return self

    def line(self) -> list[str]:
        """Return the words of the next line that it prints."""
        assert self.program.stdout is not None
        fd, give_up = self.program.stdout.fileno(), time.monotonic() + LIMIT_S
        while b"\n" not in self._unread:
            ready, _, _ = select.select([fd], [], [], max(0.0, give_up - time.monotonic()))
            more = os.read(fd, 4096) if ready else b""
            assert more, f"it printed {self._unread!r} and no more; on stderr: {self.stderr()}"
            self._unread += more
        first, _, self._unread = self._unread.partition(b"\n")
        return first.decode().split()

    def lines_until(self, *awaited: str) -> dict[str, list[str]]:
        """Read lines until each awaited first word was printed, in any order; return the rest of each line. A line
        `pids …` names its processes."""
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
            time.sleep(0.01)  # the growth of a file cannot be awaited

    def see_processes(self) -> None:
        """Add the processes that it has now, for a command that does not report them."""
        self.pids |= {p.pid for p in psutil.Process(self.program.pid).children(recursive=True)}

    def send(self, number: int) -> None:
        """Send a signal as a terminal does (SIGINT: to the whole group) or a supervisor (any other: to the program)."""
        if number == signal.SIGINT:
            os.killpg(self.program.pid, number)
        else:
            os.kill(self.program.pid, number)

    def end(self) -> int:
        """Wait for the end and return the exit code, negative for a signal."""
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
    """Run a program that must succeed and print nothing on stderr; return the lines that it prints."""
    command = [sys.executable, *python, "-c", PRELUDE + text, *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S + 10)
    assert (done.returncode, done.stderr) == (0, ""), (done.returncode, done.stderr)
    return done.stdout.splitlines()

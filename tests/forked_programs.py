"""Programs in separate processes, for example to be killed: forks of a server that has imported their modules."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType

TRAINING = (
    "multiverse.training.run",
    "multiverse.training.loading",
    "multiverse.algorithms.ppo",
    "gymnasium.envs.classic_control",
)
"""Modules that a small training imports."""

_SERVER = """
import importlib, json, os, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
os.fsync = os.fstat  # as in the tests: do not wait for the disk
for line in sys.stdin:
    code, arguments, *outputs = json.loads(line)
    pid = os.fork()
    if pid == 0:
        break
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
else:
    sys.exit()
for number, path in enumerate([os.devnull, *outputs]):
    os.dup2(os.open(path, os.O_RDWR), number)
sys.argv = ["-c", *arguments]
exec(compile(code, "<string>", "exec"))
"""


class ForkedPrograms:
    """Run programs like `python -c code …`, one at a time; `modules` are imported beforehand."""

    def __init__(self, *modules: str) -> None:
        command = [sys.executable, "-c", _SERVER, *modules]
        self._server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> ForkedPrograms:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._server.communicate()

    def run(self, code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        assert self._server.stdin is not None and self._server.stdout is not None
        with tempfile.NamedTemporaryFile() as out, tempfile.NamedTemporaryFile() as err:
            self._server.stdin.write(json.dumps([code, arguments, out.name, err.name]) + "\n")
            self._server.stdin.flush()
            returncode = int(self._server.stdout.readline())
            outputs = (Path(file.name).read_text() for file in (out, err))
            return subprocess.CompletedProcess(["-c", *arguments], returncode, *outputs)

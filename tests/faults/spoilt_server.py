"""A replacement of the fork server whose next fork fails or waits if the folder `SPOILT_SERVER` has a file for it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from multiverse.executors.launch import server_loop

run_fresh = server_loop.run_fresh

FOLDER = "SPOILT_SERVER"
FAILS, WAITS = "fails", "waits"
_fork = os.fork


def fork() -> int:
    folder = Path(os.environ[FOLDER])
    if (folder / FAILS).exists():
        (folder / FAILS).unlink()
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    if (folder / WAITS).exists():
        (folder / WAITS).read_bytes()  # a named pipe: blocks until a writer opens it
        (folder / WAITS).unlink()
    return _fork()


def serve(control_fd: int, caller: int) -> None:
    os.fork = fork
    server_loop.serve(control_fd, caller)

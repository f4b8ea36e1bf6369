"""The first and last steps of every worker process, with any start method."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable

from multiverse.executors.launch import orphan_guard
from multiverse.executors.launch.black_box import CALLERS_SIGNALS


def run_as_worker(run: Callable[[], int], guard: Callable[[], object]) -> None:
    """In a new child process: ensure that it ends with its caller, run, and end the process. Never returns."""
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        for number in CALLERS_SIGNALS:  # sent to the whole process group, and handled by the caller
            # guard: ctrl-c-is-the-callers
            signal.signal(number, signal.SIG_IGN)
        orphan_guard.lead_own_group()
        guard()
        with open(os.devnull, "rb") as nothing:
            os.dup2(nothing.fileno(), 0)  # an env that reads input gets an end of file and does not hang
        code = run()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        flush_output()
        os._exit(code)


def flush_output() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:  # closed, or missing (a program without a console)
            pass

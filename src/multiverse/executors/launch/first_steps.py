"""What every worker process does first and last, however it was started."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable

from multiverse.executors.launch import orphan_guard
from multiverse.executors.launch.black_box import CALLERS_SIGNALS


def run_as_worker(run: Callable[[], int], guard: Callable[[], object]) -> None:
    """In a fresh child: make sure it dies with its caller, run, and end the process. Never returns."""
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        for number in CALLERS_SIGNALS:  # a whole group may get these, and the caller handles them
            # guard: ctrl-c-is-the-callers
            signal.signal(number, signal.SIG_IGN)
        orphan_guard.lead_own_group()
        guard()
        with open(os.devnull, "rb") as nothing:
            os.dup2(nothing.fileno(), 0)  # an env that asks for input gets an end of file, not a hang
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
        except Exception:  # closed, or never there (a program without a console)
            pass

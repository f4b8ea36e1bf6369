"""No worker outlives its program, however suddenly that ends and whatever the worker is doing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import still_alive

ROOT = Path(__file__).parents[2]
DEADLINE_S = 15

PROGRAM = """
import os, signal, sys, threading
os.setpgrp()
import numpy as np
import psutil
import multiverse as mv
from tests.fault_envs import Fault

def work():
    method, doing = sys.argv[1:3]
    kwargs = [{}, {"what": "hold_the_gil"} if doing == "gil" else {}]
    envs = mv.make_vec(Fault, 2, "process", workers=mv.WorkerOptions(count=2, start_method=method), env_kwargs=kwargs)
    envs.reset(seed=0)
    if doing == "gil":
        envs.send(np.zeros(2, np.int64))
    pids = " ".join(str(p.pid) for p in psutil.Process().children(recursive=True))
    os.write(1, f"pids {pids}\\n".encode())  # in one piece: a worker writes there too
    signal.pause() if threading.current_thread() is threading.main_thread() else threading.Event().wait()

if sys.argv[3] == "main":
    work()
else:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
"""


@pytest.mark.fault("A11")
@pytest.mark.parametrize(
    ("method", "doing", "thread"),
    [
        *((method, doing, "main") for method in ("forkserver", "fork", "spawn") for doing in ("idle", "gil")),
        # The kernel's own guard follows the thread that forked, so it cannot be used here.
        *(("fork", doing, "other") for doing in ("idle", "gil")),
    ],
)
def test_workers_die_with_a_killed_program(method: str, doing: str, thread: str) -> None:
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, method, doing, thread], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    workers: list[int] = []
    try:
        assert program.stdout is not None
        lines = [program.stdout.readline() for _ in range(1 if doing == "idle" else 2)]
        assert sorted(line.split()[0] for line in lines) == (["pids"] if doing == "idle" else ["pids", "stuck"])
        workers = [int(pid) for line in lines for pid in line.split()[1:]]
        assert len(workers) >= 2
        program.kill()
        program.wait()
        assert still_alive(workers, DEADLINE_S) == []
    finally:
        program.kill()
        for pid in still_alive(workers, 0):
            os.kill(pid, signal.SIGKILL)
        program.communicate()  # after them: they hold the other end of its output

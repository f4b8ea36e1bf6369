"""Runs in parallel processes: those of several seeds, and the trials of a search."""

from __future__ import annotations

import dataclasses
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from multiverse.adapters.registered import additions
from multiverse.core.errors import MultiverseError
from multiverse.core.plan import IN_CALLER
from multiverse.executors.launch.fork_server import fork_server
from multiverse.executors.launch.orphan_guard import end_with
from multiverse.executors.machine import usable_cores
from multiverse.ipc.interrupts import EXIT_CODES, SAVE, end_on_request, ended_on_request
from multiverse.training.config.train_config import TrainConfig

SAVING_S = 60.0
"""Time for runs to save themselves when all of them are interrupted."""

Order = Mapping[str, Any]
"""Order to a process, in values that JSON can hold."""


def share_of_cores(config: TrainConfig, count: int) -> tuple[int, TrainConfig]:
    """Return (number of parallel runs, config with the number of workers that each may have)."""
    cores, alone = usable_cores(), config.executor == IN_CALLER
    if sys.platform == "win32":  # it has no process groups, and nothing that ends a process with ours
        return 1, config
    at_once = max(1, min(count, cores // (1 if alone else config.workers or 1)))
    if at_once > 1 and not alone and config.workers is None:
        config = dataclasses.replace(config, workers=max(1, cores // at_once))
    return at_once, config


@ended_on_request()  # guard: a-set-asks-its-runs-to-save
def run_in_processes(
    orders: Iterator[tuple[int, Order]],
    at_once: int,
    module: str,
    heard: Callable[[int, str], None],
    ended: Callable[[int, str | None], None],
) -> None:
    """Run `module.child(order)` in a process for each of these orders, which are numbered. The next order is taken when
    a process has ended. No process is left when this returns or raises.

    `heard`: called with each line that a process prints; `ended`: called at its end, with the reason if it failed.
    """
    lines: queue.SimpleQueue[tuple[int, str | None]] = queue.SimpleQueue()
    running, last = dict[int, subprocess.Popen[str]](), dict[int, str]()
    try:
        while True:
            while len(running) < at_once and (order := next(orders, None)) is not None:
                number = order[0]
                running[number] = _start({**order[1], "module": module})
                threading.Thread(target=_listen, args=(number, running[number], lines), daemon=True).start()
            if not running:
                return
            number, line = lines.get()
            if line is not None:
                last[number] = line
                heard(number, line)
            else:
                code = running.pop(number).wait()
                ended(number, None if code == 0 else _why(code, last.get(number, "it printed nothing")))
    except BaseException:
        _end(running.values())
        raise


def _why(code: int, last: str) -> str:
    return last if code > 0 else f"it was killed by {signal.Signals(-code).name}"


_CHILD = """
import importlib, json, sys
order = json.load(sys.stdin)
sys.path[:] = order.pop("path")
importlib.import_module("multiverse.adapters.registered").Registered.from_text(order.pop("registered")).adopt()
sys.exit(importlib.import_module(order.pop("module")).child(order))
"""


def _start(order: Order) -> subprocess.Popen[str]:
    """Start a process. It leads its own process group, so that Ctrl-C in a terminal reaches it only through us."""
    surroundings = {"path": sys.path, "registered": additions(fork_server().registered()).as_text()}
    child = subprocess.Popen(
        [sys.executable, "-c", _CHILD, str(os.getpid())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        process_group=0,
    )
    assert child.stdin is not None
    try:
        child.stdin.write(json.dumps({**order, **surroundings}))  # with secrets, which are in no file or command line
        child.stdin.close()
    except OSError:  # it has already ended, with a reason
        pass
    return child


def _listen(number: int, child: subprocess.Popen[str], lines: queue.SimpleQueue[tuple[int, str | None]]) -> None:
    assert child.stdout is not None
    with child.stdout:
        for line in child.stdout:
            lines.put((number, line.rstrip("\n")))
    lines.put((number, None))


def _end(running: Iterable[subprocess.Popen[str]]) -> None:
    """Ask each process to save itself and end; kill those that take too long, or all after a second interrupt."""
    try:
        for child in running:
            child.send_signal(SAVE or signal.SIGINT)  # not SIGINT: a process may have got Ctrl-C with this program
        deadline = time.monotonic() + SAVING_S
        for child in running:
            child.wait(max(0.0, deadline - time.monotonic()))
    except (subprocess.TimeoutExpired, KeyboardInterrupt, SystemExit):
        pass
    finally:
        for child in running:
            child.kill()  # has no effect if it has ended
            child.wait()


def in_child(run: Callable[[], object]) -> int:
    """Run in a process that ends with its parent; print the reason of a failure. Return the exit status."""
    end_with(int(sys.argv[1]))
    for number in EXIT_CODES:
        signal.signal(number, end_on_request)
    try:
        run()
    except MultiverseError as error:
        sys.stdout.write(f"{next(iter(str(error).strip().splitlines()), type(error).__name__)}\n")
        return 1
    except KeyboardInterrupt:
        return 130
    return 0

"""The program in which a fault happens: `python -m benchmarks.faults.victim SCENARIO CONTENDER FOLDER`.

It steps three envs, one of which fails, and writes the results as JSON lines. It ends like a user's program: it closes
the vector env and returns.
"""

from __future__ import annotations

import functools
import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.faults.contenders import CONTENDERS, Contender
from benchmarks.faults.envs import FAULT_AT, NUM_ACTIONS, ScheduledFault, action_at
from benchmarks.faults.judge import NUM_ENVS, SEED, VICTIM
from benchmarks.faults.scenarios import SCENARIOS, Scenario

STEPS_AFTER = 3
"""Enough to see the reset of an env and two steps, but too few for a second failure."""


def emit(event: str, **facts: Any) -> None:
    os.write(1, (json.dumps({"event": event, "at": time.monotonic(), **facts}) + "\n").encode())


def attempt(call: str, action: Callable[[], Any], **facts: Any) -> bool:
    """Call a function and emit its result; return False if it raised."""
    try:
        rows = action()
    except BaseException as error:  # Ctrl-C too
        emit("raised", call=call, type=type(error).__name__, text=_all_text(error), **facts)
        return False
    emit("returned", call=call, rows=None if rows is None else [asdict(row) for row in rows], **facts)
    return True


def _all_text(error: BaseException | None) -> str:
    """Return types and messages of an exception, its notes and its causes."""
    if error is None:
        return ""
    notes = getattr(error, "__notes__", [])
    return "\n".join([f"{type(error).__name__}: {error}", *notes, _all_text(error.__cause__)])


class Program:
    """A vector env and the actions of a scenario."""

    def __init__(self, scenario: Scenario, folder: Path) -> None:
        self.scenario, self.gate = scenario, folder / "gate"
        os.mkfifo(self.gate)
        self.envs: Contender

    def make(self, contender: str) -> None:
        each = [dict(self.scenario.env_options.get(i, {}), dtype=self.scenario.dtype) for i in range(NUM_ENVS)]
        makers = [functools.partial(ScheduledFault, gate=str(self.gate), **options) for options in each]
        self.envs = CONTENDERS[contender](makers)

    def good_steps(self) -> None:
        self.envs.reset(SEED)
        for k in range(1, FAULT_AT):
            self.envs.step(self._actions(k))

    def step(self, k: int) -> bool:
        return attempt("step", lambda: self.envs.step(self._actions(k)), step=k)

    def _actions(self, k: int) -> np.ndarray:
        return np.full(NUM_ENVS, action_at(k), np.int64)

    # -- actions at the fault and after it ----------------------------------------------------------------------------
    def step_on(self) -> None:
        for k in range(FAULT_AT, FAULT_AT + STEPS_AFTER + 1):
            if not self.step(k):
                return

    def kill_worker(self) -> None:
        pid = self.envs.worker_pids[VICTIM]
        end = os.pidfd_open(pid)
        os.kill(pid, signal.SIGKILL)
        select.select([end], [], [])  # until it is dead
        self.step_on()

    def stop_worker(self) -> None:
        os.kill(self.envs.worker_pids[VICTIM], signal.SIGSTOP)
        self.step_on()

    def reset_again(self) -> None:
        if attempt("reset", lambda: self.envs.reset(SEED)):
            for k in (1, 2):
                self.step(k)

    def continue_after_error(self) -> None:
        """Receive the result of the failed step if the library can provide it; then continue stepping."""
        if not self.step(FAULT_AT):
            if self.scenario.opens_gate:
                self.gate.write_bytes(b"")
            attempt("finish", self.envs.finish, step=FAULT_AT)
        for k in (FAULT_AT + 1, FAULT_AT + 2):
            self.step(k)

    def too_few_actions(self) -> None:
        few = np.full(NUM_ENVS - 1, NUM_ACTIONS - 1, np.int64)
        attempt("short step", lambda: self.envs.step(few), step=FAULT_AT)
        for k in (FAULT_AT, FAULT_AT + 1):
            self.step(k)

    def close_only(self) -> None:
        pass

    def stop_worker_and_close(self) -> None:
        os.kill(self.envs.worker_pids[VICTIM], signal.SIGSTOP)

    def wait_for_the_end(self) -> None:
        emit("arrived")
        signal.pause()


def main() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # shells ignore SIGINT in background processes
    scenario, contender, folder = SCENARIOS[sys.argv[1]], sys.argv[2], Path(sys.argv[3])
    program = Program(scenario, folder)
    emit("begin")
    if not attempt("make", lambda: program.make(contender)):
        return emit("end")
    emit("made")
    if not scenario.from_the_start:
        program.good_steps()
        emit("begin")
        getattr(program, scenario.action)()
    elif attempt("reset", lambda: program.envs.reset(SEED)):
        program.step(1)
    emit("closing")
    try:
        program.envs.close()
        emit("closed")
    except BaseException as error:
        emit("raised", call="close", type=type(error).__name__, text=_all_text(error))
    emit("end")


if __name__ == "__main__":
    main()

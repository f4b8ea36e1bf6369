"""Self-test of `multiverse doctor`: all executors and start methods give the same bits, and leave nothing behind."""

from __future__ import annotations

import functools
import gc
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import gymnasium
import numpy as np

import multiverse as mv
from multiverse.core.layout import Array
from multiverse.executors import machine, process
from multiverse.executors.launch import fork_server
from multiverse.measure import AnyVectorEnv, descendants

ENV, NUM_ENVS, STEPS, SEED = "CartPole-v1", 5, 200, 7
FIELDS = ("observations", "rewards", "terminated", "truncated")
SETTLE_S = 3.0

Trajectory = list[tuple[Array, ...]]
Make = Callable[[], AnyVectorEnv]


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of one check of the self-test."""

    name: str
    passed: bool
    detail: str
    seconds: float


def run_self_test() -> Iterator[Outcome]:
    """Yield the outcomes: serial compared with Gymnasium, the others compared with serial, and the check for leaks."""
    if process.usable_here():
        fork_server.fork_server()  # lives as long as the program, so it is started before resources are counted
    before = Resources.now()
    reference: list[Trajectory] = []

    def check_serial() -> str:
        reference.append(trajectory(lambda: mv.make_vec(ENV, NUM_ENVS, "serial")))
        gymnasium_rows = trajectory(lambda: gymnasium.make_vec(ENV, NUM_ENVS, vectorization_mode="sync"))
        return difference(reference[0], gymnasium_rows)

    def check_like_serial(make: Make) -> str:
        return difference(trajectory(make), reference[0]) if reference else "not compared, because serial failed"

    yield outcome("serial equals SyncVectorEnv", check_serial)
    for name, make in contenders().items():
        yield outcome(f"{name} equals serial", functools.partial(check_like_serial, make))
    yield outcome("nothing left behind", lambda: left_behind(before))


def contenders() -> dict[str, Make]:
    """Return every executor and start method of this platform except serial."""
    vec = functools.partial(mv.make_vec, ENV, NUM_ENVS, workers=2)
    makers: dict[str, Make] = {"thread": functools.partial(vec, "thread")}
    if process.usable_here():
        for method in ("forkserver", "fork", "spawn"):
            makers[f"process ({method})"] = functools.partial(vec, "process", start_method=method)
        makers["hybrid"] = functools.partial(vec, "hybrid")
    return makers


def outcome(name: str, check: Callable[[], str]) -> Outcome:
    """Run one check, which returns the problem that it found, or ''."""
    started = time.perf_counter()
    try:
        problem = check()
    except Exception as error:
        first_line = next(iter(str(error).splitlines()), "")
        problem = f"{type(error).__name__}: {first_line}"
    detail = problem or f"{STEPS} steps of {NUM_ENVS} envs"
    return Outcome(name, not problem, detail, time.perf_counter() - started)


# -- equal results ---------------------------------------------------------------------------------------------
def trajectory(make: Make) -> Trajectory:
    """Return the results of a vector env for the fixed seeds and actions of the test."""
    actions = np.random.default_rng(SEED).integers(0, 2, (STEPS, NUM_ENVS))
    envs = make()
    try:
        observations, _ = envs.reset(seed=SEED)
        rows: Trajectory = [(observations,)]
        for batch in actions:
            rows.append(envs.step(batch)[:4])
        return rows
    finally:
        envs.close()


def difference(first: Trajectory, second: Trajectory) -> str:
    """Describe the first difference of two trajectories; '' if they are equal bit for bit."""
    for number, rows in enumerate(zip(first, second, strict=True)):
        for name, a, b in zip(FIELDS, *rows):
            if a.dtype != b.dtype or a.shape != b.shape or a.tobytes() != b.tobytes():
                return f"{name} differ {f'at step {number}' if number else 'after reset'}"
    return ""


# -- leaks -----------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Resources:
    """Descendants, open files and threads of this process."""

    processes: frozenset[int]
    open_files: int
    threads: frozenset[str]

    @classmethod
    def now(cls) -> Resources:
        gc.collect()
        threads = frozenset(f"{t.name} ({t.ident})" for t in threading.enumerate())
        return cls(frozenset(descendants()), machine.open_descriptors(), threads)


def left_behind(before: Resources) -> str:
    """Describe the resources that are left after `SETTLE_S` and were not there before; '' if there are none."""
    give_up = time.monotonic() + SETTLE_S
    while True:
        description = more_than(Resources.now(), before)
        if not description or time.monotonic() > give_up:
            return description
        time.sleep(0.05)


def more_than(now: Resources, before: Resources) -> str:
    """Describe the resources that are in `now` and not in `before`; '' if there are none."""
    processes, threads = sorted(now.processes - before.processes), sorted(now.threads - before.threads)
    open_files = now.open_files - before.open_files
    parts = [f"processes {processes}"] if processes else []
    parts += [f"{open_files} open files"] if open_files > 0 else []
    parts += [f"threads {', '.join(threads)}"] if threads else []
    return f"left behind: {'; '.join(parts)}" if parts else ""

"""Checks of building and closing, of leaks (threads, processes, files, memory), and of the cost of a step."""

from __future__ import annotations

import gc
import statistics
import threading
import time
from collections.abc import Iterator, Mapping
from itertools import cycle
from typing import Any

import gymnasium
import psutil

from multiverse.core.plan import IN_CALLER
from multiverse.env_checker.catalogue import make_finding
from multiverse.env_checker.laboratory import STEP, Where
from multiverse.env_checker.report import Finding
from multiverse.env_checker.subject import EnvRaised, Stopwatch, Subject, TeamEnv, WatchedEnv
from multiverse.env_checker.trajectory import rollout
from multiverse.executors import machine
from multiverse.executors.choose import BUSY_SHARE, Others, faster, predicted

PATIENCE_S = 1.0
"""Time that threads and processes have to end."""

CYCLES, CYCLES_S = 5, 2.0
STEPS_PER_CYCLE = 5
RESETS, RESETS_S = 2_000, 1.5
SOME_MEMORY = 4_000_000
"""Growth in bytes that is attributed to allocators and caches."""


# -- building and closing --------------------------------------------------------------------------------------
def check_building(subject: Subject) -> Iterator[Finding]:
    """Build two envs side by side, and close each of them twice."""
    first = subject.build()
    if not isinstance(first.env, gymnasium.Env | TeamEnv):
        yield make_finding("not-an-env", f"the factory returned {_what(first.env)}")
        return
    if isinstance(first.env, TeamEnv) and not first.env.possible_agents:
        yield make_finding("possible-agents", f"{type(first.env.foreign).__name__} has no possible_agents")
        return
    envs = [first]
    try:
        envs.append(subject.build())
    except EnvRaised as raised:
        yield make_finding("build-again-failed", f"a second env beside the first: {raised.words()}")
    own, other = (getattr(env.env, "foreign", env.env) for env in (first, envs[-1]))
    if other is own and len(envs) == 2:
        yield make_finding("same-env-again", f"two calls of the factory returned the same {type(own).__name__}")
        envs.pop()
    for env in envs:
        problem = _closed_twice(env)
        if problem is not None:
            yield problem
            return


def _what(env: Any) -> str:
    kind = type(env)
    if isinstance(env, gymnasium.vector.VectorEnv):
        return f"{kind.__qualname__}, which is a vector env: expected a single env"
    return f"{kind.__module__}.{kind.__qualname__}, which is neither a gymnasium.Env nor a PettingZoo env"


def _closed_twice(env: WatchedEnv) -> Finding | None:
    try:
        env.close()
    except EnvRaised as raised:
        return raised.finding()
    try:
        env.close()
    except EnvRaised as raised:
        return make_finding("close-twice", f"the second close() raised {raised.words()}")
    return None


# -- leaks -----------------------------------------------------------------------------------------------------
def check_leaks(subject: Subject) -> Iterator[Finding]:
    """Build, step and close a few times, and count threads, processes and descriptors that each time adds."""
    _cycle(subject)  # the first one loads imports, caches and pools
    threads, processes = set(threading.enumerate()), _processes()
    descriptors = machine.open_descriptors()
    cycles, watch = 0, Stopwatch(CYCLES_S)
    while cycles < 2 or (cycles < CYCLES and not watch.over):
        _cycle(subject)
        cycles += 1
    left = _ended_late(set(threading.enumerate()) - threads)
    if len(left) >= cycles:
        names = ", ".join(sorted({thread.name for thread in left})[:3])
        yield make_finding("threads-left", f"{len(left)} threads after {cycles} × build, step, close: {names}, ...")
    _, alive = psutil.wait_procs(_processes() - processes, timeout=PATIENCE_S)
    if len(alive) >= cycles:
        yield make_finding(
            "processes-left", f"{len(alive)} processes after {cycles} × build, step, close: {_name(alive[0])}"
        )
    more = machine.open_descriptors() - descriptors
    if more >= cycles:
        yield make_finding("descriptors-left", f"{more} open files or sockets after {cycles} × build, step, close")


def check_memory(subject: Subject) -> Iterator[Finding]:
    """Reset one env many times. A leak, unlike a cache that fills up, grows in the second half as in the first."""
    env = subject.build()
    actions = subject.actions(env, 2)
    process, rss = psutil.Process(), []
    resets = 0
    for share in (0.2, 0.4, 0.4):  # the first is the warm-up
        watch = Stopwatch(RESETS_S * share)
        for _ in range(int(RESETS * share)):
            rollout(env, actions, seed=subject.settings.seed + resets)
            resets += 1
            if watch.over:
                break
        gc.collect()
        rss.append((resets, process.memory_info().rss))
    (n0, r0), (n1, r1), (n2, r2) = rss
    if r2 - r0 > SOME_MEMORY and min((r1 - r0) / (n1 - n0), (r2 - r1) / (n2 - n1)) > 0.3 * (r2 - r0) / (n2 - n0):
        each_kb = (r2 - r0) / (n2 - n0) / 1e3
        evidence = f"{(r2 - r0) / 1e6:.0f} MB more after {n2 - n0} resets with {len(actions)} steps each"
        yield make_finding("memory-grows", f"{evidence}: {each_kb:.0f} kB an episode")


def _cycle(subject: Subject) -> None:
    env = subject.build()
    rollout(env, subject.actions(env, STEPS_PER_CYCLE), seed=subject.settings.seed)
    subject.close()
    del env
    gc.collect()


def _ended_late(threads: set[threading.Thread]) -> list[threading.Thread]:
    watch = Stopwatch(PATIENCE_S)
    for thread in threads:
        thread.join(0.0 if watch.over else PATIENCE_S / max(1, len(threads)))
    return [thread for thread in threads if thread.is_alive()]


def _processes() -> set[psutil.Process]:
    return set(psutil.Process().children(recursive=True))


def _name(process: psutil.Process) -> str:
    try:
        return f"{process.name()} ({process.pid})"
    except psutil.Error:
        return f"pid {process.pid}"


# -- cost ------------------------------------------------------------------------------------------------------
MEASURED_S = 0.3
FEWEST = 5
RESET_IS_MANY_STEPS = 100
SLOW_RESET_S = 1e-3


def check_cost(subject: Subject) -> Iterator[Finding]:
    """Measure steps and resets, and suggest an executor."""
    env = subject.build()
    env.reset(seed=subject.settings.seed)
    others, metadata = Others(), getattr(env.env, "metadata", None) or {}
    try:
        steps, resets, each_s = _measured(env.env, cycle(subject.actions(env, 64)))
    except Exception as error:
        raise EnvRaised(Where(STEP), error) from error
    step_s, reset_s = statistics.median(steps), statistics.median(resets)
    took = f"step {_time(step_s)}, reset {_time(reset_s)} (medians of {len(steps)} and {len(resets)})"
    yield make_finding("cost", f"{took}; {suggestion(each_s, metadata, others.share())}")
    if reset_s > RESET_IS_MANY_STEPS * step_s and reset_s > SLOW_RESET_S:
        yield make_finding("reset-dominates", f"a reset takes as long as {reset_s / step_s:.0f} steps")


def _measured(env: Any, actions: Iterator[Any]) -> tuple[list[float], list[float], float]:
    """Return the seconds of each step and each reset, measured around the bare calls, and the mean seconds of a step
    with its share of resets."""
    clock, step, reset, alone = time.perf_counter, env.step, env.reset, not isinstance(env, TeamEnv)
    steps: list[float] = []
    resets: list[float] = []
    watch = Stopwatch(MEASURED_S)
    while len(steps) < FEWEST or not watch.over:
        action = next(actions)
        begun = clock()
        _, _, terminated, truncated, _ = step(action)
        steps.append(clock() - begun)
        if terminated or truncated if alone else env.over:
            begun = clock()
            reset()
            resets.append(clock() - begun)
    each_s = (sum(steps) + sum(resets)) / len(steps)
    watch = Stopwatch(MEASURED_S / 2)
    while len(resets) < FEWEST and not (resets and watch.over):
        begun = clock()
        reset()
        resets.append(clock() - begun)
    return steps, resets, each_s


def suggestion(each_s: float, metadata: Mapping[str, Any], busy_share: float) -> str:
    """Return the executor that `auto` would choose, for a few envs and for many."""
    cores = machine.usable_cores()
    if cores == 1:
        return f"one usable core: executor={IN_CALLER!r}"
    if metadata.get("in_process"):
        return f"its metadata has in_process: executor={IN_CALLER!r}"
    words = []
    for num_envs in (8, 64):
        alone, shared = predicted(each_s, num_envs, min(cores, num_envs) - 1)
        words.append(f"{num_envs} envs {faster(alone, shared)}")
    if busy_share > BUSY_SHARE:
        words.append(f"but other programs use {100 * busy_share:.0f} % of them now: measure to be sure")
    return f"on these {cores} cores that suggests {', '.join(words)}"


def _time(seconds: float) -> str:
    return f"{seconds * 1e6:.1f} µs" if seconds < 1e-3 else f"{seconds * 1e3:.1f} ms"

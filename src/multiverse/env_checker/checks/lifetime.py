"""It can be built, twice, and closed, twice. What stays then: threads, processes, open files; and memory piles up."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from typing import Any

import gymnasium
import psutil

from multiverse.env_checker.catalogue import found
from multiverse.env_checker.report import Finding
from multiverse.env_checker.subject import EnvRaised, Stopwatch, Subject, WatchedEnv
from multiverse.env_checker.team_env import TeamEnv
from multiverse.env_checker.trajectory import rollout
from multiverse.executors import machine

PATIENCE_S = 1.0
"""Threads and processes that were told to end get this long."""

CYCLES, CYCLES_S = 5, 2.0
STEPS_PER_CYCLE = 5
RESETS, RESETS_S = 2_000, 1.5
SOME_MEMORY = 4_000_000
"""Bytes of growth that allocators and caches are forgiven."""


# -- building and closing --------------------------------------------------------------------------------------
def check_building(subject: Subject) -> Iterator[Finding]:
    """Two envs side by side, each closed and closed again."""
    first = subject.build()
    if not isinstance(first.env, gymnasium.Env | TeamEnv):
        yield found("not-an-env", f"the factory returned {_what(first.env)}")
        return
    if isinstance(first.env, TeamEnv) and not first.env.possible_agents:
        yield found("possible-agents", f"{type(first.env.foreign).__name__} has no possible_agents")
        return
    envs = [first]
    try:
        envs.append(subject.build())
    except EnvRaised as raised:
        yield found("build-again-failed", f"a second env beside the first: {raised.words()}")
    own, other = (getattr(env.env, "foreign", env.env) for env in (first, envs[-1]))
    if other is own and len(envs) == 2:
        yield found("same-env-again", f"two calls of the factory returned one and the same {type(own).__name__}")
        envs.pop()
    for env in envs:
        problem = _closed_twice(env)
        if problem is not None:
            yield problem
            return


def _what(env: Any) -> str:
    kind = type(env)
    if isinstance(env, gymnasium.vector.VectorEnv):
        return f"{kind.__qualname__}, a vector env already: one single env is wanted"
    return f"{kind.__module__}.{kind.__qualname__}, which is neither a gymnasium.Env nor a PettingZoo env"


def _closed_twice(env: WatchedEnv) -> Finding | None:
    try:
        env.close()
    except EnvRaised as raised:
        return raised.finding()
    try:
        env.close()
    except EnvRaised as raised:
        return found("close-twice", f"the second close() raised {raised.words()}")
    return None


# -- what is left ----------------------------------------------------------------------------------------------
def check_leaving(subject: Subject) -> Iterator[Finding]:
    """Build, step and close a few times; what is there once more each time is left."""
    _cycle(subject)  # imports, caches and pools come with the first one
    threads, processes = set(threading.enumerate()), _processes()
    descriptors = machine.open_descriptors()
    cycles, watch = 0, Stopwatch(CYCLES_S)
    while cycles < 2 or (cycles < CYCLES and not watch.over):
        _cycle(subject)
        cycles += 1
    left = _ended_late(set(threading.enumerate()) - threads)
    if len(left) >= cycles:
        names = ", ".join(sorted({thread.name for thread in left})[:3])
        yield found("threads-left", f"{len(left)} threads after {cycles} × build, step, close: {names}, ...")
    _, alive = psutil.wait_procs(_processes() - processes, timeout=PATIENCE_S)
    if len(alive) >= cycles:
        yield found("processes-left", f"{len(alive)} processes after {cycles} × build, step, close: {_name(alive[0])}")
    more = machine.open_descriptors() - descriptors
    if more >= cycles:
        yield found("descriptors-left", f"{more} open files or sockets after {cycles} × build, step, close")


def check_memory(subject: Subject) -> Iterator[Finding]:
    """Many resets of one env: memory that grows in the second half as in the first is not a cache filling up."""
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
        words = f"{(r2 - r0) / 1e6:.0f} MB more after {n2 - n0} resets with {len(actions)} steps each"
        yield found("memory-grows", f"{words}: {each_kb:.0f} kB an episode")


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

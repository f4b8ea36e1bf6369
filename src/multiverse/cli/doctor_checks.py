"""What `multiverse doctor` looks at on this machine: each check says what it found and what to do about it."""

from __future__ import annotations

import math
import platform
import time
from functools import partial

import psutil

from multiverse.adapters.env_source import recipes
from multiverse.cli.findings import Check, Finding
from multiverse.cli.optional_packages import extras, gpu
from multiverse.contracts.errors import MultiverseError
from multiverse.contracts.plan import Plan, StartMethod
from multiverse.executors import machine, preflight, process, startup
from multiverse.memory.block import Block
from multiverse.memory.platform import has_memfd

OLDEST_PYTHON = (3, 11)
LITTLE_MEMORY, TOO_LITTLE_MEMORY = 1_000_000_000, 128_000_000
BLOCK_BYTES = 1 << 20
START_PATIENCE_S = 30.0


def all_checks() -> dict[str, Check]:
    """Every check by the name it goes by, in the order in which they are run."""
    return {
        "Python": python_version,
        "platform": operating_system,
        "usable cores": usable_cores,
        "memory": memory,
        "open files": open_files,
        "shared memory": shared_memory,
        "start by forkserver": partial(start_method, "forkserver"),
        "start by fork": partial(start_method, "fork"),
        "start by spawn": partial(start_method, "spawn"),
        "GPU": gpu,
        "extras": extras,
    }


def examine(name: str, check: Check) -> Finding:
    """Run a check; one that itself fails is a finding too, never the end of the examination."""
    try:
        return check()
    except Exception as error:
        found = f"the check itself failed: {type(error).__name__}: {error}"
        return Finding(name, "blocking", found, "please report this, with the output of `multiverse doctor --json`")


def python_version() -> Finding:
    version, implementation = platform.python_version(), platform.python_implementation()
    found = f"{implementation} {version}"
    if tuple(int(part) for part in platform.python_version_tuple()[:2]) < OLDEST_PYTHON:
        return Finding("Python", "blocking", found, "multiverse needs Python 3.11 or newer: make a new environment")
    if implementation != "CPython":
        return Finding("Python", "warning", found, "multiverse is only tested on CPython")
    return Finding("Python", "ok", found)


def operating_system() -> Finding:
    system, found = platform.system(), f"{platform.system()} {platform.release()} ({platform.machine()})"
    if system == "Linux":
        return Finding("platform", "ok", found)
    if system == "Darwin":
        advice = "works with an unlinked file and pipes instead of memfd and eventfd; it is tested on Linux only"
        return Finding("platform", "warning", found, advice)
    advice = "no worker processes here: use executor='thread' or 'serial', or Linux (on Windows: WSL 2)"
    return Finding("platform", "warning", found, advice)


def usable_cores() -> Finding:
    usable, affinity, quota = machine.usable_cores(), machine.affinity_cores(), machine.cpu_quota()
    physical = psutil.cpu_count(logical=False)
    parts = [f"{usable} usable", f"affinity allows {affinity}"]
    parts.append("no container quota" if quota is None else f"the container's quota is {quota:g}")
    parts.append(f"{physical or 'unknown number of'} physical")
    found = "; ".join(parts)
    if usable == 1:
        advice = "worker processes cannot make anything faster here; give this machine or container more cores"
        return Finding("usable cores", "warning", found, advice)
    if quota is not None and quota < affinity and quota != math.floor(quota):
        advice = (
            f"a broken quota stalls the last worker: ask for {math.ceil(quota)} whole cores, or workers={int(quota)}"
        )
        return Finding("usable cores", "warning", found, advice)
    if usable < (physical or 1):
        return Finding("usable cores", "ok", found, "the machine has more: raise the container's quota or the affinity")
    return Finding("usable cores", "ok", found)


def memory() -> Finding:
    available = machine.memory_available()
    found = f"{available / 1e9:.1f} GB available"
    if available < TOO_LITTLE_MEMORY:
        advice = "too little for workers: close other programs, or raise the container's memory limit"
        return Finding("memory", "blocking", found, advice)
    if available < LITTLE_MEMORY:
        advice = "a worker takes some 7 MB and what its envs take: watch `multiverse bench YOUR_ENV`'s MB per worker"
        return Finding("memory", "warning", found, advice)
    return Finding("memory", "ok", found)


def open_files() -> Finding:
    limits = machine.descriptor_limits()
    if limits is None:
        return Finding("open files", "ok", "no limit on this platform")
    soft, hard = limits
    cores = machine.usable_cores()
    needed = machine.open_descriptors() + cores * preflight.descriptors_per_worker() + preflight.SPARE_DESCRIPTORS
    found = f"soft limit {_limit(soft)}, hard limit {_limit(hard)}; {needed} needed for {cores} worker processes"
    if 0 <= hard < needed:
        advice = f"raise the hard limit: `ulimit -Hn {needed}` as root, or the container's nofile"
        return Finding("open files", "blocking", found, advice)
    if 0 <= soft < needed:
        return Finding("open files", "ok", found, "nothing to do: the soft limit is raised when workers start")
    return Finding("open files", "ok", found)


def _limit(limit: int) -> str:
    return "none" if limit < 0 else f"{limit:,}"


def shared_memory() -> Finding:
    name, how = "shared memory", "a memfd" if has_memfd() else "an unlinked file"
    try:
        block = Block.empty()
        try:
            block.resize(BLOCK_BYTES)
        finally:
            block.close()
    except (MultiverseError, OSError) as error:
        advice = "worker processes need it: raise the container's memory limit, or use executor='serial' or 'thread'"
        return Finding(name, "blocking", f"1 MB as {how} was refused: {error}", advice)
    return Finding(name, "ok", f"1 MB as {how}")


def start_method(method: StartMethod) -> Finding:
    """Really start one worker that way."""
    name = f"start by {method}"
    if not process.usable_here():
        return Finding(name, "ok", "skipped: no worker processes on this platform")
    plan, each = Plan("process", 1, method, "park", "doctor"), recipes("CartPole-v1", 1, None, None)
    begun = time.perf_counter()
    try:
        started = startup.start(plan, each, "next_step", False, None, patience_s=START_PATIENCE_S)
    except (MultiverseError, OSError) as error:
        return _cannot_start(name, method, next(iter(str(error).splitlines()), type(error).__name__))
    took_s = time.perf_counter() - begun
    started[0].close()
    return Finding(name, "ok", f"a worker answered after {took_s:.2f} s")


def _cannot_start(name: str, method: StartMethod, why: str) -> Finding:
    if method == "forkserver":
        advice = "this is the default: fix it, or pass another start_method to make_vec, or executor='thread'"
        return Finding(name, "blocking", why, advice)
    return Finding(name, "warning", why, f"leave start_method={method!r} alone; the default is 'forkserver'")

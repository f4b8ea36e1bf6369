"""What `multiverse doctor` looks at on this machine: each check says what it found and what to do about it.

Torch is asked in a process of its own: importing it here would take seconds, and its first look at CUDA would make this
process one that cannot fork any more.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import math
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import psutil

from multiverse.adapters.env_source import recipes
from multiverse.core.errors import MultiverseError
from multiverse.core.plan import Plan, StartMethod
from multiverse.executors import machine, preflight, process, startup
from multiverse.ipc.block import Block
from multiverse.ipc.platform import has_memfd

OLDEST_PYTHON = (3, 11)
LITTLE_MEMORY, TOO_LITTLE_MEMORY = 1_000_000_000, 128_000_000
BLOCK_BYTES = 1 << 20
START_PATIENCE_S = 30.0
ASK_TIMEOUT_S = 60.0

PACKAGES = {  # what pip calls it → what import calls it
    "torch": "torch",
    "mujoco": "mujoco",
    "stable-baselines3": "stable_baselines3",
    "pettingzoo": "pettingzoo",
    "box2d": "Box2D",
    "ale-py": "ale_py",
    "pyboy": "pyboy",
    "ray": "ray",
    "tensorboard": "tensorboard",
    "imageio-ffmpeg": "imageio_ffmpeg",
    "optuna": "optuna",
    "mpe2": "mpe2",
    "pygame-ce": "pygame",
    "matplotlib": "matplotlib",
    "pandas": "pandas",
}
NEEDED_BY = {
    "box2d": "LunarLander, BipedalWalker, CarRacing, BoxJump",
    "imageio-ffmpeg": "multiverse record",
    "optuna": "tune --search",
    "mpe2": "simple_spread and its like",
    "pygame-ce": "drawing CartPole and its like",
    "matplotlib": "plot, report",
    "pandas": "run.metrics()",
}
"""Where a package's name does not say what it is for."""

_TORCH_SAYS = """
import json, torch
cuda = torch.cuda.is_available()
print(json.dumps({
    "version": torch.__version__,
    "built_for_cuda": torch.version.cuda,
    "devices": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if cuda else [],
    "mps": torch.backends.mps.is_available(),
}))
"""

Status = Literal["ok", "warning", "blocking"]


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found."""

    name: str
    status: Status
    found: str
    advice: str = ""


Check = Callable[[], Finding]


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
        executor = startup.open_envs(plan, each, patience_s=START_PATIENCE_S).bind()
    except (MultiverseError, OSError) as error:
        return _cannot_start(name, method, next(iter(str(error).splitlines()), type(error).__name__))
    took_s = time.perf_counter() - begun
    executor.close()
    return Finding(name, "ok", f"a worker answered after {took_s:.2f} s")


def _cannot_start(name: str, method: StartMethod, why: str) -> Finding:
    if method == "forkserver":
        advice = "this is the default: fix it, or pass another start_method to make_vec, or executor='thread'"
        return Finding(name, "blocking", why, advice)
    return Finding(name, "warning", why, f"leave start_method={method!r} alone; the default is 'forkserver'")


# -- GPU -------------------------------------------------------------------------------------------------------
def gpu() -> Finding:
    driver = shutil.which("nvidia-smi") is not None
    if importlib.util.find_spec("torch") is None:
        if driver:
            return Finding("GPU", "ok", "nvidia-smi is there, torch is not", "`pip install torch` to learn on the GPU")
        return Finding("GPU", "ok", "none looked for without torch; envs run on the CPU anyway")
    try:
        torch = ask_torch()
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return Finding(
            "GPU", "warning", f"torch is installed but does not work: {_last_line(error)}", "reinstall torch"
        )
    version = f"torch {torch['version']}"
    if torch["devices"]:
        return Finding("GPU", "ok", f"{version}: {', '.join(torch['devices'])}")
    if torch["mps"]:
        return Finding("GPU", "ok", f"{version}: Apple's (mps)")
    if driver and torch["built_for_cuda"] is None:
        advice = "install torch for CUDA (pytorch.org has the command); envs do not need it"
        return Finding("GPU", "warning", f"nvidia-smi is there, but {version} was built without CUDA", advice)
    if driver:
        advice = "run nvidia-smi: the driver may be too old for this torch, or the container may hide the GPU"
        return Finding("GPU", "warning", f"nvidia-smi is there, but {version} sees no GPU", advice)
    return Finding("GPU", "ok", f"{version}: no GPU; envs run on the CPU anyway")


def ask_torch() -> dict[str, Any]:
    """What torch says about GPUs, asked in a process of its own."""
    command = [sys.executable, "-c", _TORCH_SAYS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=ASK_TIMEOUT_S, check=True)
    said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1] if done.stdout else "")
    return said


def _last_line(error: Exception) -> str:
    text = getattr(error, "stderr", None) or str(error)
    return next(iter(reversed(str(text).strip().splitlines())), type(error).__name__)


# -- optional packages -----------------------------------------------------------------------------------------
def extras() -> Finding:
    installed = {name: _version(name) for name, module in PACKAGES.items() if importlib.util.find_spec(module)}
    missing = [name for name in PACKAGES if name not in installed]
    there = ", ".join(f"{name} {version}".strip() for name, version in installed.items()) or "none"
    wanted = ", ".join(f"{name} (for {NEEDED_BY[name]})" if name in NEEDED_BY else name for name in missing)
    found = f"installed: {there}" + (f"; not installed: {wanted}" if missing else "")
    advice = f"only if you want them: {'; '.join(install_commands(missing))}" if missing else ""
    return Finding("extras", "ok", found, advice)


def install_commands(packages: Iterable[str]) -> list[str]:
    """How to install each: by an extra of multiverse where one brings it, else by its own name, all in one go."""
    brought = extra_of()
    own = [name for name in packages if name not in brought]
    by_extra = sorted({brought[name] for name in packages if name in brought})
    commands = [f"pip install 'multiverse[{','.join(by_extra)}]'"] if by_extra else []
    return commands + ([f"pip install {' '.join(own)}"] if own else [])


def extra_of() -> dict[str, str]:
    """Which extra of multiverse brings a package, by what multiverse's own metadata says."""
    found: dict[str, str] = {}
    for requirement in importlib.metadata.requires("multiverse") or []:
        extra = re.search(r"extra\s*==\s*['\"]([\w.-]+)['\"]", requirement)
        named = re.match(r"([\w.-]+)\s*(?:\[([\w.,\s-]*)\])?", requirement)
        if extra and named and extra[1] != "dev":
            for name in (named[1], *(part.strip() for part in (named[2] or "").split(","))):
                found.setdefault(name.lower().replace("_", "-"), extra[1])
    return found


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""

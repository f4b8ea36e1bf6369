"""Checks of `multiverse doctor`: each one reports what it found on this machine and, if needed, what to do.

torch is queried in a separate process: importing it takes seconds, and a process that has initialised CUDA must not
fork.
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
from typing import Any, Literal, get_args

import psutil

from multiverse.adapters.env_source import recipes
from multiverse.core.errors import MultiverseError
from multiverse.core.plan import Plan, StartMethod
from multiverse.executors import machine, preflight, process, startup
from multiverse.ipc.block import Block
from multiverse.ipc.platform import has_memfd

OLDEST_PYTHON = (3, 11)
LOW_MEMORY, MIN_MEMORY = 1_000_000_000, 128_000_000
BLOCK_BYTES = 1 << 20
START_PATIENCE_S = 30.0
ASK_TIMEOUT_S = 60.0
DEFAULT_START_METHOD: StartMethod = "forkserver"

PACKAGES = {  # name for pip → name for import
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
"""Purpose of packages whose names do not show it."""

_TORCH_QUERY = """
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
    """Result of one check: what it found and, if there is a problem, what to do."""

    status: Status
    found: str
    advice: str = ""


Check = Callable[[], Finding]


def all_checks() -> dict[str, Check]:
    """Return every check by its name, in the order in which they are run."""
    return {
        "Python": python_version,
        "platform": operating_system,
        "usable cores": usable_cores,
        "memory": memory,
        "open files": open_files,
        "shared memory": shared_memory,
        **{f"start by {method}": partial(start_method, method) for method in get_args(StartMethod)},
        "GPU": gpu,
        "extras": extras,
    }


def examine(check: Check) -> Finding:
    """Run a check; if the check itself fails, that is a finding, too."""
    try:
        return check()
    except Exception as error:
        found = f"the check itself failed: {type(error).__name__}: {error}"
        return Finding("blocking", found, "please report this, with the output of `multiverse doctor --json`")


def python_version() -> Finding:
    version, implementation = platform.python_version(), platform.python_implementation()
    found = f"{implementation} {version}"
    if tuple(int(part) for part in platform.python_version_tuple()[:2]) < OLDEST_PYTHON:
        return Finding("blocking", found, "multiverse needs Python 3.11 or newer: create a new environment")
    if implementation != "CPython":
        return Finding("warning", found, "multiverse is only tested on CPython")
    return Finding("ok", found)


def operating_system() -> Finding:
    system, found = platform.system(), f"{platform.system()} {platform.release()} ({platform.machine()})"
    if system == "Linux":
        return Finding("ok", found)
    if system == "Darwin":
        advice = "an unlinked file and pipes replace memfd and eventfd; multiverse is tested on Linux only"
        return Finding("warning", found, advice)
    advice = "no worker processes on this platform: use executor='thread' or 'serial', or Linux (on Windows: WSL 2)"
    return Finding("warning", found, advice)


def usable_cores() -> Finding:
    usable, affinity, quota = machine.usable_cores(), machine.affinity_cores(), machine.cpu_quota()
    physical = psutil.cpu_count(logical=False)
    limit = "no container quota" if quota is None else f"the container's quota is {quota:g}"
    found = f"{usable} usable; affinity allows {affinity}; {limit}; {physical or 'unknown number of'} physical"
    if usable == 1:
        advice = "with one core, worker processes are not faster; give this machine or container more cores"
        return Finding("warning", found, advice)
    if quota is not None and quota < affinity and quota != math.floor(quota):
        whole = math.ceil(quota)
        advice = f"a fractional quota stalls the last worker: request {whole} whole cores, or pass workers={int(quota)}"
        return Finding("warning", found, advice)
    if usable < (physical or 1):
        return Finding("ok", found, "the machine has more cores: raise the container's quota or the affinity")
    return Finding("ok", found)


def memory() -> Finding:
    available = machine.memory_available()
    found = f"{available / 1e9:.1f} GB available"
    if available < MIN_MEMORY:
        return Finding(
            "blocking", found, "not enough for workers: close other programs, or raise the container's memory limit"
        )
    if available < LOW_MEMORY:
        advice = (
            "a worker needs about 7 MB plus the memory of its envs: `multiverse bench YOUR_ENV` shows MB per worker"
        )
        return Finding("warning", found, advice)
    return Finding("ok", found)


def open_files() -> Finding:
    limits = machine.descriptor_limits()
    if limits is None:
        return Finding("ok", "no limit on this platform")
    soft, hard = limits
    cores = machine.usable_cores()
    needed = machine.open_descriptors() + cores * preflight.descriptors_per_worker() + preflight.SPARE_DESCRIPTORS
    words = ["none" if limit < 0 else f"{limit:,}" for limit in limits]
    found = f"soft limit {words[0]}, hard limit {words[1]}; {needed} needed for {cores} worker processes"
    if 0 <= hard < needed:
        advice = f"raise the hard limit: `ulimit -Hn {needed}` as root, or the container's nofile"
        return Finding("blocking", found, advice)
    if 0 <= soft < needed:
        return Finding("ok", found, "nothing to do: the soft limit is raised automatically when workers start")
    return Finding("ok", found)


def shared_memory() -> Finding:
    kind = "a memfd" if has_memfd() else "an unlinked file"
    try:
        block = Block.empty()
        try:
            block.resize(BLOCK_BYTES)
        finally:
            block.close()
    except (MultiverseError, OSError) as error:
        advice = "worker processes need it: raise the container's memory limit, or use executor='serial' or 'thread'"
        return Finding("blocking", f"1 MB as {kind} was refused: {error}", advice)
    return Finding("ok", f"1 MB allocated as {kind}")


def start_method(method: StartMethod) -> Finding:
    """Start one worker by this method."""
    if not process.usable_here():
        return Finding("ok", "skipped: no worker processes on this platform")
    plan, each = Plan("process", 1, method, "park", "doctor"), recipes("CartPole-v1", 1, None, None)
    begun = time.perf_counter()
    try:
        executor = startup.start_hosts(plan, each, patience_s=START_PATIENCE_S).bind()
    except (MultiverseError, OSError) as error:
        why = next(iter(str(error).splitlines()), type(error).__name__)
        if method == DEFAULT_START_METHOD:
            advice = "this is the default: fix it, or pass another start_method to make_vec, or executor='thread'"
            return Finding("blocking", why, advice)
        return Finding("warning", why, f"do not use start_method={method!r}; the default is {DEFAULT_START_METHOD!r}")
    took_s = time.perf_counter() - begun
    executor.close()
    return Finding("ok", f"a worker answered after {took_s:.2f} s")


# -- GPU -------------------------------------------------------------------------------------------------------
def gpu() -> Finding:
    driver = shutil.which("nvidia-smi") is not None
    if importlib.util.find_spec("torch") is None:
        if driver:
            return Finding("ok", "nvidia-smi is installed, torch is not", "`pip install torch` to learn on the GPU")
        return Finding("ok", "not checked, because torch is not installed; envs run on the CPU anyway")
    try:
        torch = ask_torch()
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        lines = str(getattr(error, "stderr", None) or error).strip().splitlines()
        why = lines[-1] if lines else type(error).__name__
        return Finding("warning", f"torch is installed but does not work: {why}", "reinstall torch")
    version = f"torch {torch['version']}"
    if torch["devices"]:
        return Finding("ok", f"{version}: {', '.join(torch['devices'])}")
    if torch["mps"]:
        return Finding("ok", f"{version}: Apple GPU (mps)")
    if driver and torch["built_for_cuda"] is None:
        advice = "install torch for CUDA (pytorch.org has the command); envs do not need it"
        return Finding("warning", f"nvidia-smi is installed, but {version} was built without CUDA", advice)
    if driver:
        advice = "run nvidia-smi: the driver may be too old for this torch, or the container may hide the GPU"
        return Finding("warning", f"nvidia-smi is installed, but {version} finds no GPU", advice)
    return Finding("ok", f"{version}: no GPU; envs run on the CPU anyway")


def ask_torch() -> dict[str, Any]:
    """Return torch's version and the GPUs that it finds."""
    return answer_of(_TORCH_QUERY)


def answer_of(program: str, *arguments: object) -> dict[str, Any]:
    """Run a Python program in a separate process, and return the JSON object in the last line that it prints."""
    command = [sys.executable, "-c", program, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=ASK_TIMEOUT_S, check=True)
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1] if done.stdout else "")
    return answer


# -- optional packages -----------------------------------------------------------------------------------------
def extras() -> Finding:
    installed = {name: _version(name) for name, module in PACKAGES.items() if importlib.util.find_spec(module)}
    missing = [name for name in PACKAGES if name not in installed]
    present = ", ".join(f"{name} {version}".strip() for name, version in installed.items()) or "none"
    absent = ", ".join(f"{name} (for {NEEDED_BY[name]})" if name in NEEDED_BY else name for name in missing)
    found = f"installed: {present}" + (f"; not installed: {absent}" if missing else "")
    advice = f"optional; to install them: {'; '.join(install_commands(missing))}" if missing else ""
    return Finding("ok", found, advice)


def install_commands(packages: Iterable[str]) -> list[str]:
    """Return the commands that install packages: by an extra of multiverse that has the package, else by its name."""
    extra_by_package = extra_of()
    without_extra = [name for name in packages if name not in extra_by_package]
    extras = sorted({extra_by_package[name] for name in packages if name in extra_by_package})
    commands = [f"pip install 'multiverse[{','.join(extras)}]'"] if extras else []
    return commands + ([f"pip install {' '.join(without_extra)}"] if without_extra else [])


def extra_of() -> dict[str, str]:
    """Return package → extra of multiverse that installs it, according to multiverse's metadata."""
    extra_by_package: dict[str, str] = {}
    for requirement in importlib.metadata.requires("multiverse") or []:
        extra = re.search(r"extra\s*==\s*['\"]([\w.-]+)['\"]", requirement)
        package = re.match(r"([\w.-]+)\s*(?:\[([\w.,\s-]*)\])?", requirement)
        if extra and package and extra[1] != "dev":
            for name in (package[1], *map(str.strip, (package[2] or "").split(","))):
                extra_by_package.setdefault(name.lower().replace("_", "-"), extra[1])
    return extra_by_package


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""

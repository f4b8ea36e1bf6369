"""Where a run came from: versions, machine, code, command line. No environment variables, no network, no error."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

import multiverse
from multiverse.contracts.plan import Plan
from multiverse.executors.machine import usable_cores
from multiverse.training.storage.redaction import redacted_command

PACKAGES = ("numpy", "gymnasium", "torch", "safetensors", "pettingzoo", "mpe2", "mujoco", "ale_py", "Box2D", "pyboy")
"""Told when they are loaded: what was not imported had no part in the run."""
GIT_S = 2.0


def provenance(seed: int | None, plan: Plan | None = None) -> dict[str, Any]:
    """What is needed to run this again, as JSON can hold it."""
    return {
        "seed": seed,
        "plan": None if plan is None else dataclasses.asdict(plan),
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "command": redacted_command(sys.argv),
        "versions": versions(),
        "machine": machine(),
        "git": _or_none(git_commit),
    }


def versions() -> dict[str, str]:
    """Of Python, of ourselves, and of the packages in use; modules that gave Gymnasium its envs included."""
    found = {"python": platform.python_version(), "multiverse": multiverse.__version__}
    for name in dict.fromkeys((*PACKAGES, *_env_packages())):
        if name in sys.modules and (version := _version(name)) is not None:
            found[name] = version
    return found


def machine() -> dict[str, Any]:
    """What it ran on."""
    return {
        "os": platform.platform(),
        "cpu": _or_none(_cpu_model) or platform.processor() or platform.machine(),
        "usable_cores": _or_none(usable_cores),
        "memory_bytes": _or_none(lambda: psutil.virtual_memory().total),
    }


def git_commit(directory: Path | None = None) -> dict[str, Any] | None:
    """The commit of the working directory, and whether files differ from it; None outside of any."""
    commit = _git(directory, "rev-parse", "HEAD")
    if commit is None:
        return None
    changed = _git(directory, "status", "--porcelain", "--untracked-files=no")
    return {"commit": commit, "changed": None if changed is None else bool(changed)}


def _git(directory: Path | None, *arguments: str) -> str | None:
    done = subprocess.run(
        ["git", "-c", "core.fsmonitor=false", *arguments],
        cwd=directory,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=GIT_S,
        check=False,
        env={**os.environ, "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0"},
    )
    return done.stdout.strip() if done.returncode == 0 else None


def _env_packages() -> list[str]:
    """Top-level packages whose envs are registered with Gymnasium."""
    registered = getattr(sys.modules.get("gymnasium"), "registry", {})
    points = [getattr(spec, "entry_point", None) for spec in list(registered.values())]
    return sorted({point.partition(":")[0].partition(".")[0] for point in points if isinstance(point, str)})


def _version(module: str) -> str | None:
    version = getattr(sys.modules[module], "__version__", None)
    if isinstance(version, str):
        return version
    try:
        return importlib.metadata.version(module)
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return None


def _cpu_model() -> str | None:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), None)


def _or_none(ask: Callable[[], Any]) -> Any:
    """A run does not fail for want of what it ran on."""
    try:
        return ask()
    except (OSError, ValueError, subprocess.SubprocessError, psutil.Error):
        return None

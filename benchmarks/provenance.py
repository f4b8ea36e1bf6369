"""Provenance of results files: commit, versions, machine, load, date and command. Every results file contains it.

The commit is that of the source tree. For a copy without git history, set `BENCHMARK_COMMIT` to the output of
`git describe --always --exclude='*' --abbrev=40 --dirty`.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import shlex
import sys
import time
from pathlib import Path
from typing import Any

from multiverse.training.runs.origin import git_commit, machine

TREE = Path(__file__).resolve().parent.parent
COMMIT = "BENCHMARK_COMMIT"
UNKNOWN = "unknown"
PACKAGES = (
    "numpy",
    "gymnasium",
    "torch",
    "mujoco",
    "box2d",
    "stable-baselines3",
    "pettingzoo",
    "mpe2",
    "agilerl",
    "pyboy",
    "ray",
)
"""Dependencies and compared libraries. The version is None if a package is not installed."""
FIELDS = ("commit", "changed", "versions", "cpu", "usable_cores", "load", "date", "command")
"""Fields of every results file; newer files also have `blas`."""


def provenance() -> dict[str, Any]:
    """Return the current provenance. Call it before measuring, which changes the load."""
    commit, changed = _commit()
    hardware = machine()
    return {
        "commit": commit,
        "changed": changed,
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}},
        "cpu": hardware["cpu"],
        "blas": hardware["blas"],
        "usable_cores": hardware["usable_cores"],
        "load": [round(load, 2) for load in os.getloadavg()],
        "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "command": shlex.join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]]),
    }


def write_results(path: Path, provenance: dict[str, Any], figures: dict[str, Any]) -> None:
    """Write a results file, with `provenance` first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"provenance": provenance, **figures}, indent=1) + "\n")


def _commit() -> tuple[str, bool | None]:
    """Return (commit, whether files differ from it)."""
    if commit := os.environ.get(COMMIT):
        return commit.removesuffix("-dirty"), commit.endswith("-dirty")
    origin = git_commit(TREE)
    return (UNKNOWN, None) if origin is None else (origin["commit"], origin["changed"])


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None

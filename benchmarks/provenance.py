"""Where a results file came from: commit, versions, machine, load, date, command. Every benchmark that writes one asks.

The commit is the tree's own. A copy of the tree without its history is told it in `BENCHMARK_COMMIT`, in the words of
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
"""Ours and our peers'; None of one that is not installed, and so had no part in it."""
FIELDS = ("commit", "changed", "versions", "cpu", "usable_cores", "load", "date", "command")
"""That every results file has; newer ones have `blas` too."""


def provenance() -> dict[str, Any]:
    """As it is now: to be asked before anything is measured, for the load's sake."""
    commit, changed = _commit()
    found = machine()
    return {
        "commit": commit,
        "changed": changed,
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}},
        "cpu": found["cpu"],
        "blas": found["blas"],
        "usable_cores": found["usable_cores"],
        "load": [round(load, 2) for load in os.getloadavg()],
        "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "command": shlex.join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]]),
    }


def write_results(path: Path, provenance: dict[str, Any], figures: dict[str, Any]) -> None:
    """One results file, `provenance` first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"provenance": provenance, **figures}, indent=1) + "\n")


def _commit() -> tuple[str, bool | None]:
    """(commit, whether files differ from it)."""
    if said := os.environ.get(COMMIT):
        return said.removesuffix("-dirty"), said.endswith("-dirty")
    found = git_commit(TREE)
    return (UNKNOWN, None) if found is None else (found["commit"], found["changed"])


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None

"""Run the examples as a reader does, and inspect the files that they write."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
GRID_WORLD = ROOT / "examples" / "grid_world"
MAIN, PUSH = GRID_WORLD / "custom_env_main.py", GRID_WORLD / "simple_push_v3_train.py"
TIME_LIMIT_S = 100

SMALL = ["--total-timesteps", "288", "--eval-episodes", "3", "--tracker", "local"]
"""A training of seconds, with every part of it: one rollout of 1 or 3 envs, one update."""

PROCESS_STARTS = """
import runpy, sys
STARTS = {"os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "subprocess.Popen"}
seen = []

def note(event, arguments):
    if event in STARTS and arguments[0] != "uname":  # Stable-Baselines3 asks it when a model is saved
        seen.append(event)

sys.addaudithook(note)
sys.argv = sys.argv[1:]
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
except SystemExit as end:
    assert end.code == 0, end.code
print("process starts:", len(seen))
"""
"""A program that runs another in its place, and counts the processes it starts."""


SCRIPT = """
import os, runpy, sys
folder, *sys.argv = sys.argv[1:]
os.chdir(folder)
sys.path[0] = os.path.dirname(os.path.realpath(sys.argv[0]))
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""A program that runs a script in a folder, as `python script …` does there."""


def run(*command: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the program with this Python in the repository's root, to its end."""
    return subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=TIME_LIMIT_S,
    )


def only_run(runs: Path) -> Path:
    """The folder of the only run."""
    (folder,) = runs.iterdir()
    return folder


def read_json(path: Path) -> Any:
    return json.loads(path.read_text())


def metrics_of(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]

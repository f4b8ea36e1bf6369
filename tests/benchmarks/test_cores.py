"""benchmarks/cores.py measures every contender and a reference beside it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from benchmarks.provenance import TREE


def test_every_executor_is_measured_with_every_worker_count(tmp_path: Path) -> None:
    found = tmp_path / "cores.json"
    options = ["--workers", "1", "2", "--envs", "50 µs", "--rounds", "1", "--seconds", "0.05", "--devices", "cpu"]
    command = [sys.executable, "benchmarks/cores.py", *options, "--json", str(found)]
    done = subprocess.run(command, cwd=TREE, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    rows = json.loads(found.read_text())["rows"]
    assert [row["workers"] for row in rows] == [1, 2]
    ways = ("in workers", "lock-step", "lock-step, cpu")
    for row in rows:
        assert [*row["efficiency"]] == ["limit", *(f"{one}, {way}" for one in ("process", "ray") for way in ways)]
        assert all(rate > 0 for rates in row["env_steps_per_s"].values() for rate in rates)
    assert set(rows[0]["efficiency"].values()) == {1.0} == {row["of_the_limit"]["limit"] for row in rows}


def test_rows_beyond_the_time_limit_are_reported_as_left_out() -> None:
    command = [sys.executable, "benchmarks/cores.py", "--workers", "1", "--limit-s", "0"]
    done = subprocess.run(command, cwd=TREE, capture_output=True, text=True, timeout=60, check=True)
    assert "HalfCheetah-v5 with 1 workers: skipped, the time limit is reached" in done.stdout

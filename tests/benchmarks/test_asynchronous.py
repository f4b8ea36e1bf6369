"""The tables of asynchronous learning: one small run for each row."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks.asynchronous import Limit, table
from benchmarks.provenance import TREE


@pytest.mark.parametrize("what", ["race --envs CartPole-v1", "lag --lags 0 2 --corrections ratio none"])
def test_benchmark_writes_a_row_for_every_setting(what: str, tmp_path: Path) -> None:
    command = [sys.executable, "benchmarks/asynchronous.py", *what.split(), "--seeds", "1", "--env-steps", "1024"]
    done = subprocess.run(
        [*command, "--json", str(tmp_path / "found.json")], cwd=TREE, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "found.json").read_text())[what.split()[0]]
    assert len(rows) == 3 == len(done.stdout.splitlines()) - 2
    for row in rows:
        (run,) = row["runs"]
        assert run["seconds"] > 0 and run["reached_at"] >= 1024 and run["curve"] > 0
        assert (run["account"] is None) == (row.get("mode") == "synchronous")
        assert run["mean_lag"] <= row.get("max_lag", 4)


def test_unfinished_run_is_shown_but_excluded_from_the_median() -> None:
    run = {"reached_at": 4096, "curve": 100.0, "return": 480.0, "mean_lag": 0.0, "account": None}
    whole, cut = {**run, "finished": True, "reached": True, "seconds": 2.0}, {**run, "finished": False, "seconds": 9.0}
    both, none = table([{"mode": "rest", "runs": [whole, cut]}, {"mode": "discard", "runs": [cut]}]).splitlines()[2:]
    assert both.startswith("| rest | 1 of 1, 1 cut short | 2.0 (2.0 to 2.0) |")
    assert none.startswith("| discard | none finished |")


@pytest.mark.parametrize("left_s", [-1.0, 60.0])
def test_run_ends_with_the_update_in_which_its_time_limit_expires(left_s: float) -> None:
    results: list[str] = []
    limit = Limit(time.time() + left_s)
    limit.on_update(SimpleNamespace(stop=results.append), None)
    assert limit.ended == (len(results) == 1) == (left_s < 0)


def test_more_cells_than_cores_are_refused() -> None:
    command = [sys.executable, "benchmarks/asynchronous.py", "race", "--cells", "10000"]
    done = subprocess.run(command, cwd=TREE, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "--cells 10000 needs 20000 cores, but only " in done.stderr

"""The tables of asynchronous learning: one small run for each row."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.provenance import TREE


@pytest.mark.parametrize("what", ["race --envs CartPole-v1", "lag --lags 0 2 --corrections ratio none"])
def test_it_tells_what_became_of_every_run(what: str, tmp_path: Path) -> None:
    command = [sys.executable, "benchmarks/asynchronous.py", *what.split(), "--seeds", "1", "--env-steps", "1024"]
    done = subprocess.run(
        [*command, "--json", str(tmp_path / "found.json")], cwd=TREE, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "found.json").read_text())["rows"]
    assert len(rows) == 3 == len(done.stdout.splitlines()) - 2
    for row in rows:
        (run,) = row["runs"]
        assert run["seconds"] > 0 and run["reached_at"] >= 1024 and run["curve"] > 0
        assert (run["account"] is None) == (row.get("mode") == "synchronous")
        assert run["mean_lag"] <= row.get("max_lag", 4)

"""The table of what is learned with a memory: its rows are presets, and rows are compared with one another."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import benchmarks.meta_learning as rows
from benchmarks.provenance import TREE
from multiverse.training.config.resolve import presets


def test_every_task_is_a_preset_and_variants_have_equal_cost() -> None:
    for task in rows.TASKS:
        assert (task.env, task.algorithm) in presets()
        costs = {"env_steps", "gradient_steps", "updates_per_step", "steps_per_env"} & task.settings.keys()
        assert not costs or task.settings is rows.A_WHILE  # no variants


def table(semi_circle: float, markov: float, low: float) -> dict[str, Any]:
    def row(iqm: float, interval: list[float]) -> dict[str, Any]:
        runs = [{"mean_return/episode_1": 1.0, rows.SECOND: iqm + seed} for seed in (-1.0, 1.0)]
        return {"figure": rows.SECOND, "iqm": iqm, "interval": interval, "runs": runs}

    return {
        "semi-circle": row(semi_circle, [low, 9.0]),
        "semi-circle-markov": row(markov, [0.0, 5.0]),
        "semi-circle-oracle": row(10.0, [9.0, 11.0]),
    }


def test_rows_are_compared_with_their_thresholds() -> None:
    good = rows.compared(table(8.0, 5.0, 6.0))
    assert "semi-circle 8.00, 1.5 × semi-circle-markov is 7.50: reached" in good
    assert "semi-circle 8.00, 0.6 × semi-circle-oracle is 6.00: reached" in good
    assert "semi-circle: from its first episode to its second 1.00 → 8.00, by +6.00 to +8.00 a seed: above" in good
    assert any(one.endswith("by -0.50 to +1.50 a seed: not told apart") for one in rows.compared(table(1.5, 5.0, 1.0)))
    assert "semi-circle 8.00, 1.5 × semi-circle-markov is 7.50: MISSED" in rows.compared(table(8.0, 5.0, 4.0))
    assert "semi-circle 5.00, 0.6 × semi-circle-oracle is 6.00: MISSED" in rows.compared(table(5.0, 1.0, 4.5))


def test_row_is_run_and_written_to_the_results_file(tmp_path: Path) -> None:
    command = [sys.executable, "benchmarks/meta_learning.py", "--tasks", "wind-markov", "--seeds", "1", "--jobs", "1"]
    command += ["--env-steps", "1200", "--json", str(tmp_path / "found.json")]
    done = subprocess.run(command, cwd=TREE, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    (found,) = json.loads((tmp_path / "found.json").read_text())["tasks"]
    (run,) = found["runs"]
    assert found["iqm"] == run["mean_return"] and run["env_steps"] == 1200 and "mean_return/episode_1" in run

"""benchmarks/gpu.py also runs without a GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_benchmark_without_a_gpu_measures_the_cpu(tmp_path: Path) -> None:
    small = {"envs": 2, "steps": 4, "epochs": 1, "minibatches": 2, "size": 36, "cpu-updates": 0, "threads": 1}
    options = [f"--{name}={value}" for name, value in {**small, "out": tmp_path / "gpu.json"}.items()]
    command = [sys.executable, "benchmarks/gpu.py", *options, "--devices", "cpu"]
    output = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=True).stdout
    rows = json.loads((tmp_path / "gpu.json").read_text())["rows"]
    assert [(row["device"], row["share_features"], row["minibatches"]) for row in rows] == [
        ("cpu", False, 2),
        ("cpu", True, 2),
    ]
    assert all(row["update_s"] > 0 for row in rows) and "| cpu, shared |" in output

"""The reference of the recurrent benchmark has equal networks and learns from the same sequences."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

from benchmarks import recurrent
from benchmarks.provenance import TREE


@pytest.mark.parametrize("name", recurrent.ROWS)
def test_both_implementations_have_equal_parameter_counts_and_learn(name: str) -> None:
    row = recurrent.ROWS[name]
    algorithm, theirs = recurrent.ours(row), recurrent.Theirs(row)
    for network, module in (("actor", theirs.actor), ("critic", theirs.critic)):
        count = sum(one.numel() for one in module.parameters())
        assert len(algorithm._networks[network].optimizer.parameters) == count
    before = [one.detach().clone() for one in theirs.actor.parameters()]
    for _ in range(2):
        theirs.gradient_step(algorithm.replay.sequences(np.random.default_rng(0), 2, 8))
    assert any((one != old).any() for one, old in zip(theirs.actor.parameters(), before))


def test_ratio_is_written_to_the_results_file(tmp_path: Path) -> None:
    command = [sys.executable, "benchmarks/recurrent.py", "--rows", "wind", "--rounds", "1", "--steps", "1"]
    done = subprocess.run(
        [*command, "--json", str(tmp_path / "found.json")], cwd=TREE, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    (row,) = json.loads((tmp_path / "found.json").read_text())["rows"]
    assert row["ratio"] == pytest.approx(row["rounds"][0]["theirs"] / row["rounds"][0]["ours"])

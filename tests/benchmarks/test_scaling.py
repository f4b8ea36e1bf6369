"""docs/scaling.md has the figures of its model; the benchmark with nodes in namespaces names its requirements."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from benchmarks import namespaces, scaling_model

ROOT = Path(__file__).parents[2]


def test_scaling_page_has_the_table_of_the_model(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["scaling_model.py"])
    scaling_model.main()
    table = capsys.readouterr().out
    assert len(table.splitlines()) == 2 + len(scaling_model.EACH) and table in (ROOT / "docs/scaling.md").read_text()


def test_predicted_rate_grows_with_nodes_up_to_the_limit() -> None:
    for run in scaling_model.EACH.values():
        rates = [run.rate(nodes) for nodes in scaling_model.NODES]
        assert rates == sorted(rates) and rates[-1] < run.most()[0]


def test_missing_requirements_of_network_namespaces_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert namespaces.unavailable_reason() == "network namespaces need root"
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda tool: None if tool == "tc" else tool)
    assert namespaces.unavailable_reason() == "not installed: tc (packages iproute2 and util-linux)"

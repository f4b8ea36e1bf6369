"""docs/scaling.md says what its model says; nodes in namespaces say what they need."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from benchmarks import namespaces, scaling_model

ROOT = Path(__file__).parents[2]


def test_the_page_has_the_models_table(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["scaling_model.py"])
    scaling_model.main()
    table = capsys.readouterr().out
    assert len(table.splitlines()) == 2 + len(scaling_model.EACH) and table in (ROOT / "docs/scaling.md").read_text()


def test_more_nodes_never_give_more_than_the_limit() -> None:
    for run in scaling_model.EACH.values():
        rates = [run.rate(nodes) for nodes in scaling_model.NODES]
        assert rates == sorted(rates) and rates[-1] < run.most()[0]


def test_namespaces_say_what_they_need(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert namespaces.why_not() == "network namespaces need root"
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda tool: None if tool == "tc" else tool)
    assert namespaces.why_not() == "not installed: tc (packages iproute2 and util-linux)"

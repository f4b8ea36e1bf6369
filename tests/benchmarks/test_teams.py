"""The benchmark of teams measures every contender."""

from __future__ import annotations

import sys

import pytest

from benchmarks import teams


def test_every_contender_is_measured(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["teams.py", "--boxes", "2", "--rounds", "1", "--seconds", "0.02"])
    teams.main()
    output = [line for line in capsys.readouterr().out.splitlines() if "s/s " in line]
    assert [line[2:14].strip() for line in output] == [teams.ONE, "process", teams.ONE, *teams.EXECUTORS]
    assert all(float(line[14:25].replace(",", "")) > 0 for line in output)

"""The multi-agent benchmark runs, also with AgileRL where that is installed."""

from __future__ import annotations

import importlib.util
import sys

import pytest

from benchmarks import multi_agent

AGILERL = importlib.util.find_spec("agilerl") is not None
OURS = ["limit", "one bare loop", "ours, serial", "ours, hybrid", "ours, process"]


@pytest.mark.parametrize("row", ["idle", "idle in turn"])
def test_every_contender_is_measured(
    row: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["multi_agent.py", "--rows", row, "--rounds", "1", "--seconds", "0.02"])
    multi_agent.main()
    output = capsys.readouterr().out
    beside = ["drop-in", *(["agilerl"] if AGILERL else [])] if row == "idle" else []
    measured = [line for line in output.splitlines() if "steps/s" in line]
    assert [line[2:18].strip() for line in measured] == OURS + beside
    assert all(float(line[18:30].replace(",", "")) > 0 for line in measured)
    assert ("agilerl is not installed" in output) == (not AGILERL)
    assert all(("× agilerl" in line) == ("agilerl" in beside) for line in measured)


def test_agilerl_and_its_drop_in_take_the_same_steps() -> None:
    for kind in multi_agent.agilerl_classes().values():
        steps, envs = multi_agent.agilerl_stepper(kind, multi_agent.IdleTogether)
        steps(3)
        assert (envs.num_envs, envs.copy) == (multi_agent.NUM_ENVS, False)
        envs.close()

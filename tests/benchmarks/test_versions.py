"""The comparison of two versions trains with the sources of each, and refuses a directory without sources."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import versions
from benchmarks.provenance import TREE


def test_two_versions_are_measured_in_turns_and_written_to_the_results_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny = versions.Row("CartPole-v1", "ppo", 64, {"num_envs": 2, "steps_per_env": 16, "executor": "serial"})
    monkeypatch.setitem(versions.ROWS, "tiny", tiny)
    before = tmp_path / "before"
    before.mkdir()
    (before / "src").symlink_to(TREE / "src")
    assert versions.main([str(before), "--rows", "tiny", "--repeats", "1", "--json", str(tmp_path / "found.json")]) == 0
    found = json.loads((tmp_path / "found.json").read_text())
    (row,) = found["rows"]
    assert row["row"] == "tiny" and found["provenance"]["command"].startswith("python benchmarks/")
    assert all(len(rates) == 1 and rates[0] > 0 for rates in row["env_steps_per_s"].values())


def test_directory_without_sources_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        versions.main([str(tmp_path)])
    assert "has no src/multiverse" in capsys.readouterr().err


def test_steps_of_two_versions_are_measured_in_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "STEP_S", 0.05)
    before = tmp_path / "before"
    before.mkdir()
    (before / "src").symlink_to(TREE / "src")
    results = tmp_path / "results.json"
    assert versions.main([str(before), "--rows", "step_serial_cartpole", "--repeats", "2", "--json", str(results)]) == 0
    (row,) = json.loads(results.read_text())["rows"]
    assert row["row"] == "step_serial_cartpole"
    assert all(len(rates) == 2 and min(rates) > 0 for rates in row["env_steps_per_s"].values())

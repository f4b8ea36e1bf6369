"""Every results file records its provenance."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import provenance as module
from benchmarks.provenance import COMMIT, FIELDS, TREE, UNKNOWN, provenance, write_results

RESULTS = sorted((TREE / "benchmarks" / "results").rglob("*"))
ALWAYS = {"python", "numpy", "torch", "gymnasium", "mujoco"}


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.name)
def test_results_file_has_provenance(path: Path) -> None:
    found: dict[str, Any] = json.loads(path.read_text())["provenance"]
    assert set(FIELDS) <= set(found) and set(found["versions"]) >= ALWAYS
    assert found["commit"] == UNKNOWN or re.fullmatch(r"[0-9a-f]{40}", found["commit"])
    assert found["command"].startswith("python benchmarks/")


def test_results_files_exist() -> None:
    assert len(RESULTS) >= 5


def test_every_benchmark_that_writes_json_writes_provenance() -> None:
    writers = [path for path in (TREE / "benchmarks").glob("*.py") if '"--json"' in path.read_text()]
    assert len(writers) >= 8
    for path in writers:
        source = path.read_text()
        assert "write_results(" in source and ("provenance()" in source or "first_provenance(out)" in source), path.name


def test_provenance_describes_this_tree_and_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(COMMIT, raising=False)
    write_results(tmp_path / "new" / "figures.json", provenance(), {"figures": [1]})
    found = json.loads((tmp_path / "new" / "figures.json").read_text())
    assert found["figures"] == [1] and set(found["provenance"]) == {*FIELDS, "blas"}
    asked = subprocess.run(["git", "rev-parse", "HEAD"], cwd=TREE, capture_output=True, text=True)
    commit = asked.stdout.strip() if asked.returncode == 0 else UNKNOWN
    assert found["provenance"]["commit"] == commit
    assert found["provenance"]["versions"]["python"] == sys.version.split()[0]
    assert found["provenance"]["versions"]["numpy"] is not None


@pytest.mark.parametrize(("said", "commit", "changed"), [("ab12", "ab12", False), ("ab12-dirty", "ab12", True)])
def test_commit_of_a_copy_without_git_history_is_read_from_the_environment(
    said: str, commit: str, changed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(COMMIT, said)
    assert {**provenance(), "commit": commit, "changed": changed} == provenance()


def test_commit_is_unknown_without_git_history_and_environment_variable(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv(COMMIT, raising=False)
    monkeypatch.setattr(module, "TREE", tmp_path)
    found = provenance()
    assert found["commit"] == UNKNOWN and found["changed"] is None

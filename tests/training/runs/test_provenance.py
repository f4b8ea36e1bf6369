"""Provenance of a run is recorded, whatever is missing on the machine."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from pathlib import Path

import numpy as np
import pytest

import multiverse
from multiverse.core.plan import Plan
from multiverse.training.runs import origin
from multiverse.training.runs.origin import git_commit, provenance


def test_provenance_has_versions_machine_and_command() -> None:
    result = provenance(7, Plan("process", 2, "forkserver", "auto", "because"))
    assert json.loads(json.dumps(result)) == result
    assert (result["seed"], result["plan"]["executor"]) == (7, "process")
    assert result["versions"]["python"] == platform.python_version()
    assert result["versions"]["multiverse"] == multiverse.__version__
    assert result["versions"]["numpy"] == np.__version__
    assert result["machine"]["usable_cores"] >= 1 and result["machine"]["memory_bytes"] > 2**20
    assert result["started"].startswith("20") and result["command"]


def git(folder: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=n", "-c", "user.email=e")
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)


def test_commit_and_changes_of_a_directory_are_found(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet")
    assert git_commit(tmp_path) is None  # nothing committed yet
    (tmp_path / "file").write_text("one")
    git(tmp_path, "add", "file")
    git(tmp_path, "commit", "--quiet", "-m", "one")
    result = git_commit(tmp_path)
    assert result is not None and len(result["commit"]) == 40 and result["changed"] is False
    (tmp_path / "file").write_text("two")
    changed = git_commit(tmp_path)
    assert changed is not None and changed["changed"] is True


def hangs(*arguments: object, **named: object) -> None:
    raise subprocess.TimeoutExpired("git", 2.0)


def is_not_there(*arguments: object, **named: object) -> None:
    raise FileNotFoundError("git")


@pytest.mark.parametrize("run", [hangs, is_not_there])
def test_missing_git_gives_no_commit_and_no_error(run: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", run)
    assert git_commit() is None and provenance(1)["git"] is None  # the benchmarks use the first of these


def test_directory_outside_of_repositories_has_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert git_commit(tmp_path) is None


def test_unreadable_machine_data_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*arguments: object, **named: object) -> None:
        raise PermissionError

    monkeypatch.setattr(Path, "read_text", refuses)
    monkeypatch.setattr(origin, "usable_cores", refuses)
    result = provenance(1)["machine"]
    assert result["usable_cores"] is None and result["cpu"]


def test_deleted_working_directory_is_no_error(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    before = os.open(".", os.O_RDONLY)
    try:
        os.chdir(gone)
        gone.rmdir()
        assert provenance(1)["git"] is None
    finally:
        os.fchdir(before)
        os.close(before)

"""Where a run came from is told, whatever is missing on the machine."""

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


def test_it_says_what_ran_where() -> None:
    told = provenance(7, Plan("process", 2, "forkserver", "auto", "because"))
    assert json.loads(json.dumps(told)) == told
    assert (told["seed"], told["plan"]["executor"]) == (7, "process")
    assert told["versions"]["python"] == platform.python_version()
    assert told["versions"]["multiverse"] == multiverse.__version__
    assert told["versions"]["numpy"] == np.__version__
    assert told["machine"]["usable_cores"] >= 1 and told["machine"]["memory_bytes"] > 2**20
    assert told["started"].startswith("20") and told["command"]


def git(folder: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=n", "-c", "user.email=e")
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)


def test_the_commit_of_a_directory_and_whether_it_was_changed(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet")
    assert git_commit(tmp_path) is None  # nothing committed yet
    (tmp_path / "file").write_text("one")
    git(tmp_path, "add", "file")
    git(tmp_path, "commit", "--quiet", "-m", "one")
    told = git_commit(tmp_path)
    assert told is not None and len(told["commit"]) == 40 and told["changed"] is False
    (tmp_path / "file").write_text("two")
    changed = git_commit(tmp_path)
    assert changed is not None and changed["changed"] is True


def hangs(*arguments: object, **named: object) -> None:
    raise subprocess.TimeoutExpired("git", 2.0)


def is_not_there(*arguments: object, **named: object) -> None:
    raise FileNotFoundError("git")


@pytest.mark.parametrize("run", [hangs, is_not_there])
def test_without_git_there_is_no_commit_and_no_error(run: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", run)
    assert git_commit() is None and provenance(1)["git"] is None  # the benchmarks' ask the first of these


def test_outside_of_any_repository_there_is_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert git_commit(tmp_path) is None


def test_a_machine_that_tells_nothing_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*arguments: object, **named: object) -> None:
        raise PermissionError

    monkeypatch.setattr(Path, "read_text", refuses)
    monkeypatch.setattr(origin, "usable_cores", refuses)
    told = provenance(1)["machine"]
    assert told["usable_cores"] is None and told["cpu"]


def test_a_deleted_working_directory_is_no_error(tmp_path: Path) -> None:
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

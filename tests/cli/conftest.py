"""Fixtures of the tests of commands."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to an empty directory, in which runs/ is created."""
    monkeypatch.chdir(tmp_path)
    return tmp_path

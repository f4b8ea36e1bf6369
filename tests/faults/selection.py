"""The tests of `make test-faults` (`-p tests.faults.selection -m fault`): every marked test, in every configuration."""

from __future__ import annotations

from pathlib import Path


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Files without a marked test are not even imported."""
    if not collection_path.match("test_*.py"):
        return None
    return "@pytest.mark.fault(" not in collection_path.read_text() or None

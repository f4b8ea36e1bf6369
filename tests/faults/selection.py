"""What `make test-faults` runs: `-p tests.faults.selection -m fault`.

Every marked test runs in full where the start method is forkserver (or there is none), and otherwise as
`tests.selection` has it.
"""

from __future__ import annotations

from pathlib import Path

from tests.selection import pytest_collection_modifyitems

__all__ = ["pytest_collection_modifyitems"]


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Files without a marked test are not even imported."""
    if not collection_path.match("test_*.py"):
        return None
    return "@pytest.mark.fault(" not in collection_path.read_text() or None

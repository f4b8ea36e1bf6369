"""Fixtures of the contract suite, and the warnings of a test."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from tests.vector.conftest import gate, make, nothing_left_behind  # noqa: F401

LoggedWarnings = Callable[[], list[str]]


@pytest.fixture
def logged_warnings(caplog: pytest.LogCaptureFixture) -> LoggedWarnings:
    """Return the warnings logged so far, without those about a slow machine: progress, and more workers than cores."""
    caplog.set_level(logging.WARNING, "multiverse")
    return lambda: [m for m in caplog.messages if not m.startswith("starting: ") and "usable core" not in m]

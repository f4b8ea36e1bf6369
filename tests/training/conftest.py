from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.forked_programs import TRAINING, ForkedPrograms


@pytest.fixture(scope="module")
def programs(request: pytest.FixtureRequest) -> Iterator[ForkedPrograms]:
    """Programs with the modules in the file's `LOADED`, and those that every training loads."""
    with ForkedPrograms(*TRAINING, *getattr(request.module, "LOADED", ())) as programs:
        yield programs

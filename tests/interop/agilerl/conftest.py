"""Vector envs that are closed at the end of each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from multiverse.interop.agilerl import AsyncPettingZooVecEnv
from tests.interop.conftest import remembered

Make = Callable[..., AsyncPettingZooVecEnv]


@pytest.fixture
def make() -> Iterator[Make]:
    yield from remembered(AsyncPettingZooVecEnv, terminate=True)

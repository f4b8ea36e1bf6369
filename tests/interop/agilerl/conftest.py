"""Vector envs that are closed whatever happens, and a gate at which envs wait."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from multiverse.interop.agilerl import AsyncPettingZooVecEnv
from tests.fault_envs import Gate

Make = Callable[..., AsyncPettingZooVecEnv]


@pytest.fixture
def make() -> Iterator[Make]:
    opened: list[AsyncPettingZooVecEnv] = []

    def make_and_remember(*env_fns: Any, **options: Any) -> AsyncPettingZooVecEnv:
        opened.append(AsyncPettingZooVecEnv(list(env_fns), **options))
        return opened[-1]

    yield make_and_remember
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of closing while something is pending
        for envs in opened:
            envs.close(terminate=True)


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    return Gate(tmp_path / "gate")

"""Vector envs that are closed at the end of each test, and a gate at which envs wait."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tests.fault_envs import Gate

Envs = TypeVar("Envs")


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    return Gate(tmp_path / "gate")


def remembered(kind: Callable[..., Envs], **closing: Any) -> Iterator[Callable[..., Envs]]:
    """For a fixture: a function that makes vector envs of that class, which are closed at the end."""
    opened: list[Any] = []

    def make_and_remember(*env_fns: Any, **options: Any) -> Envs:
        opened.append(kind(list(env_fns), **options))
        return opened[-1]  # type: ignore[no-any-return]

    yield make_and_remember
    with warnings.catch_warnings():
        if closing:
            warnings.simplefilter("ignore")  # of closing while something is pending
        for envs in opened:
            envs.close(**closing)

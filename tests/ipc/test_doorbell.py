"""Doorbells: several rings are one wake-up, and ringing never blocks."""

from __future__ import annotations

import os
import select
from collections.abc import Iterator

import pytest

from multiverse.ipc.doorbell import (
    Doorbell,
    EventfdDoorbell,
    PipeDoorbell,
    descriptors_per_doorbell,
    doorbell_from,
    new_doorbell,
)


@pytest.fixture(params=["", "1"], ids=["eventfd", "pipe"])
def bell(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Doorbell]:
    monkeypatch.setenv("MULTIVERSE_FALLBACK", request.param)
    bell = new_doorbell()
    assert isinstance(bell, PipeDoorbell if request.param else EventfdDoorbell)
    yield bell
    bell.close()


def rung(bell: Doorbell) -> bool:
    return bool(select.select([bell.wait_fd], [], [], 0)[0])


def test_ring_stays_until_drained(bell: Doorbell) -> None:
    assert not rung(bell)
    bell.ring()
    assert rung(bell)
    assert rung(bell)
    bell.drain()
    assert not rung(bell)


def test_many_rings_are_one_wake_up(bell: Doorbell) -> None:
    for _ in range(3):
        bell.ring()
    bell.drain()
    assert not rung(bell)


def test_draining_a_silent_bell_does_not_block(bell: Doorbell) -> None:
    bell.drain()


def test_ringing_an_undrained_bell_does_not_block(bell: Doorbell) -> None:
    for _ in range(100_000):  # more than a pipe holds
        bell.ring()
    assert rung(bell)
    bell.drain()
    assert not rung(bell)


def test_bell_is_rebuilt_from_its_descriptors(bell: Doorbell) -> None:
    assert len(bell.fds) == descriptors_per_doorbell()
    theirs = doorbell_from(tuple(os.dup(fd) for fd in bell.fds))
    assert type(theirs) is type(bell)
    theirs.ring()
    assert rung(bell)
    bell.drain()
    assert not rung(theirs)
    theirs.close()


def test_bell_is_not_inherited_by_started_programs(bell: Doorbell) -> None:
    assert not any(os.get_inheritable(fd) for fd in bell.fds)


def test_second_close_does_nothing(bell: Doorbell) -> None:
    fds = bell.fds
    bell.close()
    bell.close()
    for fd in fds:
        with pytest.raises(OSError):
            os.fstat(fd)

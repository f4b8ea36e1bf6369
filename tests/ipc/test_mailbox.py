"""Mailboxes: a request is taken once, a reply belongs to its request, and only a sleeping side is rung for."""

from __future__ import annotations

import numpy as np
import pytest

from multiverse.ipc.mailbox import FLAG_BITS, CallerMailbox, WorkerMailbox, control_field


class SilentBell:
    """Counts its rings."""

    wait_fd, fds = -1, ()

    def __init__(self) -> None:
        self.rings = 0

    def ring(self) -> None:
        self.rings += 1

    def drain(self) -> None:
        pass

    def close(self) -> None:
        pass


@pytest.fixture
def control() -> np.ndarray:
    field = control_field(2)
    return np.zeros(field.shape, field.dtype)


@pytest.fixture
def ends(control: np.ndarray) -> tuple[CallerMailbox, WorkerMailbox]:
    bells = SilentBell(), SilentBell()
    return CallerMailbox(control, 0, bells), WorkerMailbox(control, 0, bells)


Ends = tuple[CallerMailbox, WorkerMailbox]


def test_request_is_seen_once_and_answered_once(ends: Ends) -> None:
    caller, worker = ends
    assert not worker.requested()
    for number, command in enumerate((3, 1, 2), start=1):
        caller.post(command, number)
        assert not caller.answered()
        assert worker.requested()
        assert worker.take() == command
        assert not worker.requested()
        worker.reply(0)
        assert caller.answered()


@pytest.mark.parametrize("flags", range(1 << FLAG_BITS))
def test_reply_has_flags_and_its_number(ends: Ends, flags: int) -> None:
    caller, worker = ends
    for number in (1, 2, 9):
        caller.post(1, number)
        assert not caller.answered()
        worker.take()
        worker.reply(flags)
        assert caller.answered()
        assert caller.flags() == flags


@pytest.mark.fault("A6")
def test_old_reply_does_not_answer_a_new_request(ends: Ends) -> None:
    caller, worker = ends
    caller.post(1, 1)
    worker.take()
    worker.reply(15)
    caller.post(2, 2)
    assert not caller.answered()


def test_repeated_post_changes_nothing(ends: Ends) -> None:
    caller, worker = ends
    caller.post(5, 1)
    caller.post(5, 1)
    assert worker.take() == 5
    caller.post(5, 1)
    assert not worker.requested()
    worker.reply(3)
    caller.post(5, 1)
    assert not worker.requested()
    assert caller.answered()
    assert caller.flags() == 3


def test_number_that_was_never_posted_is_never_answered(ends: Ends) -> None:
    caller, worker = ends
    caller.post(4, 1)
    worker.take()
    worker.reply(0)
    caller.post(6, 5)  # requests 2 to 4 were abandoned before they were posted
    assert worker.take() == 6
    assert not caller.answered()
    worker.reply(0)
    assert caller.answered()


def test_bell_is_rung_only_for_a_sleeper(ends: Ends) -> None:
    caller, worker = ends
    caller.post(1, 1)
    worker.take()
    worker.reply(0)
    assert (caller.request_bell.rings, caller.reply_bell.rings) == (0, 0)
    worker.set_asleep(True)
    caller.set_asleep(True)
    caller.post(1, 2)
    worker.set_asleep(False)
    worker.take()
    worker.reply(0)
    caller.set_asleep(False)
    caller.post(1, 3)
    assert (caller.request_bell.rings, caller.reply_bell.rings) == (1, 1)


def test_each_worker_has_its_own_words(control: np.ndarray) -> None:
    bells = SilentBell(), SilentBell()
    callers = [CallerMailbox(control, w, bells) for w in range(2)]
    workers = [WorkerMailbox(control, w, bells) for w in range(2)]
    callers[1].post(9, 1)
    assert not workers[0].requested()
    assert workers[1].take() == 9


def test_each_side_writes_its_own_cache_lines(control: np.ndarray, ends: Ends) -> None:
    caller, worker = ends
    caller.set_asleep(True)
    caller.post(7, 1)
    by_caller = set(np.flatnonzero(control[0]).tolist())
    control[0] = 0
    worker.sequence = 1
    worker.set_asleep(True)
    worker.reply(1)
    by_worker = set(np.flatnonzero(control[0]).tolist())
    assert max(by_caller) < 16 <= min(by_worker)
    assert control.strides[0] % 128 == 0

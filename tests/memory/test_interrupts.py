"""Ctrl-C held back: it comes at the end of the block, never in the middle, and never gets lost."""

from __future__ import annotations

import io
import logging
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from multiverse.memory.interrupts import HeldInterrupts, StopRequests, log


@pytest.fixture(autouse=True)
def handler_is_put_back() -> Iterator[None]:
    before = signal.getsignal(signal.SIGINT)
    yield
    assert signal.getsignal(signal.SIGINT) is before


def test_an_interrupt_takes_effect_at_the_end() -> None:
    reached = []
    with pytest.raises(KeyboardInterrupt), HeldInterrupts():
        signal.raise_signal(signal.SIGINT)
        reached.append("the end")
    assert reached == ["the end"]


@pytest.mark.fault("A14")
def test_a_second_one_comes_through_at_once() -> None:
    reached = []
    with pytest.raises(KeyboardInterrupt), HeldInterrupts():
        signal.raise_signal(signal.SIGINT)
        reached.append("after the first")
        signal.raise_signal(signal.SIGINT)
        reached.append("after the second")
    assert reached == ["after the first"]


def test_without_an_interrupt_nothing_happens() -> None:
    with HeldInterrupts():
        pass


def test_an_error_inside_passes_through() -> None:
    with pytest.raises(LookupError), HeldInterrupts():
        raise LookupError


def test_where_interrupts_are_ignored_they_stay_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with HeldInterrupts():
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


def test_in_another_thread_there_is_nothing_to_hold_back() -> None:
    done = []

    def work() -> None:
        with HeldInterrupts():
            done.append(1)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == [1]


def test_a_signal_in_the_middle_of_a_line_is_told_all_the_same(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    written = b""

    class Raw(io.RawIOBase):
        def writable(self) -> bool:
            return True

        def write(self, given: Any) -> int:
            nonlocal written
            if not written:
                signal.raise_signal(signal.SIGINT)
            written += bytes(given)
            return len(given)

    stream = io.TextIOWrapper(io.BufferedWriter(Raw()), write_through=True)
    handler = logging.StreamHandler(stream)
    monkeypatch.setattr("sys.stderr", stream)
    log.addHandler(handler)
    try:
        with StopRequests() as stops:
            stream.write("a line\n")
            stream.flush()
    finally:
        log.removeHandler(handler)
    assert stops.received is signal.SIGINT and written == b"a line\n"
    assert "\nSIGINT: saving and ending; once more ends it at once\n" in capfd.readouterr().err

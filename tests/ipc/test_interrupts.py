"""Deferred Ctrl-C: it takes effect at the end of the block, never in the middle, and is never lost."""

from __future__ import annotations

import faulthandler
import io
import logging
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from multiverse.ipc.interrupts import HeldInterrupts, StopRequests, ended_on_request, log


@pytest.fixture(autouse=True)
def handler_is_put_back() -> Iterator[None]:
    before = signal.getsignal(signal.SIGINT)
    yield
    assert signal.getsignal(signal.SIGINT) is before


def test_interrupt_takes_effect_at_the_end() -> None:
    reached = []
    with pytest.raises(KeyboardInterrupt), HeldInterrupts():
        signal.raise_signal(signal.SIGINT)
        reached.append("the end")
    assert reached == ["the end"]


@pytest.mark.fault("A14")
def test_second_interrupt_takes_effect_at_once() -> None:
    reached = []
    with pytest.raises(KeyboardInterrupt), HeldInterrupts():
        signal.raise_signal(signal.SIGINT)
        reached.append("after the first")
        signal.raise_signal(signal.SIGINT)
        reached.append("after the second")
    assert reached == ["after the first"]


def test_block_without_interrupt_does_nothing() -> None:
    with HeldInterrupts():
        pass


def test_error_inside_passes_through() -> None:
    with pytest.raises(LookupError), HeldInterrupts():
        raise LookupError


def test_ignored_interrupts_stay_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with HeldInterrupts():
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


def test_other_threads_hold_no_interrupts() -> None:
    done = []

    def work() -> None:
        with HeldInterrupts():
            done.append(1)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == [1]


@pytest.mark.parametrize("own", ["handler", "faulthandler", "ignored"])
def test_sigusr1_handler_of_the_program_is_kept(own: str, tmp_path: Path) -> None:
    heard: list[int] = []
    with (tmp_path / "stacks").open("w+") as stacks:
        if own == "faulthandler":
            faulthandler.register(signal.SIGUSR1, file=stacks)
        else:
            signal.signal(
                signal.SIGUSR1, signal.SIG_IGN if own == "ignored" else lambda number, _: heard.append(number)
            )
        try:
            with StopRequests() as stops, ended_on_request():
                signal.raise_signal(signal.SIGUSR1)
        finally:
            faulthandler.unregister(signal.SIGUSR1)
            signal.signal(signal.SIGUSR1, signal.SIG_DFL)
        assert stops.received is None
        assert (heard == [signal.SIGUSR1]) == (own == "handler")
        assert bool((tmp_path / "stacks").read_text()) == (own == "faulthandler")


@pytest.mark.fault("A14")
def test_sigusr1_is_noted_and_repetitions_do_not_end_at_once() -> None:
    with StopRequests() as stops:
        for _ in range(3):
            signal.raise_signal(signal.SIGUSR1)
    assert stops.received is signal.SIGUSR1 and signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL
    with pytest.raises(SystemExit) as ended:
        stops.raise_stop()
    assert ended.value.code == 138
    with pytest.raises(SystemExit), ended_on_request():
        signal.raise_signal(signal.SIGUSR1)


def test_signal_during_a_write_is_reported(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
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
    assert "\nSIGINT: saving and ending; Ctrl-C or SIGTERM now ends at once\n" in capfd.readouterr().err

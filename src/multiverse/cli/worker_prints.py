"""What worker processes print while a display is drawn: above it, line by line. By itself it would end up in it."""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

from rich.console import Console
from rich.text import Text

from multiverse.executors.launch import output

try:
    import fcntl
    import pty
    import termios
    import tty
except ImportError:  # Windows has no such terminals: there workers print where they always do
    pty = None  # type: ignore[assignment]

LAST_WORDS_S = 1.0
"""So long it is listened to in the end: what an env has started may go on and on."""
TOGETHER_S = 0.05
"""What comes within that time is printed at once: each time the display is drawn again."""
LONGEST = 1_024
"""Bytes of a line that does not end, until they are printed all the same."""


@contextmanager
def printed_above(console: Console, drawing: AbstractContextManager[Any]) -> Iterator[None]:
    """Workers that are started meanwhile print on a terminal of their own (in a pipe they would keep their lines to
    themselves until they have many), and a thread prints that on the console, while nobody is `drawing`."""
    if pty is None:
        yield
        return
    ours, theirs = pty.openpty()
    ending, end = os.pipe()
    tty.setraw(theirs)
    with suppress(OSError, ValueError):
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, fcntl.ioctl(console.file.fileno(), termios.TIOCGWINSZ, bytes(8)))

    def say(lines: bytes) -> None:
        with suppress(Exception), drawing:  # whatever it is, workers would wait for who reads them
            console.print(Text.from_ansi(lines.decode(errors="replace")), soft_wrap=True)

    reader = threading.Thread(target=_print_all, args=(ours, ending, say), name="multiverse-prints", daemon=True)
    reader.start()
    try:
        with output.of_workers(theirs):
            yield
    finally:
        os.write(end, b".")  # closing it would not do: what an env has forked has it too
        reader.join(2 * LAST_WORDS_S)
        if not reader.is_alive():  # else it waits for a terminal that nobody reads
            for fd in (ours, theirs, ending, end):
                os.close(fd)


def _print_all(source: int, ending: int, say: Callable[[bytes], None]) -> None:
    """Whole lines as they come until it is to end; then what is there still."""
    left = b""
    while ending not in select.select([source, ending], [], [])[0]:
        left = _passed_on(left + _read(source, TOGETHER_S), say)
    left = _passed_on(left + _read(source, LAST_WORDS_S, wait_s=0.0), say)
    if left:
        say(left)


def _read(source: int, for_s: float, wait_s: float | None = None) -> bytes:
    """What comes within so many seconds, or until `wait_s` of them bring nothing."""
    found, until = list[bytes](), time.monotonic() + for_s
    while (left_s := until - time.monotonic()) > 0 and select.select(
        [source], [], [], left_s if wait_s is None else wait_s
    )[0]:
        found.append(os.read(source, 65536))
    return b"".join(found)


def _passed_on(found: bytes, say: Callable[[bytes], None]) -> bytes:
    """Prints it, but for a line that has not ended; that, as much of it as would be seen."""
    lines, end, left = found.rpartition(b"\n")
    if end:
        say(lines)
    left = left.rpartition(b"\r")[2] or left
    if len(left) > LONGEST:
        say(left)
        left = b""
    return left

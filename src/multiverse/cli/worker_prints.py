"""What worker processes print while a display is drawn: above it, line by line. By itself it would end up in it."""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from typing import Any

from rich.console import Console
from rich.text import Text

from multiverse.executors.launch import output, start_methods

try:
    import fcntl
    import pty
    import termios
    import tty
except ImportError:  # Windows has no such terminals: there workers print where they always do
    pty = None  # type: ignore[assignment]

ALL, END = b"a", b"."
LAST_WORDS_S = 1.0
"""So long it is listened to when all of it is wanted: what an env has started may go on and on."""
TOGETHER_S = 0.05
"""What comes within that time is printed at once: each time the display is drawn again."""
LONGEST = 1_024
"""Bytes of a line that does not end, until they are printed all the same."""


@contextmanager
def printed_above(console: Console, drawing: AbstractContextManager[Any]) -> Iterator[Callable[[], Any]]:
    """Workers that are started meanwhile print on a terminal of their own (in a pipe they would keep their lines to
    themselves until they have many), and a thread prints that on the console, while nobody is `drawing`. What it gives
    has all printed that is there."""
    if pty is None:
        yield lambda: None
        return
    ours, theirs = pty.openpty()
    asked, ask = os.pipe()
    tty.setraw(theirs)
    with suppress(OSError, ValueError):
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, fcntl.ioctl(console.file.fileno(), termios.TIOCGWINSZ, bytes(8)))

    def say(lines: bytes) -> None:
        with suppress(Exception), drawing:  # whatever it is, workers would wait for who reads them
            console.print(Text.from_ansi(lines.decode(errors="replace")), soft_wrap=True)

    def answered(word: bytes) -> bool:
        done.clear()
        os.write(ask, word)  # closing it would not do: what an env has forked has it too
        return done.wait(2 * LAST_WORDS_S)  # else it waits for a terminal that nobody reads

    done, mine = threading.Event(), {ours, asked, ask}
    threading.Thread(target=_print_all, args=(ours, asked, say, done), name="multiverse-prints", daemon=True).start()
    start_methods.caller_fds.update(mine)
    try:
        with output.of_workers(theirs):
            yield partial(answered, ALL)
    finally:
        start_methods.caller_fds.difference_update(mine)
        if answered(END):
            for fd in (*mine, theirs):
                os.close(fd)


def _print_all(source: int, asked: int, say: Callable[[bytes], None], done: threading.Event) -> None:
    """Whole lines as they come and, when it is asked to, all that is there."""
    left = word = b""
    while word != END:
        if asked not in select.select([source, asked], [], [])[0]:
            left = _passed_on(left + _read(source, TOGETHER_S), say)
            continue
        word = os.read(asked, 1)
        left = _passed_on(left + _read(source, LAST_WORDS_S, wait_s=0.0), say)
        if left:
            say(left)
        left = b""
        done.set()


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

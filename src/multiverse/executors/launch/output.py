"""Where workers print: where the caller does, or, while somebody draws there, elsewhere."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

fd: int | None = None
"""Of workers that are started now; None: the caller's own standard output and error."""


@contextmanager
def of_workers(elsewhere: int) -> Iterator[None]:
    """Those that are started meanwhile print there."""
    global fd
    before, fd = fd, elsewhere
    try:
        yield
    finally:
        fd = before


def take(given: int) -> None:
    """In a worker: print there, and nowhere else, from now on. The streams are new: those that a fork has copied may be
    of somebody who draws, or locked by a thread that is not here."""
    global fd
    fd = None  # the number is another's soon
    for standard in (1, 2):
        os.dup2(given, standard)
    if given > 2:
        os.close(given)
    sys.stdout, sys.stderr = (open(standard, "w", buffering=1, closefd=False) for standard in (1, 2))  # noqa: SIM115

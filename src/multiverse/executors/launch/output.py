"""Where workers print: where the caller does, or, while somebody draws there, elsewhere."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

fd: int | None = None
"""Of workers that are started now; None: the caller's own standard output and error."""


def hold_standard_descriptors() -> None:
    """Open the null device on standard descriptors that are closed (`>&-`). Otherwise a pipe or a file that is opened
    later gets their numbers, and whatever an env prints goes there."""
    for standard in (0, 1, 2):
        try:
            os.fstat(standard)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # it gets the lowest free number


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
    """In a worker: print there, from now on, what would be printed on the caller's terminal; what goes to a file goes
    there. The streams are new: those that a fork has copied may be of somebody who draws, or locked by a thread that is
    not here."""
    global fd
    fd = None  # the number is another's soon
    for standard, name in ((1, "stdout"), (2, "stderr")):
        if os.isatty(standard):  # where it was closed, that may be the number of something else
            os.dup2(given, standard)
            said = {how: getattr(getattr(sys, f"__{name}__"), how, None) for how in ("encoding", "errors")}
            setattr(sys, name, open(standard, "w", buffering=1, closefd=False, **said))  # noqa: SIM115
    if given > 2:
        os.close(given)

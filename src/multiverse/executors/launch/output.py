"""Output of workers: to the caller's streams or, during a live display, to another descriptor."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

fd: int | None = None
"""Descriptor for the output of workers started from now on; None: the caller's standard output and error."""


def hold_standard_descriptors() -> None:
    """Open the null device on closed standard descriptors (`>&-`). Otherwise a pipe or file that is opened later would
    get their numbers, and output of envs would go there."""
    for standard in (0, 1, 2):
        try:
            os.fstat(standard)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # gets the lowest free number


@contextmanager
def of_workers(elsewhere: int) -> Iterator[None]:
    """Redirect the output of workers that are started in this context to the descriptor `elsewhere`."""
    global fd
    before, fd = fd, elsewhere
    try:
        yield
    finally:
        fd = before


def redirect(descriptor: int) -> None:
    """In a worker: redirect output to the caller's terminal to `descriptor`; output to files is unchanged.

    The streams are replaced, because those that a fork has copied may belong to the live display, or be locked by a
    thread that does not exist here.
    """
    global fd
    fd = None  # its number will be reused
    for standard, name in ((1, "stdout"), (2, "stderr")):
        if os.isatty(standard):  # if it was closed, the number may belong to another file
            os.dup2(descriptor, standard)
            options = {option: getattr(getattr(sys, f"__{name}__"), option, None) for option in ("encoding", "errors")}
            setattr(sys, name, open(standard, "w", buffering=1, closefd=False, **options))  # noqa: SIM115
    if descriptor > 2:
        os.close(descriptor)


def flush_output() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:  # closed, or missing (a program without a console)
            pass

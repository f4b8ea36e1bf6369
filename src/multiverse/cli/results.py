"""Standard output for results only: if a program reads it, what envs print goes to standard error."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Iterator, Sequence
from typing import TextIO

READ_BY_PROGRAMS = {"--json", "--quiet"}
HELP = {"-h", "--help"}
_kept: list[TextIO] = []  # standard output, while `sys.stdout` is another stream


def results() -> TextIO | None:
    """Return standard output while `sys.stdout` is another stream; None: results go to `sys.stdout`."""
    return _kept[-1] if _kept else None


@contextlib.contextmanager
def for_results_alone(arguments: Sequence[str]) -> Iterator[None]:
    """With --json or --quiet, send all output of this process and of those that it starts (workers) to standard error,
    except for `results()`, which is the original standard output."""
    if not READ_BY_PROGRAMS.intersection(arguments) or HELP.intersection(arguments) or sys.stderr is None:
        yield
        return
    with _descriptor_kept() as stream, contextlib.redirect_stdout(sys.stderr):
        _kept.append(stream)
        try:
            yield
        finally:
            _kept.pop()


@contextlib.contextmanager
def _descriptor_kept() -> Iterator[TextIO]:
    """Yield a stream to standard output, whose descriptor is redirected to standard error, if it has one."""
    out, kept = sys.stdout, -1
    out.flush()
    with contextlib.suppress(OSError, ValueError):  # a custom stream, or no standard error
        if out.fileno() == 1 and os.fstat(2):
            kept = os.dup(1)
            os.dup2(2, 1)
    stream = out if kept < 0 else os.fdopen(kept, "w", encoding=out.encoding, errors="replace", buffering=1)
    try:
        yield stream
    finally:
        if kept >= 0:
            with contextlib.suppress(OSError, TypeError):  # Windows has no such library
                ctypes.CDLL(None).fflush(None)  # what native code has buffered
            os.dup2(kept, 1)
            with contextlib.suppress(OSError):  # the reader has closed it
                stream.close()

"""Standard output for results alone: where a program reads it, what envs print goes to standard error."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Iterator, Sequence
from typing import TextIO

READ_BY_PROGRAMS = {"--json", "--quiet"}
HELP = {"-h", "--help"}
_kept: list[TextIO] = []  # standard output, while `sys.stdout` is another


def results() -> TextIO | None:
    """Where results go: standard output, where `sys.stdout` is another stream for a while; None: `sys.stdout`."""
    return _kept[-1] if _kept else None


@contextlib.contextmanager
def for_results_alone(arguments: Sequence[str]) -> Iterator[None]:
    """With --json or --quiet: what is printed here, and by programs that are begun meanwhile (workers), goes to
    standard error; only `results()` is what standard output was."""
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
    """A stream to standard output, whose descriptor is standard error's meanwhile; if it has none, the stream alone."""
    out, kept = sys.stdout, -1
    out.flush()
    with contextlib.suppress(OSError, ValueError):  # a stream of somebody's own; or there is no standard error
        if out.fileno() == 1 and os.fstat(2):
            kept = os.dup(1)
            os.dup2(2, 1)
    stream = out if kept < 0 else os.fdopen(kept, "w", encoding=out.encoding, errors="replace", buffering=1)
    try:
        yield stream
    finally:
        if kept >= 0:
            with contextlib.suppress(OSError, TypeError):  # Windows has no such library
                ctypes.CDLL(None).fflush(None)  # what native code has printed and not written yet
            os.dup2(kept, 1)
            with contextlib.suppress(OSError):  # nobody reads it any more
                stream.close()

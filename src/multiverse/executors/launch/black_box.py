"""Python stacks of workers that hang: written to a file on a signal, in C, also while the GIL is held."""

from __future__ import annotations

import faulthandler
import os
import re
import signal
import sysconfig
import time
from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any, TypeVar, cast

from multiverse.ipc.block import AnonymousFile

SIGNAL = getattr(signal, "SIGUSR1", None)
CALLERS_SIGNALS = (signal.SIGINT, *([SIGNAL] if SIGNAL is not None else []))
"""Signals that a terminal or a scheduler may also send to workers; only the caller acts on them."""
ANSWER_S = 1.0
QUIET_S = 0.05

Function = TypeVar("Function", bound=Callable[..., Any])

_FRAME = re.compile(r'  File "(.+)", line (\d+) in (.+)')
_LABEL = re.compile(r"(\w+) of env (\d+)")
_ESCAPED = re.compile(r"\\x[a-f][0-9a-f]|\\u(?!d[89a-f])[0-9a-f]{4}|\\U000[0-9a-f]{5}")
"""Escaped printable characters: without control characters and halves of surrogate pairs."""
_OUR_LOOP = "worker_loop.py"
_STANDARD_LIBRARY = sysconfig.get_path("stdlib")


def readable(stack: bytes) -> str:
    """Text that Python's faulthandler wrote: it escapes characters that are not ASCII, also in file names."""
    text = stack.decode(errors="replace")
    return _ESCAPED.sub(lambda match: chr(int(match[0][2:], 16)), text) if "\\" in text else text


def labelled(function: Function, what: str, env_id: int) -> Function:
    """The same function under the name "step of env 3". The stack of a hung or crashed process consists of names and
    lines only, and a name costs nothing at run time."""
    if isinstance(function, MethodType):
        return cast(Function, MethodType(labelled(function.__func__, what, env_id), function.__self__))
    if not isinstance(function, FunctionType):
        return function
    code = function.__code__.replace(co_name=f"{what} of env {env_id}")
    copy = FunctionType(code, function.__globals__, None, function.__defaults__, function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return cast(Function, copy)


def parse_stack(stack: str, thread: str = _OUR_LOOP) -> tuple[str, int | None, str]:
    """(request, env, line) in a stack with the innermost frame first: ("step", 3, "line 7 of sim.py (wait)").

    Uses the thread whose part contains the text `thread`, and the innermost line outside Python's standard library.
    """
    parts = stack.split("\n\n")
    frames = _FRAME.findall(next((part for part in parts if thread in part), parts[0]))
    what, env_id = next(((m[1], int(m[2])) for *_, name in frames if (m := _LABEL.fullmatch(name))), ("", None))
    own = [f for f in frames if not f[0].startswith(("<", _STANDARD_LIBRARY)) or "site-packages" in f[0]]
    file, line, name = next(iter(own or frames), ("", "", ""))
    return what, env_id, f"line {line} of {file} ({name})" if file else ""


class StackDump(AnonymousFile):
    """File for the stacks of all workers of an executor, which share its position and are asked one at a time."""

    label = "multiverse-stacks"

    def record_here(self) -> None:
        """In a worker: have the signal write this process's stack to the file."""
        if SIGNAL is not None:
            faulthandler.register(SIGNAL, file=self.fd, all_threads=True)  # guard: stacks-are-written-in-c

    def stack_of(self, pid: int) -> str:
        """In the caller: the stack of process `pid`; '' if it does not answer (it is stopped, or has ended)."""
        os.ftruncate(self.fd, 0)
        os.lseek(self.fd, 0, os.SEEK_SET)
        try:
            os.kill(pid, SIGNAL or 0)
        except ProcessLookupError:
            return ""
        give_up, size, quiet_since = time.monotonic() + ANSWER_S, 0, time.monotonic()
        while (now := time.monotonic()) < give_up and not (size and now - quiet_since > QUIET_S):
            if os.fstat(self.fd).st_size != size:
                size, quiet_since = os.fstat(self.fd).st_size, now
            time.sleep(0.005)
        return readable(os.pread(self.fd, size, 0))

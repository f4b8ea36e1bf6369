"""Where a worker that hangs leaves its Python stack: written on a signal, in C, also while the GIL is held."""

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
"""Signals that a terminal or a scheduler may send to workers too; only the caller acts on them."""
ANSWER_S = 1.0
QUIET_S = 0.05

Function = TypeVar("Function", bound=Callable[..., Any])

_FRAME = re.compile(r'  File "(.+)", line (\d+) in (.+)')
_SIGNED = re.compile(r"(\w+) of env (\d+)")
_ESCAPED = re.compile(r"\\x[a-f][0-9a-f]|\\u(?!d[89a-f])[0-9a-f]{4}|\\U000[0-9a-f]{5}")
"""Neither control characters nor halves of a pair, which a terminal would not take."""
_OUR_LOOP = "worker_loop.py"
_PYTHONS_OWN = sysconfig.get_path("stdlib")


def readable(stack: bytes) -> str:
    """What Python's faulthandler wrote: it escapes what is not ASCII, also in the names of files."""
    text = stack.decode(errors="replace")
    return _ESCAPED.sub(lambda found: chr(int(found[0][2:], 16)), text) if "\\" in text else text


def signed(function: Function, what: str, env_id: int) -> Function:
    """The same function by the name "step of env 3". All that a hung or crashed process can still tell is the names and
    lines of its stack; a name costs nothing while all is well."""
    if isinstance(function, MethodType):
        return cast(Function, MethodType(signed(function.__func__, what, env_id), function.__self__))
    if not isinstance(function, FunctionType):
        return function
    code = function.__code__.replace(co_name=f"{what} of env {env_id}")
    copy = FunctionType(code, function.__globals__, None, function.__defaults__, function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return cast(Function, copy)


def told_by(stack: str, thread: str = _OUR_LOOP) -> tuple[str, int | None, str]:
    """What a stack (innermost frame first) says, ("step", 3, "line 7 of sim.py (wait)"): of the thread in whose part
    that text is. The line is the innermost one that is not of Python's own library."""
    parts = stack.split("\n\n")
    frames = _FRAME.findall(next((part for part in parts if thread in part), parts[0]))
    what, env_id = next(((m[1], int(m[2])) for *_, name in frames if (m := _SIGNED.fullmatch(name))), ("", None))
    own = [f for f in frames if not f[0].startswith(("<", _PYTHONS_OWN)) or "site-packages" in f[0]]
    file, line, name = next(iter(own or frames), ("", "", ""))
    return what, env_id, f"line {line} of {file} ({name})" if file else ""


class StackDump(AnonymousFile):
    """One for all workers of an executor: they share its position, and are asked one at a time."""

    label = "multiverse-stacks"

    def record_here(self) -> None:
        """In a worker: from now on the signal writes this process's stack here."""
        if SIGNAL is not None:
            faulthandler.register(SIGNAL, file=self.fd, all_threads=True)  # guard: stacks-are-written-in-c

    def stack_of(self, pid: int) -> str:
        """In the caller: what process `pid` is doing; '' if it does not say (it is stopped, or gone)."""
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

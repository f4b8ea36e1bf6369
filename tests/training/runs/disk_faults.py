"""Faults at a chosen call to the file system: a kill, half a write, a power loss, a full disk."""

from __future__ import annotations

import errno
import json
import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

CALLS = ("open", "write", "fsync", "ftruncate", "mkdir", "rename", "replace", "unlink", "rmdir")
"""Every call by which a save changes the disk; and `open`, which also reads."""


NEVER = -1


def moments(work: Callable[[], object], fault: str) -> list[int]:
    """At which calls (from 0) the fault differs from a plain kill, found by doing the work in a forked child; at all
    others it equals a kill, which has moments of its own."""
    reading, writing = os.pipe()
    struck = Struck(NEVER, fault)
    pid = os.fork()
    if pid == 0:
        try:
            struck.install()
            work()
            struck.real["write"](writing, json.dumps(struck.own).encode())
            os._exit(0)
        finally:
            os._exit(1)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        found: list[int] = json.loads(pipe.read())
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    return found


def survives(work: Callable[[], object], calls: int, fault: str) -> bool:
    """Do the work in a forked child, struck at its `calls`-th call (from 0) or never; return whether it finished."""
    pid = os.fork()
    if pid == 0:
        try:
            Struck(calls, fault).install()
            work()
            os._exit(0)
        finally:
            os._exit(1)
    status = os.waitpid(pid, 0)[1]
    killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    assert killed or os.waitstatus_to_exitcode(status) == 0, "the child failed without the fault"
    return not killed


class Struck:
    """In a child: counts the calls, tracks data that is not on the disk yet, and strikes."""

    def __init__(self, calls: int, fault: str) -> None:
        self.at, self.fault = calls, fault
        self.real = {name: getattr(os, name) for name in CALLS}
        self.paths: dict[int, str] = {}  # of open descriptors
        self.unsynced: dict[str, tuple[int, int]] = {}  # path → a descriptor that stays, bytes on the disk
        self.renames: list[tuple[str, str]] = []  # since the last fsync of a directory
        self.own: list[int] = []  # the calls at which the fault differs from a plain kill
        self.made = 0

    def install(self) -> None:
        for name in CALLS:
            setattr(os, name, self._counted(name))

    def _counted(self, name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            if self.at == self.made:
                self._strike(name, arguments)
            if self._has_its_own(name):
                self.own.append(self.made)
            self.made += 1
            result = self.real[name](*arguments, **named)
            self._remember(name, arguments, result)
            return result

        return call

    def _has_its_own(self, name: str) -> bool:
        if self.fault == "tear":
            return name == "write"
        return bool({"kill": True, "power": self.unsynced, "power, names lost": self.renames}[self.fault])

    def _remember(self, name: str, arguments: tuple[Any, ...], result: Any) -> None:
        if name == "open":
            self.paths[result] = os.fspath(arguments[0])
        elif name == "write" and arguments[0] in self.paths:
            before = os.fstat(arguments[0]).st_size - result
            self.unsynced.setdefault(self.paths[arguments[0]], (os.dup(arguments[0]), before))
        elif name == "fsync":
            self.unsynced.pop(self.paths[arguments[0]], None)
            if os.path.isdir(self.paths[arguments[0]]):
                self.renames.clear()
        elif name in ("rename", "replace"):
            self.renames.append((os.fspath(arguments[0]), os.fspath(arguments[1])))

    def _strike(self, name: str, arguments: tuple[Any, ...]) -> None:
        if self.fault == "tear" and name == "write":
            self.real["write"](arguments[0], bytes(arguments[1])[: len(arguments[1]) // 2])
        if self.fault == "power":  # the worst that can be: names of later calls are on the disk, bytes before are not
            for descriptor, size in self.unsynced.values():
                self.real["ftruncate"](descriptor, size)
        if self.fault == "power, names lost":
            for before, after in reversed(self.renames):
                if os.path.exists(after) and not os.path.exists(before):
                    self.real["rename"](after, before)
        os.kill(os.getpid(), signal.SIGKILL)


class FullDisk:
    """Lets the `calls`-th of these calls fail and, if the disk stays full, all later ones."""

    def __init__(self, patch: pytest.MonkeyPatch, calls: int, stays: bool, code: int = errno.ENOSPC) -> None:
        self.left, self.stays, self.code, self.struck = calls, stays, code, False
        for name in ("write", "fsync", "mkdir", "rename", "replace"):
            patch.setattr(os, name, self._failing(getattr(os, name)))

    def _failing(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            self.left -= 1
            if self.left == -1 or (self.left < 0 and self.stays):
                self.struck = True
                raise OSError(self.code, os.strerror(self.code))
            return real(*arguments, **named)

        return call

"""Reports of crashes in native code of envs that run in the calling process.

Python's faulthandler writes a traceback on a fatal signal. If there is a fork server, which outlives the caller by a
moment, the traceback goes into a nameless file. The server reads it when the caller has ended, and prints it with a
line that names the env, its step and its seed. The caller keeps those in another such file: two stores for a step of
all its envs, and four for a reset. Without a server the traceback goes to standard error. An env that ends the process
without a signal (`os._exit`) leaves no trace: the program looks like one that has ended normally.
"""

from __future__ import annotations

import faulthandler
import mmap
import os
import struct
from collections.abc import Iterable

from multiverse.core.errors import Circumstances
from multiverse.executors.launch import fork_server
from multiverse.executors.launch.black_box import parse_stack
from multiverse.executors.launch.fork_server import ForkServer
from multiverse.ipc.block import AnonymousFile

NOW = 0  # word with the number of the current step of all envs, from 1; negative between steps
_FIRST, _PER_ENV, _BYTES = 1, 4, 8  # then for each env: episode, last seed, episode of that seed, step when it began
_ENV, _BEGAN = struct.Struct(f"={_PER_ENV}q"), 3
_NONE, _MOST = -1, 2**63 - 1
REPORT = 0  # number of the file for tracebacks, for the server


class OwnShare(AnonymousFile):
    """State of the envs that the caller steps itself; env i here is env i of the vector env.

    `words[NOW]` is positive during a request; each step of all envs increases it by one.
    """

    label = "multiverse-own-share"

    def open(self, count: int) -> None:
        size = (_FIRST + _PER_ENV * count) * _BYTES
        os.ftruncate(self.fd, size)
        self._bytes = mmap.mmap(self.fd, size)
        self.words = memoryview(self._bytes).cast("q")
        self.words[NOW] = -1

    @property
    def number(self) -> int:
        """Number of the file, for the server."""
        return self.fd + 1

    def begin(self, i: int, episode: int, seed: int | None, seeded: int | None) -> None:
        """Record that env `i` begins an episode, its last seed, and the episode that the seed was given to."""
        if seed is None or seeded is None or not 0 <= seed <= _MOST:
            seed = seeded = _NONE
        _ENV.pack_into(self._bytes, _BYTES * (_FIRST + _PER_ENV * i), episode, seed, seeded, abs(self.words[NOW]))

    def leave_out(self, idle: Iterable[int]) -> None:
        """Record that these envs do not take the current step."""
        for i in idle:
            self.words[_FIRST + _PER_ENV * i + _BEGAN] += 1


def described(record: bytes, env_id: int, in_step: bool) -> str:
    """State of one env in an `OwnShare`: "step 41 of episode 2, seed 7"; '' between requests."""
    words = memoryview(record).cast("q")
    at = _FIRST + _PER_ENV * env_id
    if at >= len(words) or words[NOW] < 0:
        return ""
    episode, seed, seeded, began = words[at : at + _PER_ENV].tolist()
    step = f"step {words[NOW] - began} of " if in_step else ""
    return step + str(Circumstances(episode, None if seed == _NONE else seed, episode - seeded if seeded >= 0 else 0))


# -- in the caller -----------------------------------------------------------------------------------------------
_shares: dict[int, OwnShare] = {}
_users = 0  # vector envs whose envs run in this process
_report: AnonymousFile | None = None
_ours = False  # whether we have enabled faulthandler


def watch(share: OwnShare | None) -> None:
    """Report crashes until `unwatch`, with the state in this share if one of its envs was the cause. None for worker
    threads, which have no share."""
    global _users
    _users += 1
    server = fork_server.running()
    if share is not None:
        _shares[share.number] = share
        if server is not None:
            server.watch(share.number, share.fd)
    _enable(server)


def unwatch(share: OwnShare | None) -> None:
    global _users
    _users -= 1
    server = fork_server.running()
    if share is not None and _shares.pop(share.number, None) is not None and server is not None:
        server.unwatch(share.number)
    if not _users:
        _disable(server)


def _enable(server: ForkServer | None) -> None:
    """Enable faulthandler with the file that the server reads, unless the program has enabled it itself."""
    global _ours, _report
    if faulthandler.is_enabled() and not _ours:
        return
    try:
        if server is None:
            faulthandler.enable()
        else:
            if _report is None:
                _report = AnonymousFile.empty()
            server.watch(REPORT, _report.fd)
            faulthandler.enable(file=_report.fd)
        _ours = True
    except (RuntimeError, ValueError, OSError):  # no standard error, or one without a descriptor
        pass


def _disable(server: ForkServer | None) -> None:
    global _ours, _report
    if _ours:
        faulthandler.disable()
    if server is not None:
        server.unwatch(REPORT)
    if _report is not None:
        _report.close()
    _ours, _report = False, None


def _server_changes(server: ForkServer | None) -> None:
    """Called when a server was started, or is about to end."""
    if not (_ours and faulthandler.is_enabled()):
        return
    if server is not None:
        for share in _shares.values():
            server.watch(share.number, share.fd)
    _enable(server)


def _in_child() -> None:
    """In a fork of the program, whose crashes are not reported as the caller's."""
    global _users
    _shares.clear()
    _users = 0
    _disable(None)


fork_server.listeners.append(_server_changes)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)


# -- in the fork server ------------------------------------------------------------------------------------------
class Watched:
    """The files that the caller has passed to the server."""

    def __init__(self) -> None:
        self._files: dict[int, int] = {}

    @property
    def fds(self) -> list[int]:
        return list(self._files.values())

    def take(self, number: int, fd: int) -> None:
        self.forget(number)
        self._files[number] = fd

    def forget(self, number: int) -> None:
        fd = self._files.pop(number, None)
        if fd is not None:
            os.close(fd)

    def report(self) -> None:
        """Print a report if the caller was ended by a crash."""
        report = self._files.pop(REPORT, None)
        text = _content(report).decode(errors="replace") if report is not None else ""
        if text:
            os.write(2, f"{text}{self._line(text)}".encode())

    def _line(self, text: str) -> str:
        what, env_id, line = parse_stack(text, "Current thread")
        if env_id is None:
            return ""
        states = [described(_content(fd), env_id, what == "step") for fd in self._files.values()]
        where = next((f" ({state})" for state in states if state), "")
        return (
            f"\nmultiverse: this program was ended by native code of env {env_id}, in its {what}{where}, {line}. The "
            "env ran in the calling process; with executor='process' such a crash ends only a worker process\n"
        )


def _content(fd: int) -> bytes:
    return os.pread(fd, os.fstat(fd).st_size, 0)

"""A crash in native code, of envs that run in the calling process: nobody there is left to tell of it.

Python's faulthandler writes a traceback when a signal is fatal. Where there is a fork server, which outlives the caller
by a moment, it goes into a nameless file that the server reads when the caller has ended, and prints with a line that
says which env it was, its step and its seed. The caller keeps those in another such file: two stores for a step of all
its envs, and four for a reset. Where there is no server the traceback goes to standard error. An env that ends the
process without a signal (`os._exit`) leaves nothing: it cannot be told from a program that has just ended.
"""

from __future__ import annotations

import faulthandler
import mmap
import os
import struct
from collections.abc import Iterable

from multiverse.core.errors import Circumstances
from multiverse.executors.launch import fork_server
from multiverse.executors.launch.black_box import told_by
from multiverse.executors.launch.fork_server import ForkServer
from multiverse.ipc.block import AnonymousFile

NOW = 0  # a word: the number of the step that all envs are in, from 1; below 0 when it is over
_FIRST, _PER_ENV, _BYTES = 1, 4, 8  # then for each env: its episode, the last seed, of which episode, and when it began
_ENV, _BEGAN = struct.Struct(f"={_PER_ENV}q"), 3
_NONE, _MOST = -1, 2**63 - 1
REPORT = 0  # the number under which the server knows the file for tracebacks


class OwnShare(AnonymousFile):
    """What the envs that the caller steps itself are doing; its env i is env i of the vector env.

    While something is asked of them `words[NOW]` is above 0; a step of all has a number one higher than the last one's.
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
        """By which the server knows it."""
        return self.fd + 1

    def begin(self, i: int, episode: int, seed: int | None, seeded: int | None) -> None:
        """Env `i` begins an episode; the last seed given to it, and to which of its episodes."""
        if seed is None or seeded is None or not 0 <= seed <= _MOST:
            seed = seeded = _NONE
        _ENV.pack_into(self._bytes, _BYTES * (_FIRST + _PER_ENV * i), episode, seed, seeded, abs(self.words[NOW]))

    def leave_out(self, idle: Iterable[int]) -> None:
        """Of a step: these envs do not take it."""
        for i in idle:
            self.words[_FIRST + _PER_ENV * i + _BEGAN] += 1


def described(record: bytes, env_id: int, in_step: bool) -> str:
    """What an `OwnShare` says of one of its envs: "step 41 of episode 2, seed 7"; '' if nothing was asked of them."""
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
_ours = False  # it was us who have enabled faulthandler


def watch(share: OwnShare | None) -> None:
    """Until `unwatch` a crash is reported, with what this share says if it is its envs'. None: of threads, which have
    none."""
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
    """Have tracebacks written to where they will be read; not if the program has done so itself."""
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
    except (RuntimeError, ValueError, OSError):  # no standard error, or none with a descriptor
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
    """One has been started, or is about to end."""
    if not (_ours and faulthandler.is_enabled()):
        return
    if server is not None:
        for share in _shares.values():
            server.watch(share.number, share.fd)
    _enable(server)


def _in_child() -> None:
    """A fork of the program is another program: its crashes are not the caller's."""
    global _users
    _shares.clear()
    _users = 0
    _disable(None)


fork_server.listeners.append(_server_changes)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)


# -- in the fork server ------------------------------------------------------------------------------------------
class Watched:
    """The files that the caller has handed over."""

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
        """The caller has ended: if a crash was why, say so."""
        report = self._files.pop(REPORT, None)
        text = _content(report).decode(errors="replace") if report is not None else ""
        if text:
            os.write(2, f"{text}{self._line(text)}".encode())

    def _line(self, text: str) -> str:
        what, env_id, line = told_by(text, "Current thread")
        if env_id is None:
            return ""
        said = [described(_content(fd), env_id, what == "step") for fd in self._files.values()]
        where = next((f" ({words})" for words in said if words), "")
        return (
            f"\nmultiverse: this program was ended by native code of env {env_id}, in its {what}{where}, {line}. It "
            "ran in the calling process; executor='process' keeps such an env apart, where a crash costs its worker\n"
        )


def _content(fd: int) -> bytes:
    return os.pread(fd, os.fstat(fd).st_size, 0)

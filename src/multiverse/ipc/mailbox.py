"""Mailboxes: the request and reply words of one worker in the block, and a doorbell for each direction.

To send: write the data, write the word, and ring if the other side sleeps. To check for a message: read the word.
Data that the block cannot hold is sent by pipe *after* the word, so that neither side blocks on a full pipe that the
other does not read.

Ringing is a system call, so it is skipped if the other side is awake; each side sets a word in the block when it goes
to sleep. No memory barrier orders that word and the other side's read of it, so a ring can be missed at that moment.
A sleeper therefore wakes once after a short time and checks again before it sleeps without a limit.
"""

from __future__ import annotations

import platform as _platform
import threading
from time import monotonic_ns

import numpy as np

from multiverse.core.layout import Array, Field
from multiverse.ipc.doorbell import Doorbell
from multiverse.ipc.waiting import WaitSet

CONTROL = ("control",)
_WORDS = 32  # 16 words = 128 bytes a side: each side's words have one writer and their own cache lines
_REQUEST, _COMMAND, _CALLER_ASLEEP, _STOP = 0, 1, 2, 3  # written by the caller
_REPLY, _WORKER_ASLEEP, _ROW, _ROW_AT, _LONGEST_STEP = 16, 17, 18, 19, 20  # written by the worker

FLAG_BITS = 4
"""A reply's word holds its sequence number and, in the lowest bits, its flags, so that one read gives both."""
_FLAGS = (1 << FLAG_BITS) - 1

_ORDERED = _platform.machine().lower() in ("x86_64", "amd64", "i386", "i686")  # stores become visible in order
_barrier = threading.Lock()


def _memory_barrier() -> None:
    """Order the word and the data on other processors: a lock's acquire and release are barriers."""
    with _barrier:
        pass
    with _barrier:
        pass


def control_field(workers: int) -> Field:
    return Field(CONTROL, (workers, _WORDS), np.dtype(np.uint64))


class _Mailbox:
    """Common part of both ends."""

    __slots__ = ("_words", "reply_bell", "request_bell", "sequence")

    def __init__(self, control: Array, worker: int, bells: tuple[Doorbell, Doorbell]) -> None:
        """`bells`: the doorbell for requests, and the one for replies."""
        self._words = memoryview(control[worker])
        self.request_bell, self.reply_bell = bells
        self.sequence = 0  # number of the last request that this side has posted or taken


class CallerMailbox(_Mailbox):
    """The caller's end: posts requests and reads replies."""

    __slots__ = ()

    def post(self, command: int, number: int) -> None:
        """Post `command` with a number higher than all before. Posting the same request twice has no effect."""
        words = self._words
        self.sequence = number
        words[_COMMAND] = command
        if not _ORDERED:
            _memory_barrier()
        words[_REQUEST] = number
        if words[_WORKER_ASLEEP]:
            self.request_bell.ring()

    def answered(self) -> bool:
        if self._words[_REPLY] >> FLAG_BITS != self.sequence:  # guard: replies-have-numbers
            return False
        if not _ORDERED:
            _memory_barrier()
        return True

    def flags(self) -> int:
        """Flags of the worker's last reply."""
        return self._words[_REPLY] & _FLAGS

    # -- requests that fill rows -----------------------------------------------------------------------------
    def begin_rows(self, row: int) -> None:
        """Prepare a request that begins at this row. Called before it is posted, while the worker is idle."""
        self._words[_STOP], self._words[_ROW] = 0, row

    def stop_rows(self) -> None:
        """Ask the worker to stop after the current row."""
        self._words[_STOP] = 1

    @property
    def row(self) -> int:
        """The current row: all rows before it are complete."""
        return self._words[_ROW]

    @property
    def row_at(self) -> float:
        """When the current row was begun, by `time.monotonic`, which all processes of a machine share."""
        return self._words[_ROW_AT] / 1e9

    @property
    def longest_step_s(self) -> float:
        """Longest duration of a step of the worker, without resets."""
        return self._words[_LONGEST_STEP] / 1e9

    def set_asleep(self, asleep: bool) -> None:
        self._words[_CALLER_ASLEEP] = asleep

    def add_to(self, wait_set: WaitSet) -> None:
        wait_set.add_doorbell(self.reply_bell.wait_fd, self.reply_bell.drain, self.set_asleep)

    def close(self) -> None:
        self.request_bell.close()
        self.reply_bell.close()


class WorkerMailbox(_Mailbox):
    """The worker's end: reads requests and posts replies."""

    __slots__ = ()

    def requested(self) -> bool:
        if self._words[_REQUEST] == self.sequence:
            return False
        if not _ORDERED:
            _memory_barrier()
        return True

    def take(self) -> int:
        """Take the posted request; returns its command."""
        self.sequence = self._words[_REQUEST]
        return self._words[_COMMAND]

    def reply(self, flags: int) -> None:
        words = self._words
        if not _ORDERED:
            _memory_barrier()
        words[_REPLY] = self.sequence << FLAG_BITS | flags
        if words[_CALLER_ASLEEP]:
            self.reply_bell.ring()

    def advance_to(self, row: int) -> bool:
        """Report that all rows before this one are complete; False if the request is to stop here."""
        words = self._words
        if not _ORDERED:
            _memory_barrier()
        words[_ROW_AT], words[_ROW] = monotonic_ns(), row  # guard: a-row-restarts-the-deadline
        return not words[_STOP]

    def note_progress(self) -> None:
        """Report that a remote worker, whose rows arrive all at once, has begun another row."""
        self._words[_ROW_AT] = monotonic_ns()

    def note_step(self, took_ns: int) -> None:
        """Record the duration of a step of the worker's envs, without resets."""
        if took_ns > self._words[_LONGEST_STEP]:
            self._words[_LONGEST_STEP] = took_ns

    @property
    def stopping(self) -> bool:
        """Whether the request is to stop after the current row."""
        return bool(self._words[_STOP])

    def set_asleep(self, asleep: bool) -> None:
        self._words[_WORKER_ASLEEP] = asleep

    def add_to(self, wait_set: WaitSet) -> None:
        wait_set.add_doorbell(self.request_bell.wait_fd, self.request_bell.drain, self.set_asleep)

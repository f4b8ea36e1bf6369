"""A mailbox: the request and reply words of one worker in the block, and a doorbell for each direction.

Sending is: write the data, write the word, ring if the other side sleeps. Looking is: read the word. Whatever
does not fit the block goes through a pipe *after* the word, so that neither side ever blocks on a full pipe that
nobody reads.

Ringing is a system call, so a side that is awake is not rung for: each says in the block when it goes to sleep.
Nothing orders that word against the other side's look at it but time, so whoever falls asleep just then could
miss one ring; it therefore wakes once by itself, a moment later, and looks again before it sleeps for good.
"""

from __future__ import annotations

import platform as _platform
import threading
from time import monotonic_ns

import numpy as np

from multiverse.core.layout import Field
from multiverse.core.views import Array
from multiverse.ipc.doorbell import Doorbell
from multiverse.ipc.waiting import WaitSet

CONTROL = ("control",)
_WORDS = 32  # 16 words = 128 bytes a side: each side's words have one writer and their own cache lines
_REQUEST, _COMMAND, _CALLER_ASLEEP, _STOP = 0, 1, 2, 3  # written by the caller
_REPLY, _WORKER_ASLEEP, _ROW, _ROW_AT, _LONGEST_STEP = 16, 17, 18, 19, 20  # written by the worker

FLAG_BITS = 4
"""A reply's word is its sequence number and, in the lowest bits, its flags: one read tells both."""
_FLAGS = (1 << FLAG_BITS) - 1

_ORDERED = _platform.machine().lower() in ("x86_64", "amd64", "i386", "i686")  # stores become visible in order
_barrier = threading.Lock()


def _order() -> None:
    """Elsewhere order the word and the data: what is before a release, or after an acquire, stays there."""
    with _barrier:
        pass
    with _barrier:
        pass


def control_field(workers: int) -> Field:
    return Field(CONTROL, (workers, _WORDS), np.dtype(np.uint64))


class _Mailbox:
    """Either end."""

    __slots__ = ("_words", "reply_bell", "request_bell", "sequence")

    def __init__(self, control: Array, worker: int, bells: tuple[Doorbell, Doorbell]) -> None:
        """`bells`: the one that is rung for a request, and the one for its reply."""
        self._words = memoryview(control[worker])
        self.request_bell, self.reply_bell = bells
        self.sequence = 0  # of the last request that this side has posted, or taken


class CallerMailbox(_Mailbox):
    """The caller's end: posts requests, sees replies."""

    __slots__ = ()

    def post(self, command: int, number: int) -> None:
        """Ask for `command` under a number higher than all before. The same once more does no harm."""
        words = self._words
        self.sequence = number
        words[_COMMAND] = command
        if not _ORDERED:
            _order()
        words[_REQUEST] = number
        if words[_WORKER_ASLEEP]:
            self.request_bell.ring()

    def answered(self) -> bool:
        if self._words[_REPLY] >> FLAG_BITS != self.sequence:  # guard: replies-have-numbers
            return False
        if not _ORDERED:
            _order()
        return True

    def flags(self) -> int:
        """What the worker said with its last reply."""
        return self._words[_REPLY] & _FLAGS

    # -- of a request that goes through rows -----------------------------------------------------------------
    def begin_rows(self, row: int) -> None:
        """Before it is posted, while nobody works on one: it begins here, and is not to stop."""
        self._words[_STOP], self._words[_ROW] = 0, row

    def stop_rows(self) -> None:
        """It is to end with the row it is in."""
        self._words[_STOP] = 1

    @property
    def row(self) -> int:
        """Where it is: all rows before this one are whole."""
        return self._words[_ROW]

    @property
    def row_at(self) -> float:
        """When it came there, of `time.monotonic`, which all processes of a machine have in common."""
        return self._words[_ROW_AT] / 1e9

    @property
    def longest_step_s(self) -> float:
        """Longest time that the worker has taken for a step, without resets."""
        return self._words[_LONGEST_STEP] / 1e9

    def say_asleep(self, asleep: bool) -> None:
        self._words[_CALLER_ASLEEP] = asleep

    def add_to(self, wait_set: WaitSet) -> None:
        wait_set.add_doorbell(self.reply_bell.wait_fd, self.reply_bell.drain, self.say_asleep)

    def close(self) -> None:
        self.request_bell.close()
        self.reply_bell.close()


class WorkerMailbox(_Mailbox):
    """The worker's end: sees requests, posts replies."""

    __slots__ = ()

    def requested(self) -> bool:
        if self._words[_REQUEST] == self.sequence:
            return False
        if not _ORDERED:
            _order()
        return True

    def take(self) -> int:
        """The command that waits."""
        self.sequence = self._words[_REQUEST]
        return self._words[_COMMAND]

    def reply(self, flags: int) -> None:
        words = self._words
        if not _ORDERED:
            _order()
        words[_REPLY] = self.sequence << FLAG_BITS | flags
        if words[_CALLER_ASLEEP]:
            self.reply_bell.ring()

    def go_on(self, row: int) -> bool:
        """All rows before this one are whole; False if the request is to end here."""
        words = self._words
        if not _ORDERED:
            _order()
        words[_ROW_AT], words[_ROW] = monotonic_ns(), row  # guard: a-row-restarts-the-deadline
        return not words[_STOP]

    def still_at_it(self) -> None:
        """Of a worker elsewhere, whose rows come all at once: it is in another one by now."""
        self._words[_ROW_AT] = monotonic_ns()

    def note_step(self, took_ns: int) -> None:
        """A step of the worker's envs has taken this long, without resets."""
        if took_ns > self._words[_LONGEST_STEP]:
            self._words[_LONGEST_STEP] = took_ns

    @property
    def stopping(self) -> bool:
        """Whether the request is to end with the row it is in."""
        return bool(self._words[_STOP])

    def say_asleep(self, asleep: bool) -> None:
        self._words[_WORKER_ASLEEP] = asleep

    def add_to(self, wait_set: WaitSet) -> None:
        wait_set.add_doorbell(self.request_bell.wait_fd, self.request_bell.drain, self.say_asleep)

"""A mailbox: the request and reply words of one worker in the block, and a doorbell for each direction.

Sending is: write the data, write the word, ring. Looking is: read the word. Whatever does not fit the block goes
through a pipe *after* the word, so that neither side ever blocks on a full pipe that nobody reads.
"""

from __future__ import annotations

import platform as _platform
import threading

import numpy as np

from multiverse.contracts.layout import Field
from multiverse.contracts.views import Array
from multiverse.memory.doorbell import Doorbell

CONTROL = ("control",)
_WORDS = 32  # 16 words = 128 bytes a side: each side's words have one writer and their own cache lines
_REPLY = _WORDS // 2


def control_field(workers: int) -> Field:
    return Field(CONTROL, (workers, _WORDS), np.dtype(np.uint64))


if _platform.machine().lower() in ("x86_64", "amd64", "i386", "i686"):

    def _publish() -> None:
        """x86 makes stores visible in order: the word cannot overtake the data."""

else:
    _barrier = threading.Lock()

    def _publish() -> None:
        """Elsewhere order the word after the data: taking and releasing a lock is a full barrier."""
        with _barrier:
            pass


class Mailbox:
    """Both ends of one worker's words. The caller posts requests and sees replies; the worker the other way round."""

    __slots__ = ("_words", "reply_bell", "request_bell", "sequence")

    def __init__(self, control: Array, worker: int, request_bell: Doorbell, reply_bell: Doorbell) -> None:
        self._words = memoryview(control[worker])
        self.request_bell, self.reply_bell = request_bell, reply_bell
        self.sequence = 0  # of the last request posted (caller) or taken (worker)

    # -- the caller's end ------------------------------------------------------------------------------------
    def post(self, command: int) -> None:
        words = self._words
        self.sequence += 1
        words[1] = command
        _publish()
        words[0] = self.sequence
        self.request_bell.ring()

    def post_again(self, command: int, sequence: int) -> None:
        """Complete a post that an interrupt may have cut anywhere; without harm if it was complete."""
        self.sequence = sequence - 1
        self.post(command)

    def answered(self) -> bool:
        return bool(self._words[_REPLY] == self.sequence)

    @property
    def flags(self) -> int:
        """What the worker said with its last reply."""
        return int(self._words[_REPLY + 1])

    # -- the worker's end ------------------------------------------------------------------------------------
    def requested(self) -> bool:
        return bool(self._words[0] != self.sequence)

    def take(self) -> int:
        """The command that waits."""
        self.sequence = self._words[0]
        return int(self._words[1])

    def reply(self, flags: int) -> None:
        words = self._words
        words[_REPLY + 1] = flags
        _publish()
        words[_REPLY] = self.sequence
        self.reply_bell.ring()

    def close(self) -> None:
        self.request_bell.close()
        self.reply_bell.close()

"""Where a worker that hangs leaves its Python stack: written on a signal, in C, also while the GIL is held."""

from __future__ import annotations

import faulthandler
import os
import signal
import time

from multiverse.memory.block import NamelessFile

SIGNAL = getattr(signal, "SIGUSR1", None)
ANSWER_S = 1.0
QUIET_S = 0.05


class BlackBox(NamelessFile):
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
        return os.pread(self.fd, size, 0).decode(errors="replace")

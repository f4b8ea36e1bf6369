"""An env that prints: in Python, and straight to its descriptor as native code does. For tests of what is printed."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from typing import Any

from tests.envs import Walk

print("loud: imported")


class Loud(Walk):
    """Where `dies_once` names a file, the process of one of them is killed, once."""

    def __init__(self, dies_once: str | None = None) -> None:
        super().__init__()
        self._dies_once, self._played = dies_once, 0

    def reset(self, **kwargs: Any) -> Any:
        self._played += 1
        if self._dies_once is not None and self._played == 40:
            with contextlib.suppress(FileExistsError):
                os.close(os.open(self._dies_once, os.O_CREAT | os.O_EXCL))
                os.kill(os.getpid(), signal.SIGKILL)
        print("loud: reset", flush=True)
        os.write(1, b"loud: native\n")
        return super().reset(**kwargs)

    def close(self) -> None:
        print("loud: closed \udc80", file=sys.stderr)  # a letter that no encoding has
        super().close()


class Complaining(Walk):
    """On standard error, in letters that no encoding has."""

    def reset(self, **kwargs: Any) -> Any:
        print("loud: complaint \udc80", file=sys.stderr)
        return super().reset(**kwargs)

"""An env for tests of printed text: it prints from Python, and directly to its descriptor as native code does."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from typing import Any

from tests.envs import Walk

print("loud: imported")


class Loud(Walk):
    """Env that prints; if `dies_once` names a file, the process of one of its instances is killed once."""

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
        print("loud: closed \udc80", file=sys.stderr)  # a character that cannot be encoded
        super().close()


class Complaining(Walk):
    """Env that writes characters that cannot be encoded to standard error."""

    def reset(self, **kwargs: Any) -> Any:
        print("loud: complaint \udc80", file=sys.stderr)
        return super().reset(**kwargs)

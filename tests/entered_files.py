"""Print the files of `multiverse` whose functions the main process enters before the first optimizer step of a command.

    python -m tests.entered_files train CartPole-v1 --env-steps 2048

One file per line, in the order of entry. Functions that are called while modules are imported do not count.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import multiverse
from multiverse.cli.main import main

SOURCE = str(Path(multiverse.__file__).parent) + "/"
FIRST_STEP = (f"{SOURCE}learning/optimizers.py", "step")


class Recorder:
    """Profiler that records files until the first optimizer step."""

    def __init__(self) -> None:
        self.files: dict[str, None] = {}
        self._importing = 0
        self.done = False

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if self.done or event not in ("call", "return"):
            return
        if code.co_name == "<module>":
            self._importing += 1 if event == "call" else -1
        elif event == "call" and not self._importing and code.co_filename.startswith(SOURCE):
            self.files.setdefault(code.co_filename.removeprefix(SOURCE))
            self.done = (code.co_filename, code.co_name) == FIRST_STEP


if __name__ == "__main__":
    recorder = Recorder()
    threading.setprofile(recorder)
    sys.setprofile(recorder)
    status = main(sys.argv[1:])
    sys.setprofile(None)
    threading.setprofile(None)
    print("\n".join(recorder.files))
    sys.exit(status if recorder.done else "the command took no optimizer step")

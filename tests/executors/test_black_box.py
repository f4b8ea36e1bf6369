"""Stacks written by hung or crashed processes are decoded correctly."""

from __future__ import annotations

import faulthandler
from pathlib import Path

from multiverse.executors.launch.black_box import readable


def test_non_ascii_names_in_tracebacks_are_readable(tmp_path: Path) -> None:
    with open(tmp_path / "stack", "w+b") as file:
        dump = compile("dump(file)", "/home/jürgen/環境/🎲.py", "exec")
        exec(dump, {"dump": faulthandler.dump_traceback, "file": file})
        file.seek(0)
        assert 'File "/home/jürgen/環境/🎲.py", line 1 in <module>' in readable(file.read())


def test_control_characters_stay_escaped() -> None:
    assert readable(rb"\x1b[31m \x9b \udcff") == r"\x1b[31m \x9b \udcff"

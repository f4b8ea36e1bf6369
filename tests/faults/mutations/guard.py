"""One guard, and a copy of the source without it."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from tests.faults.promises import ROOT

SOURCE = ROOT / "src" / "multiverse"


class Stale(Exception):
    """The table does not fit the source any more."""


@dataclass(frozen=True)
class Guard:
    """`guard` stands exactly once in `file`; with `without` in its place every one of `tests` must not pass.

    `tests` are pytest's names, with the parameters that do it quickest.
    """

    name: str
    rows: tuple[str, ...]
    file: str
    guard: str
    without: str
    tests: tuple[str, ...]

    def check(self) -> None:
        """Raise if the text is not there, or not once."""
        text = (SOURCE / self.file).read_text()
        if text.count(self.guard) != 1:
            raise Stale(f"{self.name}: {text.count(self.guard)} times in {self.file}, expected once:\n{self.guard}")
        compile(text.replace(self.guard, self.without), self.file, "exec")

    def switch_off(self, copy: Path) -> None:
        """In a copy of the source."""
        self.check()
        path = copy / "multiverse" / self.file
        path.write_text(path.read_text().replace(self.guard, self.without))


def copy_source(to: Path) -> Path:
    """A folder that can stand in PYTHONPATH. Without compiled files: those are found by time and size alone."""
    shutil.copytree(SOURCE, to / "multiverse", ignore=shutil.ignore_patterns("__pycache__"))
    return to

"""One guard, marked in the source by a comment `# guard: name`, and a copy of the source without it."""

from __future__ import annotations

import ast
import re
import shutil
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.faults.promises import ROOT

SOURCE = ROOT / "src" / "multiverse"
MARKER = re.compile(r"# guard: ([a-z0-9, -]+)")

Edit = Callable[[list[str], int], list[str]]
"""The lines of a file, and the index of the marked one → the lines without the guard."""


class Stale(Exception):
    """The table does not fit the source any more."""


@dataclass(frozen=True)
class Guard:
    """A comment `# guard: name` is once in the source, at the guard's line or alone above it; after `without` has
    changed the statement there, every one of `tests` must fail. `tests` are pytest's names, with the quickest
    parameters.
    """

    name: str
    rows: tuple[str, ...]
    without: Edit
    tests: tuple[str, ...]

    def check(self) -> None:
        """Raise if the marker is not there exactly once, or if the marked statement cannot be replaced."""
        self._switched_off()

    def switch_off(self, copy: Path) -> None:
        """Switch the guard off in a copy of the source."""
        file, text = self._switched_off()
        (copy / "multiverse" / file.relative_to(SOURCE)).write_text(text)

    def _switched_off(self) -> tuple[Path, str]:
        places = markers().get(self.name, [])
        if len(places) != 1:
            raise Stale(f"`# guard: {self.name}` stands {len(places)} times in the source, expected once")
        ((file, line),) = places
        text = file.read_text()
        try:
            changed = "\n".join(self.without(text.split("\n"), line))
            compile(changed, str(file), "exec")
        except (Stale, SyntaxError) as error:
            raise Stale(f"{self.name}: {file.relative_to(SOURCE)}, line {line + 1}: {error}") from error
        if changed == text:
            raise Stale(f"{self.name}: {file.relative_to(SOURCE)}, line {line + 1} is the same without the guard")
        return file, changed


@cache
def markers() -> dict[str, list[tuple[Path, int]]]:
    """Name of each marker → the files and the indices of the marked lines."""
    found: dict[str, list[tuple[Path, int]]] = {}
    for file in sorted(SOURCE.rglob("*.py")):
        for number, line in enumerate(file.read_text().split("\n")):
            if match := MARKER.search(line):
                alone = not line[: match.start()].strip()
                for name in match[1].split(", "):
                    found.setdefault(name, []).append((file, number + alone))
    return found


# -- what becomes of the marked statement ------------------------------------------------------------------------
def swap(old: str, new: str) -> Edit:
    """`new` in place of `old`, which occurs once in the marked line."""

    def edit(lines: list[str], at: int) -> list[str]:
        code = lines[at].partition("  # guard: ")[0]
        if code.count(old) != 1:
            raise Stale(f"{old!r} stands {code.count(old)} times in {code.strip()!r}, expected once")
        return [*lines[:at], code.replace(old, new), *lines[at + 1 :]]

    return edit


def instead(code: str, statements: int = 1) -> Edit:
    """Put this code in place of the marked statement, or of several."""

    def edit(lines: list[str], at: int) -> list[str]:
        marked = _statements(lines, at)[:statements]
        return [*lines[:at], *_indented(code, lines[at]), *lines[marked[-1].end_lineno or 0 :]]

    return edit


def before(code: str) -> Edit:
    """Insert this code in front of the marked statement."""
    return lambda lines, at: [*lines[:at], *_indented(code, lines[at]), *lines[at:]]


def _condition(value: str) -> Edit:
    def edit(lines: list[str], at: int) -> list[str]:
        marked = _statements(lines, at)[0]
        if not isinstance(marked, ast.If):
            raise Stale(f"{lines[at].strip()!r} is no if")
        last = (marked.test.end_lineno or 0) - 1
        head = lines[at][: len(lines[at]) - len(lines[at].lstrip())]
        word = "elif" if lines[at].lstrip().startswith("elif") else "if"
        return [*lines[:at], f"{head}{word} {value}:", *lines[last + 1 :]]

    return edit


GONE = instead("pass")
NEVER = _condition("False")
ALWAYS = _condition("True")


def _statements(lines: list[str], at: int) -> list[ast.stmt]:
    """The statement that begins in this line, and those after it in its block."""
    for node in ast.walk(ast.parse("\n".join(lines))):
        for block in (getattr(node, name, None) for name in ("body", "orelse", "finalbody")):
            for number, child in enumerate(block if isinstance(block, list) else ()):
                if child.lineno == at + 1:
                    return list(block[number:])
    raise Stale(f"no statement begins with {lines[at].strip()!r}")


def _indented(code: str, like: str) -> list[str]:
    return textwrap.indent(code, like[: len(like) - len(like.lstrip())]).split("\n")


def copy_source(to: Path) -> Path:
    """A copy for PYTHONPATH, without compiled files: Python identifies those by time and size only."""
    shutil.copytree(SOURCE, to / "multiverse", ignore=shutil.ignore_patterns("__pycache__"))
    return to

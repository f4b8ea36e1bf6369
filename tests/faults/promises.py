"""The page of promises and the marks on tests, as data: what each row promises to be proven by, and what proves it."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "failure_promises.md"
TESTS = ROOT / "tests"
IN_SCOPE = {
    *(f"A{i}" for i in range(1, 20) if i != 15),
    *(f"B{i}" for i in range(1, 10) if i != 5),
    "C1", "C2", "C3", "E4", "F2", "F5",
    "B5", "D1", "D2", "D3", "D4", "D5", "D6", "D7", "E1", "E2", "E3", "E6", "F3", "F4",
}  # fmt: skip
"""Rows of the fault matrix that concern the engine, and runs on disk."""

_ROW = re.compile(r"^\| \*\*([A-F]\d+)\*\* \|")
_TEST = re.compile(r"`(tests/[^`\s]+\.py::test_\w+)`")


def rows_on_the_page() -> dict[str, list[str]]:
    """Row → the tests named in its line, as `path::name`."""
    found: dict[str, list[str]] = {}
    for line in PAGE.read_text().splitlines():
        if row := _ROW.match(line):
            assert row[1] not in found, f"row {row[1]} is on the page twice"
            found[row[1]] = _TEST.findall(line)
    return found


def named_on_the_page() -> set[str]:
    """Every test that the page names, in a table or not."""
    return set(_TEST.findall(PAGE.read_text()))


@functools.cache
def marked_tests() -> dict[str, tuple[str, ...]]:
    """Test → the rows of its `@pytest.mark.fault(...)`, read from the source: nothing is imported."""
    return {name: rows for path in sorted(TESTS.rglob("test_*.py")) for name, rows in _marks_in(path)}


def all_tests() -> set[str]:
    return {f"{_name(path)}::{node.name}" for path in TESTS.rglob("test_*.py") for node in _tests_in(path)}


def _marks_in(path: Path) -> Iterator[tuple[str, tuple[str, ...]]]:
    for node in _tests_in(path):
        for mark in node.decorator_list:
            if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.fault":
                yield f"{_name(path)}::{node.name}", tuple(ast.literal_eval(argument) for argument in mark.args)


def _tests_in(path: Path) -> list[ast.FunctionDef]:
    body = ast.parse(path.read_text()).body
    return [node for node in body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()

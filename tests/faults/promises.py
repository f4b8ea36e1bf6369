"""The page of promises and the marks on tests, as data: the tests that each row lists, and the rows of each test."""

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
    *(f"A{i}" for i in range(1, 20)),
    *(f"B{i}" for i in range(1, 10) if i != 5),
    "C1", "C2", "C3", "E4", "E5", "F1", "F2", "F5",
    "B5", "D1", "D2", "D3", "D4", "D5", "D6", "D7", "D8", "E1", "E2", "E3", "E6", "E7", "F3", "F4",
    "G1", "G2", "G3", "G4", "G5", "G6", "G7", "G8", "G9", "G10",
}  # fmt: skip
"""Rows of the fault matrix that concern the engine, and runs on disk."""

_SECTION = re.compile(r"## ([A-Z])\. \S.*")
_ROW = re.compile(r"### ([A-Z]\d+)")
_OVERVIEW = re.compile(r"\| \[([A-Z]\d+)\]\(#([a-z]\d+)\) \|(?: [^|\s][^|]* \|){3}")
_TABLE_HEAD = ("| row | fault | promise | holds in |", "|---|---|---|---|")
_TEST = re.compile(r"`(tests/[^`\s]+\.py::test_\w+)`")


def rows_on_the_page(text: str | None = None) -> dict[str, list[str]]:
    """Row → the tests that its part of the page lists below `**Tests:**`, as `path::name`, one a line."""
    found: dict[str, list[str]] = {}
    letter = row = ""
    listing = False
    for line in _lines(text):
        if line.startswith("#"):
            letter, row, listing = _heading(line, letter), "", False
            if line.startswith("###"):
                heading = _ROW.fullmatch(line)
                assert heading and heading[1][0] == letter, f"no row of section {letter or 'none'}: {line}"
                row = heading[1]
                assert row not in found, f"row {row} is on the page twice"
                found[row] = []
        elif line == "**Tests:**":
            assert row and not listing, f"a list of tests too many, row {row or 'none'}"
            listing = True
        elif listing and line:
            test = _TEST.fullmatch(line.removeprefix("- "))
            assert test and line.startswith("- "), f"row {row} lists what is not one test: {line}"
            assert test[1] not in found[row], f"row {row} lists {test[1]} twice"
            found[row].append(test[1])
    return found


def overview_of_the_page(text: str | None = None) -> list[str]:
    """The rows of the table below `## Overview`: each links to its part of the page, and none of its cells is empty."""
    rows: list[str] = []
    inside = False
    for line in _lines(text):
        if line.startswith("## "):
            inside = line == "## Overview"
        elif inside and line.startswith("|") and line not in _TABLE_HEAD:
            row = _OVERVIEW.fullmatch(line)
            assert row and row[2] == row[1].lower(), f"no row of the overview: {line}"
            rows.append(row[1])
    return rows


def named_on_the_page(text: str | None = None) -> set[str]:
    """Every test that the page names, in a list or elsewhere."""
    return set(_TEST.findall(PAGE.read_text() if text is None else text))


@functools.cache
def marked_tests() -> dict[str, tuple[str, ...]]:
    """Test → the rows of its `@pytest.mark.fault(...)`, read from the source without importing it."""
    return {name: rows for path in sorted(TESTS.rglob("test_*.py")) for name, rows in _marks_in(path)}


def all_tests() -> set[str]:
    return {f"{_name(path)}::{node.name}" for path in TESTS.rglob("test_*.py") for node in _tests_in(path)}


def _lines(text: str | None) -> list[str]:
    return (PAGE.read_text() if text is None else text).splitlines()


def _heading(line: str, letter: str) -> str:
    """Return the letter of the section that continues, or begins, with this heading."""
    if line.startswith("###"):
        return letter
    section = _SECTION.fullmatch(line)
    return section[1] if section else ""


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

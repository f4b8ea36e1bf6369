"""Every promise names the tests that prove it, and every such test has the mark of the row that it proves."""

from __future__ import annotations

from collections import defaultdict

import pytest

from tests.faults.promises import (
    IN_SCOPE,
    PAGE,
    all_tests,
    marked_tests,
    named_on_the_page,
    overview_of_the_page,
    rows_on_the_page,
)

LONGEST_LINE = 200
SMALL_PAGE = """# Title

## Overview

| row | fault | promise | holds in |
|---|---|---|---|
| [A1](#a1) | a fault | A promise. | everywhere |

## A. Workers

### A1

**Fault:** a fault.

- a promise

**Tests:**

- `tests/a/test_b.py::test_c`
"""


def test_every_row_in_scope_has_a_promise_and_tests() -> None:
    page = rows_on_the_page()
    assert page.keys() == IN_SCOPE
    assert [row for row, tests in page.items() if not tests] == []


def test_overview_has_every_row_once_in_page_order() -> None:
    assert overview_of_the_page() == list(rows_on_the_page())


def test_page_lines_have_limited_length() -> None:
    assert [line for line in PAGE.read_text().splitlines() if len(line) > LONGEST_LINE] == []


def test_every_test_on_the_page_exists() -> None:
    assert named_on_the_page() - all_tests() == set()


def test_page_and_marks_agree() -> None:
    """A test listed for a row has its mark, and a marked test is listed for each of its rows."""
    by_row: dict[str, set[str]] = defaultdict(set)
    for test, rows in marked_tests().items():
        for row in rows:
            by_row[row].add(test)
    page = {row: set(tests) for row, tests in rows_on_the_page().items()}
    assert {row: sorted(tests - by_row[row]) for row, tests in page.items() if tests - by_row[row]} == {}
    missing = {row: sorted(tests - page.get(row, set())) for row, tests in by_row.items()}
    assert {row: tests for row, tests in missing.items() if tests} == {}


def test_marks_name_existing_rows_once() -> None:
    marks = marked_tests()
    assert {test: rows for test, rows in marks.items() if not rows or not IN_SCOPE.issuperset(rows)} == {}
    assert {test: rows for test, rows in marks.items() if len(set(rows)) != len(rows)} == {}


def test_valid_page_is_parsed() -> None:
    assert rows_on_the_page(SMALL_PAGE) == {"A1": ["tests/a/test_b.py::test_c"]}
    assert overview_of_the_page(SMALL_PAGE) == ["A1"]
    assert named_on_the_page(SMALL_PAGE) == {"tests/a/test_b.py::test_c"}


@pytest.mark.parametrize(
    ("part", "instead"),
    [
        ("### A1", "### A1: more"),
        ("### A1", "### B1"),
        ("### A1", "### A1\n\n### A1"),
        ("## A. Workers", "## Workers"),
        ("- `tests/a/test_b.py::test_c`", "- tests/a/test_b.py::test_c"),
        ("- `tests/a/test_b.py::test_c`", "`tests/a/test_b.py::test_c`"),
        ("- `tests/a/test_b.py::test_c`", "- `tests/a/test_b.py`"),
        ("- `tests/a/test_b.py::test_c`", "- `tests/a/test_b.py::test_c`\n- `tests/a/test_b.py::test_c`"),
        ("**Tests:**", "**Tests:**\n\n**Tests:**"),
        ("### A1", "**Tests:**\n\n### A1"),
        ("(#a1)", "(#a2)"),
        ("| everywhere |", "|"),
        ("| A promise. |", "|  |"),
        ("| [A1](#a1) |", "| A1 |"),
    ],
)
def test_malformed_page_is_refused(part: str, instead: str) -> None:
    page = SMALL_PAGE.replace(part, instead, 1)
    assert page != SMALL_PAGE
    with pytest.raises(AssertionError):
        rows_on_the_page(page)
        overview_of_the_page(page)

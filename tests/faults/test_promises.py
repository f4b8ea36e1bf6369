"""Every promise names the tests that prove it, and every such test is marked with the row it proves."""

from __future__ import annotations

from collections import defaultdict

from tests.faults.promises import IN_SCOPE, all_tests, marked_tests, named_on_the_page, rows_on_the_page


def test_every_row_in_scope_is_promised_and_proven() -> None:
    page = rows_on_the_page()
    assert page.keys() == IN_SCOPE
    assert [row for row, tests in page.items() if not tests] == []


def test_every_test_on_the_page_exists() -> None:
    assert named_on_the_page() - all_tests() == set()


def test_the_page_and_the_marks_say_the_same() -> None:
    """A test listed for a row carries its mark, and a marked test is listed for each of its rows."""
    by_row: dict[str, set[str]] = defaultdict(set)
    for test, rows in marked_tests().items():
        for row in rows:
            by_row[row].add(test)
    page = {row: set(tests) for row, tests in rows_on_the_page().items()}
    assert {row: sorted(tests - by_row[row]) for row, tests in page.items() if tests - by_row[row]} == {}
    missing = {row: sorted(tests - page.get(row, set())) for row, tests in by_row.items()}
    assert {row: tests for row, tests in missing.items() if tests} == {}


def test_a_mark_names_rows_once_and_only_rows_there_are() -> None:
    marks = marked_tests()
    assert {test: rows for test, rows in marks.items() if not rows or not IN_SCOPE.issuperset(rows)} == {}
    assert {test: rows for test, rows in marks.items() if len(set(rows)) != len(rows)} == {}

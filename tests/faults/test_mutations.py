"""The table of guards fits the source and the tests: `make test-faults-mutations` will have something to say."""

from __future__ import annotations

import pytest

from tests.faults.mutations import GUARDS
from tests.faults.mutations.guard import Guard
from tests.faults.promises import IN_SCOPE, marked_tests


@pytest.mark.parametrize("guard", GUARDS, ids=lambda guard: guard.name)
def test_a_guard_is_in_the_source_once_and_its_tests_are_marked_with_its_rows(guard: Guard) -> None:
    guard.check()
    marks = marked_tests()
    for test in guard.tests:
        assert set(guard.rows) & set(marks.get(test.partition("[")[0], ())), f"{test} does not prove {guard.rows}"


def test_every_row_has_a_guard_that_can_be_switched_off() -> None:
    assert {row for guard in GUARDS for row in guard.rows} == IN_SCOPE


def test_no_two_guards_have_one_name() -> None:
    names = [guard.name for guard in GUARDS]
    assert sorted(set(names)) == sorted(names)

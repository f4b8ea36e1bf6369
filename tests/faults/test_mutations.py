"""The table of guards fits the source and the tests, so that `make test-faults-mutations` can run."""

from __future__ import annotations

import subprocess
import sys

from tests.faults.mutations import GUARDS
from tests.faults.mutations.guard import Stale, markers
from tests.faults.promises import IN_SCOPE, ROOT, marked_tests


def test_every_guard_is_marked_in_the_source_once_and_can_be_disabled() -> None:
    stale = []
    for guard in GUARDS:
        try:
            guard.check()
        except Stale as error:
            stale.append(str(error))
    assert stale == []


def test_every_marker_in_the_source_is_in_the_table() -> None:
    assert set(markers()) - {guard.name for guard in GUARDS} == set()


def test_tests_of_a_guard_are_marked_with_its_rows() -> None:
    marks = marked_tests()
    unmarked = [
        f"{guard.name}: {test} does not prove {guard.rows}"
        for guard in GUARDS
        for test in guard.tests
        if not set(guard.rows) & set(marks.get(test.partition("[")[0], ()))
    ]
    assert unmarked == []


def test_tests_of_every_guard_exist_with_their_parameters() -> None:
    tests = sorted({test for guard in GUARDS for test in guard.tests})
    collect = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *tests]
    found = subprocess.run(collect, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert found.returncode == 0, found.stdout[-2000:] + found.stderr[-2000:]


def test_every_row_has_a_guard() -> None:
    assert {row for guard in GUARDS for row in guard.rows} == IN_SCOPE


def test_guard_names_are_unique() -> None:
    names = [guard.name for guard in GUARDS]
    assert sorted(set(names)) == sorted(names)

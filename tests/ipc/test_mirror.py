"""Mirrored rows of two sides without shared memory: changes of one side reach the other, and nothing else is sent."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces

from multiverse.core.layout import OBSERVATIONS, REWARD, SINGLE_AGENT, VALUES, Field, Group, Layout, Views
from multiverse.ipc.block import NOTHING, Mirror, private_arrays

ROWS, WIDE = ("rows",), ("wide",)
LAYOUT = Layout(
    4,
    (Group(SINGLE_AGENT, (SINGLE_AGENT,), spaces.Box(-1, 1, (3,), np.float32), spaces.Discrete(2)),),
    True,
    (Field(ROWS, (5, 4, 2), np.dtype(np.float32), axis=1), Field(WIDE, (4,), np.dtype(np.complex128))),
)
MINE = range(2, 4)


def sides() -> tuple[Views, Mirror, Views, Mirror]:
    one, other = (Views.over(LAYOUT, private_arrays(LAYOUT.fields())) for _ in range(2))
    return one, Mirror(one, MINE), other, Mirror(other, MINE)


def test_changes_of_either_side_reach_the_other() -> None:
    one, ours, other, theirs = sides()
    one[(SINGLE_AGENT, OBSERVATIONS)][2:] = 0.5
    one[(SINGLE_AGENT, VALUES)][REWARD, 3] = 7.0
    one[ROWS][4, 3] = 2.0
    one[WIDE][2] = 1j
    theirs.apply(ours.changes())
    other[ROWS][1, 2] = 3.0
    ours.apply(theirs.changes())
    for name in one.arrays:
        np.testing.assert_array_equal(one[name], other[name])


def test_only_changed_rows_are_sent_and_only_once() -> None:
    one, ours, _, _ = sides()
    one[ROWS][3, 2] = 1.0
    assert ours.changes() == ([(ROWS, bytes([0, 0, 0, 1, 0]))], np.float32([1, 1, 0, 0]).tobytes())
    assert ours.changes() == NOTHING


def test_all_rows_are_sent_if_most_have_changed() -> None:
    one, ours, other, theirs = sides()
    one[ROWS][:3, 2:] = np.arange(12.0).reshape(3, 2, 2)
    changes = ours.changes()
    assert changes[0] == [(ROWS, None)]
    theirs.apply(changes)
    np.testing.assert_array_equal(one[ROWS], other[ROWS])
    assert ours.changes() == theirs.changes() == NOTHING


def test_changed_rows_of_other_envs_are_not_sent() -> None:
    one, ours, _, _ = sides()
    one[(SINGLE_AGENT, OBSERVATIONS)][:2] = 0.5
    one[ROWS][:, :2] = 1.0
    assert ours.changes() == NOTHING


@pytest.mark.fault("F1")
def test_changes_are_found_by_comparing_bits() -> None:
    one, ours, other, theirs = sides()
    one[ROWS][0, 2] = -0.0, np.nan
    theirs.apply(ours.changes())
    assert np.signbit(other[ROWS][0, 2, 0]) and ours.changes() == NOTHING  # NaN is unchanged

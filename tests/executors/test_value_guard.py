"""The value guard alone: which rows of a range it reports, and which it leaves unchanged."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from multiverse.core.errors import BadValue
from multiverse.core.failures import OnBadValue
from multiverse.core.layout import COUNTS, ENV_RESTARTS, OBSERVATIONS, SINGLE_AGENT, Group, Layout, Views
from multiverse.executors.value_guard import FEW_NUMBERS, ValueGuard
from multiverse.ipc.block import private_arrays
from multiverse.ipc.own_columns import RangeColumns

BOX = spaces.Box(np.array([-1.0, -np.inf]), np.array([1.0, np.inf]), dtype=np.float32)
MANY = spaces.Box(-1.0, 1.0, (FEW_NUMBERS,), np.float32)


class Range:
    """Envs 1 to 3 of five, all zeros, and a guard over them."""

    def __init__(self, space: spaces.Space[Any], mode: OnBadValue = "raise", float32: bool = False) -> None:
        group = Group(SINGLE_AGENT, (SINGLE_AGENT,), space, spaces.Discrete(2))
        self.views = Views.over(layout := Layout(5, (group,), False), private_arrays(layout.fields()))
        ids = range(1, 4)
        columns = RangeColumns(self.views, ids)
        (self.own,) = columns.groups
        self.guard = ValueGuard(mode, self.views, ids, columns, float32)

    def rows(self, *path: str) -> Any:
        return self.views[(SINGLE_AGENT, OBSERVATIONS, *path)][1:4]

    @property
    def counts(self) -> list[list[int]]:
        return self.views[COUNTS][:ENV_RESTARTS].tolist()  # bad values, and values out of bounds


@pytest.mark.parametrize("space", [BOX, MANY], ids=["few", "many"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_non_finite_observation_is_found_in_every_row_and_column(space: spaces.Box, value: float) -> None:
    for row in range(3):
        for column in (0, space.shape[0] - 1):
            envs = Range(space)
            assert not envs.guard.suspicious()
            envs.rows()[row, column] = value
            assert envs.guard.suspicious()
            ((found, error),) = envs.guard.bad_rows(range(3)).items()
            assert found == row
            assert f"the observation is {value}" in str(error) and f"at index {column}" in str(error)


def test_rows_of_other_ranges_are_ignored() -> None:
    envs = Range(BOX)
    envs.views[(SINGLE_AGENT, OBSERVATIONS)][[0, 4]] = np.nan
    assert not envs.guard.suspicious()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_non_finite_reward_is_found(value: float) -> None:
    envs = Range(BOX)
    envs.own.rewards[2] = value
    assert envs.guard.suspicious()
    assert {i: str(error) for i, error in envs.guard.bad_rows(range(3)).items()} == {2: f"the reward is {value}"}


def test_rewards_whose_sum_overflows_are_checked_and_accepted() -> None:
    envs = Range(BOX)
    envs.own.rewards[...] = 1.7e308
    assert envs.guard.suspicious()
    assert envs.guard.bad_rows(range(3)) == {}


def test_largest_finite_values_are_accepted() -> None:
    envs = Range(BOX)
    envs.rows()[:, 1] = np.finfo(np.float32).max
    assert not envs.guard.suspicious()


def test_negative_zero_is_inside_a_box_that_starts_at_zero() -> None:
    envs = Range(spaces.Box(0.0, 1.0, (2,), np.float32))
    envs.rows()[...] = -0.0
    assert not envs.guard.suspicious()
    assert envs.guard.rows_outside() == []


def test_out_of_bounds_values_are_counted_each_time_and_reported_once() -> None:
    envs = Range(BOX)
    envs.rows()[1, 0] = 1.5
    for _ in range(3):
        assert envs.guard.suspicious()
        assert envs.guard.bad_rows(range(3)) == {}
        for i in envs.guard.rows_outside():
            envs.guard.count_outside(i)
    (said,) = envs.guard.take_warnings()
    assert "env 2: the observation is 1.5 at index 0, its space says -1.0 to 1.0" in said
    assert envs.counts[1] == [0, 0, 3, 0, 0]


@pytest.mark.parametrize(
    ("space", "value", "inside"),
    [
        (spaces.Discrete(3, start=2), 5, 4),
        (spaces.MultiDiscrete([3, 4]), [0, 4], [2, 3]),
        (spaces.MultiBinary(2), [2, 0], [1, 1]),
        (spaces.Box(0, 200, (2,), np.uint8), [201, 0], [200, 200]),
    ],
    ids=str,
)
def test_integers_outside_their_space_are_found(space: Any, value: Any, inside: Any) -> None:
    envs = Range(space)
    envs.rows()[...] = inside
    assert not envs.guard.suspicious()
    envs.rows()[1] = value
    assert envs.guard.suspicious()
    assert envs.guard.rows_outside() == [1]
    for row, outside in enumerate([0, 1, 0]):  # and at an episode's end, for each row
        envs.guard.check_end(row)
        assert envs.counts[1][1 + row] == outside


@pytest.mark.fault("B1")
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("high", [1.0, np.inf])
def test_non_finite_scalar_observation_is_found_at_episode_end(value: float, high: float) -> None:
    envs = Range(spaces.Box(-high, high, (1,), np.float32))
    envs.rows()[0] = np.finfo(np.float32).max if high == np.inf else high
    envs.guard.check_end(0)
    assert envs.counts == [[0] * 5, [0] * 5]
    envs.rows()[0] = value
    with pytest.raises(BadValue, match="the observation is"):
        envs.guard.check_end(0)


def test_bytes_over_their_whole_range_are_accepted_at_once() -> None:
    envs = Range(spaces.Box(0, 255, (4,), np.uint8))
    envs.rows()[...] = np.random.default_rng(0).integers(0, 256, (3, 4))
    assert not envs.guard.suspicious()
    assert envs.guard.rows_outside() == []


def test_nested_observation_is_named_by_its_path() -> None:
    envs = Range(spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Box(-1, 1, (2, 2), np.float64)}))
    envs.rows("b")[2, 1, 0] = np.nan
    assert envs.guard.suspicious()
    with pytest.raises(BadValue, match=r"the observation\['b'\] is nan at index \(1, 0\)"):
        envs.guard.check_end(2)


def test_clipping_uses_the_nearest_allowed_value() -> None:
    envs = Range(BOX, "clip")
    envs.rows()[...] = [[np.nan, np.inf], [7.0, -np.inf], [0.5, 3.0]]
    envs.own.rewards[...] = [np.inf, 2.0, np.nan]
    for i in range(3):
        envs.guard.clip(i)
    most = np.finfo(np.float32).max
    assert envs.rows().tolist() == [[0.0, most], [1.0, -most], [0.5, 3.0]]
    assert envs.own.rewards.tolist() == [0.0, 2.0, 0.0]
    assert envs.counts == [[0, 1, 1, 1, 0], [0, 0, 1, 0, 0]]
    assert not envs.guard.suspicious()


def test_nan_is_clipped_into_a_box_without_zero() -> None:
    envs = Range(spaces.Box(2.0, 3.0, (1,), np.float64), "clip")
    envs.rows()[...] = np.nan
    envs.guard.check_start(0)
    assert envs.rows()[0, 0] == 2.0


def test_first_observation_is_checked_without_the_previous_reward() -> None:
    envs = Range(BOX)
    envs.own.rewards[0] = np.nan
    envs.guard.check_start(0)
    envs.rows()[0, 1] = np.nan
    with pytest.raises(BadValue):
        envs.guard.check_start(0)
    assert envs.counts[0] == [0, 1, 0, 0, 0]


@pytest.mark.fault("B1", "B2")
@pytest.mark.parametrize("size", [1, 2, FEW_NUMBERS])
def test_float64_beyond_float32_is_bad_only_for_float32_learners(size: int) -> None:
    space = spaces.Box(-np.inf, np.inf, (size,), np.float64)
    for float32 in (False, True):
        envs = Range(space, float32=float32)
        envs.rows()[1, 0], envs.own.rewards[2] = 1e39, -1e300
        assert envs.guard.suspicious() == float32
        bad = {i: str(error) for i, error in envs.guard.bad_rows(range(3)).items()}
        assert [*bad] == ([1, 2] if float32 else [])
    assert "the observation is 1e+39 (too large for float32" in bad[1]
    assert "the reward is -1e+300 (too large for float32" in bad[2]


@pytest.mark.fault("B1", "B2")
def test_float64_beyond_float32_is_clipped_into_float32() -> None:
    envs = Range(spaces.Box(-np.inf, np.inf, (2,), np.float64), "clip", float32=True)
    envs.rows()[0], envs.own.rewards[0] = [1e39, -np.inf], 1e300
    envs.guard.clip(0)
    most = float(np.finfo(np.float32).max)
    assert envs.rows()[0].tolist() == [most, -most] and envs.own.rewards[0] == 0.0
    assert not envs.guard.suspicious()

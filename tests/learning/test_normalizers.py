"""Running statistics equal the statistics of all values at once."""

from __future__ import annotations

import numpy as np
import pytest

from multiverse.core.errors import TrainingDiverged
from multiverse.learning.normalizers import RewardNormalizer, RunningMeanStd


def test_moments_of_parts_equal_those_of_the_whole() -> None:
    rows = np.random.default_rng(0).normal(3.0, 2.0, (500, 4))
    moments = RunningMeanStd(4)
    for part in np.split(rows, [1, 7, 200]):
        moments.update(part)
    assert moments.mean == pytest.approx(rows.mean(axis=0)) and moments.variance == pytest.approx(rows.var(axis=0))
    shift, scale = moments.shift_and_scale()
    assert ((rows - shift) * scale).std(axis=0) == pytest.approx(np.ones(4), rel=1e-4)


def test_statistics_without_data_change_nothing() -> None:
    shift, scale = RunningMeanStd(2).shift_and_scale()
    assert shift.tolist() == [0.0, 0.0] and scale == pytest.approx(1.0)


def test_restored_moments_are_bit_equal() -> None:
    rng = np.random.default_rng(0)
    one, other = RunningMeanStd(3), RunningMeanStd(3)
    one.update(rng.normal(size=(10, 3)))
    other.load(one.state())
    more = rng.normal(size=(10, 3))
    one.update(more)
    other.update(more)
    assert (one.mean == other.mean).all() and (one.variance == other.variance).all()


def test_rewards_are_divided_by_the_std_of_discounted_returns() -> None:
    rng = np.random.default_rng(0)
    rewards = (100.0 * rng.normal(size=(200, 4))).astype(np.float32)
    ended, valid = rng.random((200, 4)) < 0.05, np.ones((200, 4), bool)
    returns, seen = np.zeros(4), []
    for t in range(200):
        returns = returns * 0.9 + rewards[t]
        seen.append(returns.copy())
        returns[ended[t]] = 0.0
    assert RewardNormalizer(4, 0.9).normalize(rewards, ended, valid) == pytest.approx(rewards / np.std(seen), rel=1e-3)


def test_rewards_of_lost_rows_do_not_count() -> None:
    rewards, ended = np.ones((10, 1), np.float32), np.zeros((10, 1), bool)
    valid = np.ones((10, 1), bool)
    one, other = RewardNormalizer(1, 0.0), RewardNormalizer(1, 0.0)
    one.normalize(rewards, ended, valid)
    spoiled = rewards.copy()
    spoiled[4], valid[4] = 1000.0, False
    other.normalize(spoiled, ended, valid)
    assert one.state()["moments"]["mean"] == other.state()["moments"]["mean"]


@pytest.mark.fault("B5")
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_statistics_refuse_non_finite_values_and_do_not_change(value: float) -> None:
    moments = RunningMeanStd(2)
    moments.update(np.ones((3, 2)))
    before = moments.state()
    with pytest.raises(TrainingDiverged, match="not finite"):
        moments.update(np.array([[1.0, value]]))
    assert all(np.array_equal(before[name], found) for name, found in moments.state().items())

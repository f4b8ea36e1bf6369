"""Several seeds as one figure: the interquartile mean, with a bootstrap interval."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from multiverse.core.layout import Array

DRAWS = 10_000
INTERVAL = 95.0


def interquartile_mean(values: Sequence[float]) -> float:
    """The mean of the middle half; where a quarter of them is no whole number, those at the edges count in part."""
    return float(interquartile_means(np.asarray(values, np.float64)))


def interquartile_means(values: Array) -> Array:
    """[seeds, …] → […]: the same for each of many figures."""
    ordered, count = np.sort(values, axis=0), len(values)
    cut, edges = count / 4, np.arange(count)
    weights = np.clip(np.minimum(edges + 1 - cut, count - cut - edges), 0.0, 1.0)
    return np.asarray(np.tensordot(weights / np.sum(weights), ordered, 1))


def bootstrap_interval(values: Sequence[float], seed: int = 0) -> tuple[float, float]:
    """Where the interquartile mean lies in 95 of 100 draws of as many seeds from these."""
    low, high = bootstrap_intervals(np.asarray(values, np.float64), DRAWS, seed)
    return float(low), float(high)


def bootstrap_intervals(values: Array, draws: int, seed: int = 0) -> tuple[Array, Array]:
    """[seeds, …] → low and high […]: the same for each of many figures, from the same draws."""
    drawn = np.random.default_rng(seed).choice(len(values), (draws, len(values)))
    means = interquartile_means(np.moveaxis(values[drawn], 1, 0))
    low, high = np.percentile(means, [(100 - INTERVAL) / 2, (100 + INTERVAL) / 2], axis=0)
    return low, high

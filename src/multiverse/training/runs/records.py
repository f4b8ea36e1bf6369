"""What a run has written, for whoever looks at it later: no lock is taken, nothing is changed, no code is called."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count, takewhile
from pathlib import Path
from typing import Any

import numpy as np

from multiverse.core.views import Array
from multiverse.training.config.build import in_todays_names
from multiverse.training.config.files import flat, read_config
from multiverse.training.runs.files import read_lines
from multiverse.training.runs.find_runs import CONFIG, METRICS, VIDEOS, find_run, is_run, runs_below
from multiverse.training.runs.run_directory import read_provenance, read_summary

EVALUATED = "evaluation_mean_return"

Points = tuple[list[int], list[float]]
"""Env steps, and what was measured there."""


@dataclass(frozen=True)
class RunRecord:
    """One run as its files tell it now; also while it is under way."""

    path: Path

    @cached_property
    def config(self) -> dict[str, Any]:
        """Its settings, those of the algorithm in a section of their own."""
        return in_todays_names(read_config(self.path / CONFIG))

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The same in one row: `ppo.learning_rate`."""
        return dict(flat(self.config))

    @cached_property
    def summary(self) -> dict[str, Any]:
        return read_summary(self.path)

    @cached_property
    def provenance(self) -> list[dict[str, Any]]:
        return read_provenance(self.path)

    @cached_property
    def metrics(self) -> list[dict[str, Any]]:
        """Every line: of updates and, with `evaluation_…`, of evaluations."""
        return list(read_lines(self.path / METRICS))

    def rows(self) -> list[dict[str, Any]]:
        """The same with one row for all lines of the same env steps, the later one first in doubt."""
        found: list[dict[str, Any]] = []
        for line in self.metrics:
            if found and "env_steps" in line and line["env_steps"] == found[-1].get("env_steps"):
                found[-1].update(line)
            else:
                found.append(dict(line))
        return found

    @property
    def videos(self) -> list[Path]:
        """Those in the run, the newest first."""
        found = [path for path in (self.path / VIDEOS).glob("*.mp4") if path.is_file() and not path.is_symlink()]
        return sorted(found, key=lambda path: path.stat().st_mtime_ns, reverse=True)

    @property
    def seed(self) -> Any:
        return self.config.get("seed", 0)

    def points(self, name: str) -> Points:
        """Wherever this metric was measured."""
        there = [row for row in self.metrics if is_number(row.get("env_steps")) and is_number(row.get(name))]
        return [int(row["env_steps"]) for row in there], [float(row[name]) for row in there]

    def last(self, name: str) -> float | None:
        """Where it was measured last."""
        _, values = self.points(name)
        return values[-1] if values else None

    @property
    def inner_episodes(self) -> int:
        """Of meta-RL: of how many episodes of a task evaluations tell the return; 0 of others."""
        return sum(1 for _ in takewhile(lambda k: self.last(f"{EVALUATED}/episode_{k}") is not None, count(1)))


def records_at(path: Path | str) -> list[RunRecord]:
    """The run that lies there, or, of a directory above, every run in it."""
    where = Path(path)
    paths = [where] if is_run(where) or not where.is_dir() else runs_below(where)
    return [RunRecord(find_run(one).path) for one in paths]


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


# -- several seeds as one figure -----------------------------------------------------------------------------------
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

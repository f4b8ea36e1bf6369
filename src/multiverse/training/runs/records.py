"""Reading the records of runs, without taking locks, changing anything or executing code; and statistics over seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count, takewhile
from pathlib import Path
from typing import Any

import numpy as np

from multiverse.core.layout import Array
from multiverse.training.config.build import with_current_names
from multiverse.training.config.files import flat, read_config
from multiverse.training.runs.files import read_lines
from multiverse.training.runs.find_runs import CONFIG, METRICS, VIDEOS, find_run, is_run, runs_below
from multiverse.training.runs.run_directory import read_provenance, read_summary

EVALUATED = "evaluation_mean_return"

Points = tuple[list[int], list[float]]
"""Env steps, and the values that were measured there."""


@dataclass(frozen=True)
class RunRecord:
    """The present records of a run, which may still be training."""

    path: Path

    @cached_property
    def config(self) -> dict[str, Any]:
        """Settings of the run; those of the algorithm are in their own section."""
        return with_current_names(read_config(self.path / CONFIG))

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The settings without sections: `ppo.learning_rate`."""
        return dict(flat(self.config))

    @cached_property
    def summary(self) -> dict[str, Any]:
        return read_summary(self.path)

    @cached_property
    def provenance(self) -> list[dict[str, Any]]:
        return read_provenance(self.path)

    @cached_property
    def metrics(self) -> list[dict[str, Any]]:
        """All lines: those of updates and those of evaluations, whose names begin with `evaluation_`."""
        return list(read_lines(self.path / METRICS))

    def rows(self) -> list[dict[str, Any]]:
        """The metrics with one row for all lines with the same env steps; later lines take precedence."""
        rows: list[dict[str, Any]] = []
        for line in self.metrics:
            if rows and "env_steps" in line and line["env_steps"] == rows[-1].get("env_steps"):
                rows[-1].update(line)
            else:
                rows.append(dict(line))
        return rows

    @property
    def videos(self) -> list[Path]:
        """Videos in the run, the newest first."""
        paths = [path for path in (self.path / VIDEOS).glob("*.mp4") if path.is_file() and not path.is_symlink()]
        return sorted(paths, key=lambda path: path.stat().st_mtime_ns, reverse=True)

    @property
    def seed(self) -> Any:
        return self.config.get("seed", 0)

    def points(self, name: str) -> Points:
        """All measurements of this metric."""
        rows = [row for row in self.metrics if is_number(row.get("env_steps")) and is_number(row.get(name))]
        return [int(row["env_steps"]) for row in rows], [float(row[name]) for row in rows]

    def last(self, name: str) -> float | None:
        """Last measurement of this metric; None if there is none."""
        _, values = self.points(name)
        return values[-1] if values else None

    @property
    def inner_episodes(self) -> int:
        """Number of episodes of a task whose returns evaluations report (meta-RL); 0 in other runs."""
        return sum(1 for _ in takewhile(lambda k: self.last(f"{EVALUATED}/episode_{k}") is not None, count(1)))


def records_at(path: Path | str) -> list[RunRecord]:
    """Records of the run in this directory, or of every run below it."""
    directory = Path(path)
    paths = [directory] if is_run(directory) or not directory.is_dir() else runs_below(directory)
    return [RunRecord(find_run(run).path) for run in paths]


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


# -- several seeds as one figure -----------------------------------------------------------------------------------
DRAWS = 10_000
INTERVAL = 95.0


def interquartile_mean(values: Sequence[float]) -> float:
    """Mean of the middle half of the values; those at its edges count partly if it has no whole number of values."""
    return float(interquartile_means(np.asarray(values, np.float64)))


def interquartile_means(values: Array) -> Array:
    """[seeds, …] → […]: the interquartile mean over seeds."""
    ordered, count = np.sort(values, axis=0), len(values)
    cut, edges = count / 4, np.arange(count)
    weights = np.clip(np.minimum(edges + 1 - cut, count - cut - edges), 0.0, 1.0)
    return np.asarray(np.tensordot(weights / np.sum(weights), ordered, 1))


def bootstrap_interval(values: Sequence[float], seed: int = 0) -> tuple[float, float]:
    """Bootstrap interval: bounds of the interquartile mean in 95 % of draws of this number of seeds from these."""
    low, high = bootstrap_intervals(np.asarray(values, np.float64), DRAWS, seed)
    return float(low), float(high)


def bootstrap_intervals(values: Array, draws: int, seed: int = 0) -> tuple[Array, Array]:
    """[seeds, …] → low and high […]: bootstrap intervals from the same draws."""
    drawn = np.random.default_rng(seed).choice(len(values), (draws, len(values)))
    means = interquartile_means(np.moveaxis(values[drawn], 1, 0))
    low, high = np.percentile(means, [(100 - INTERVAL) / 2, (100 + INTERVAL) / 2], axis=0)
    return low, high

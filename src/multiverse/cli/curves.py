"""Curves of figures and tables: runs that differ only in their seed are one curve, with a band over the seeds."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from multiverse.algorithms import section_of
from multiverse.core.errors import InvalidRequest
from multiverse.core.imports import display_name
from multiverse.core.layout import Array
from multiverse.core.wording import format_return, nearest
from multiverse.training.config.budget import PARTS
from multiverse.training.runs.records import (
    EVALUATED,
    Points,
    RunRecord,
    bootstrap_interval,
    bootstrap_intervals,
    interquartile_mean,
    interquartile_means,
    records_at,
)

POINTS = 200
"""Number of points of a band; a line has at most twice as many, since more are not visible."""
SPEED_POINTS = 40
"""Number of points of the speed over a run."""
DRAWS = 1_000
MAX_NAMED = 3  # settings in a label, unless more are needed to distinguish curves
MAX_VALUE = 40  # characters of a value in a label
HOW_IT_RUNS = frozenset(
    {"executor", "workers", "start_method", "ray_address", "cpus_per_worker", "gpus_per_worker",
     "torch_threads", "on_failure", "restarts_per_minute", "worker_memory_limit", "reply_timeout_s",
     "log_every", "evaluation_envs", "checkpoint_every_s", "keep_checkpoints"}
)  # fmt: skip
"""Settings that do not affect learning, such as the number of workers, which is 1 in parallel runs of `--seeds`."""


@dataclass(frozen=True)
class Band:
    """Several seeds as one line: interquartile means, and their 95 % bootstrap intervals."""

    env_steps: Array
    middle: Array
    low: Array
    high: Array


@dataclass(frozen=True)
class Curve:
    """Runs with equal settings, one for each seed."""

    label: str
    runs: tuple[RunRecord, ...]

    def each(self, name: str) -> list[Points]:
        """Return one line for each seed that has this metric."""
        return [thinned(points) for run in self.runs if (points := _points(run, name))[0]]

    def band(self, name: str) -> Band | None:
        """Return the band over the steps that all seeds have reached; None for a single seed. The band of evaluations,
        which are rare, has only the steps at which all seeds have one, if there are at least two such steps."""
        if name.startswith(EVALUATED):
            shared = shared_band([_points(run, name) for run in self.runs])
            if shared is not None:
                return shared
        return band_of(self.each(name))

    def final(self) -> list[float]:
        """Return the last evaluation of every seed."""
        return [value for run in self.runs if (value := run.last(EVALUATED)) is not None]

    def best(self) -> list[float]:
        """Return the best evaluation of every seed."""
        return [max(values) for run in self.runs if (values := run.points(EVALUATED)[1])]

    def env_steps_per_s(self) -> float | None:
        """Return the speed over the whole run including its evaluations; the median for several seeds."""
        rates = [rate for run in self.runs if (rate := mean_rate(run)) is not None]
        return statistics.median(rates) if rates else None

    def time_split(self) -> dict[str, float]:
        """Return the share of each part of the training in the time of all seeds; {} if none has metrics."""
        seconds_of_runs = [_seconds_by_part(run) for run in self.runs]
        spent = {part: sum(seconds.get(part, 0.0) for seconds in seconds_of_runs) for part in PARTS}
        total = sum(spent.values())
        return {part: part_s / total for part, part_s in spent.items()} if total else {}


def curves_of(paths: Sequence[str | Path]) -> list[Curve]:
    """Return the runs in these paths as curves: runs whose settings are equal, except for the seed and `HOW_IT_RUNS`,
    are one curve.

    Of several runs with equal settings and seed in one path, the one that was started last counts. Runs of a curve that
    share a seed are split into several curves: by path and, in one path, by `HOW_IT_RUNS`.
    """
    by_settings: dict[str, list[tuple[str, RunRecord]]] = {}
    for path in paths:
        newest = {(_settings_text(run), str(run.seed)): run for run in sorted(records_at(path), key=_started_at)}
        for run in newest.values():
            group = by_settings.setdefault(_settings_text(run, HOW_IT_RUNS), [])
            if all(other.path.resolve() != run.path.resolve() for _, other in group):
                group.append((str(path), run))
    groups = [part for group in by_settings.values() for part in _split(group)]
    runs = [tuple(sorted((run for _, run in group), key=lambda run: str(run.seed))) for group in groups]
    return [Curve(label, runs_of_curve) for label, runs_of_curve in zip(_labels(runs), runs)]


def _split(group: list[tuple[str, RunRecord]], by_path: bool = True) -> list[list[tuple[str, RunRecord]]]:
    """Split a group until each part has at most one run for each seed."""
    seeds = [str(run.seed) for _, run in group]
    if len({*seeds}) == len(seeds):
        return [group]
    parts: dict[str, list[tuple[str, RunRecord]]] = {}
    for path, run in group:
        parts.setdefault(path if by_path else _settings_text(run), []).append((path, run))
    return [group for part in parts.values() for group in (_split(part, False) if by_path else [part])]


def settings_of(runs: Sequence[RunRecord]) -> list[dict[str, Any]]:
    """Return the settings of each run. If algorithms differ, `ppo.gamma` and `sac.gamma` are one setting, `gamma`."""
    sections = [f"{section_of(str(run.config.get('algorithm')))}." for run in runs]
    if len({*sections}) == 1:
        return [run.settings for run in runs]
    return [
        {name.removeprefix(section): value for name, value in run.settings.items()}
        for section, run in zip(sections, runs)
    ]


def differing(runs: Sequence[RunRecord]) -> dict[str, list[Any]]:
    """Return the settings that differ between these runs, with the value in each run; None if a run has no such
    setting."""
    rows = settings_of(runs)
    names = list(dict.fromkeys(name for row in rows for name in row))
    table = {name: [row.get(name) for row in rows] for name in names if name != "seed"}
    return {name: values for name, values in table.items() if any(value != values[0] for value in values)}


def band_of(lines: Sequence[Points]) -> Band | None:
    """Return the band of interpolated lines between the first and the last step that all lines have; None for fewer
    than two lines."""
    if len(lines) < 2:
        return None
    first, last = max(steps[0] for steps, _ in lines), min(steps[-1] for steps, _ in lines)
    if first >= last:
        return None
    grid = np.linspace(first, last, POINTS)
    return _band(grid, np.stack([np.interp(grid, steps, values) for steps, values in lines]))


def shared_band(lines: Sequence[Points]) -> Band | None:
    """Return the band at the steps that all lines have, without interpolation; None if there are fewer than two."""
    values_of_lines = [dict(zip(*line)) for line in lines if line[0]]
    grid = sorted(set.intersection(*map(set, values_of_lines))) if len(values_of_lines) > 1 else []
    if len(grid) < 2:
        return None
    return _band(np.array(grid), np.array([[values[step] for step in grid] for values in values_of_lines]))


def _band(grid: Array, rows: Array) -> Band:
    low, high = bootstrap_intervals(rows, DRAWS)
    return Band(grid, interquartile_means(rows), low, high)


def in_figures(values: Sequence[float]) -> str:
    """Return '493.1', or for several seeds 'IQM 493.1 (480.2 to 500.0)'; '–' if there is no value."""
    if len(values) < 2:
        return format_return(values[0]) if values else "–"
    low, high = bootstrap_interval(values)
    return f"IQM {format_return(interquartile_mean(values))} ({format_return(low)} to {format_return(high)})"


def thinned(points: Points) -> Points:
    """Return at most about `2 * POINTS` points, including the last one."""
    steps, values = points
    every = -(-len(steps) // (2 * POINTS)) or 1
    kept = sorted({*range(0, len(steps), every), len(steps) - 1}) if steps else []
    return [steps[i] for i in kept], [values[i] for i in kept]


def rates(run: RunRecord) -> Points:
    """Return the env steps per second in each of `SPEED_POINTS` parts of the run, including evaluations."""
    steps, seconds = run.points("seconds")
    rate_steps: list[int] = []
    values: list[float] = []
    previous = 0
    for i in range(1, len(steps)):
        enough = steps[i] - steps[previous] >= (steps[-1] - steps[0]) / SPEED_POINTS
        if enough and seconds[i] > seconds[previous]:  # a resumed run may repeat its last line
            rate_steps.append(steps[i])
            values.append((steps[i] - steps[previous]) / (seconds[i] - seconds[previous]))
            previous = i
    return rate_steps, values


def mean_rate(run: RunRecord) -> float | None:
    """Return the speed in the summary or, if there is none or the run has been resumed since, in the metrics."""
    steps, seconds = run.points("seconds")
    rate, until = run.summary.get("env_steps_per_s"), run.summary.get("env_steps")
    if isinstance(rate, int | float) and isinstance(until, int | float) and until >= (steps[-1] if steps else 0):
        return float(rate)
    return steps[-1] / seconds[-1] if seconds and seconds[-1] > 0 else None


def _points(run: RunRecord, name: str) -> Points:
    return rates(run) if name == "env_steps_per_s" else run.points(name)


def _seconds_by_part(run: RunRecord) -> dict[str, float]:
    """Return the seconds of each part in the summary or, without a summary, in the metrics, whose rows have the shares
    of the time since the previous row."""
    in_summary = {part: run.summary.get(f"{part}_s") for part in PARTS}
    if all(isinstance(part_s, int | float) for part_s in in_summary.values()):
        return {part: float(part_s or 0.0) for part, part_s in in_summary.items()}
    _, seconds = run.points("seconds")
    durations = np.diff([0.0, *seconds])
    shares = {part: run.points(f"{part}_share")[1] for part in PARTS}
    return {part: float(durations @ np.array(row)) for part, row in shares.items() if len(row) == len(durations)}


def _settings_text(run: RunRecord, without: frozenset[str] = frozenset()) -> str:
    """Return a text that is equal for equal settings; the seed and the settings in `without` are left out."""
    return repr(sorted((name, repr(value)) for name, value in run.settings.items() if name not in {"seed", *without}))


def _started_at(run: RunRecord) -> str:
    return str((run.provenance or [{}])[-1].get("started") or "")


# -- labels --------------------------------------------------------------------------------------------------------
def _labels(runs: Sequence[tuple[RunRecord, ...]]) -> list[str]:
    """Label each curve by what distinguishes it: the env and the algorithm if these differ, then settings, then the
    directory. No two labels are equal."""
    envs, algorithms = (
        [display_name(str(curve[0].config.get(name))) for curve in runs] for name in ("env", "algorithm")
    )
    names = [f"{env}, {algorithm}" for env, algorithm in zip(envs, algorithms)]
    labels = [*names] if len({*envs}) > 1 or len({*names}) == 1 else algorithms
    for indices in _duplicates(names):
        for i, text in zip(indices, _distinctions([runs[i] for i in indices])):
            labels[i] = text if len({*names}) == 1 else f"{labels[i]}: {text}"
    return labels


def _duplicates(labels: Sequence[str]) -> list[list[int]]:
    """Return the indices of each label that occurs more than once."""
    indices = [[i for i, other in enumerate(labels) if other == label] for label in dict.fromkeys(labels)]
    return [group for group in indices if len(group) > 1]


def _distinctions(runs: Sequence[tuple[RunRecord, ...]]) -> list[str]:
    """Distinguish runs of one env and algorithm by as many settings as necessary, at least the first three."""
    settings = differing([curve[0] for curve in runs])
    settings = {name: settings[name] for name in sorted(settings, key=lambda name: name in HOW_IT_RUNS)}
    chosen, rows = list[str](), [""] * len(runs)
    for name, values in settings.items():
        more = [f"{row}, {name.rpartition('.')[2]} {_in_short(value)}" for row, value in zip(rows, values)]
        if len({*more}) > len({*rows}) or (len(chosen) < MAX_NAMED and name not in HOW_IT_RUNS):
            chosen, rows = [*chosen, name], more
    rest = ", …" if {*settings} - HOW_IT_RUNS - {*chosen} else ""
    labels = [f"{row}{rest}".removeprefix(", ") for row in rows]
    paths = [(curve[0].path if len(curve) == 1 else curve[0].path.parent).parts for curve in runs]
    for indices in _duplicates(labels):
        for i, tail in zip(indices, _tails([paths[i] for i in indices])):
            labels[i] = f"{labels[i]}, {tail}".removeprefix(", ")
    return labels


def _tails(paths: Sequence[tuple[str, ...]]) -> list[str]:
    """Return as much of the end of each path as distinguishes it; for equal paths, the path with a number."""
    for length in range(1, max(map(len, paths)) + 1):
        tails = [str(Path(*parts[-length:])) for parts in paths]
        if len({*tails}) == len(tails):
            return tails
    return [f"{Path(*parts)} ({number})" for number, parts in enumerate(paths, start=1)]


def _in_short(value: Any) -> str:
    text = "none" if value is None else str(value)
    return text if len(text) <= MAX_VALUE else f"{text[: MAX_VALUE - 1]}…"


def require_metrics(curves: Sequence[Curve], *names: str) -> None:
    """Refuse a metric that no run has, and suggest similar ones."""
    known = sorted({key for curve in curves for run in curve.runs for row in run.metrics for key in row})
    for name in names:
        if name not in known:
            near = nearest(name, known)
            hint = f"did you mean {near[0]}?" if near else f"the metrics are {', '.join(known)}"
            raise InvalidRequest(f"no run has the metric {name}; {hint}")

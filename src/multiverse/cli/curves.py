"""Runs as pictures and tables show them: those that differ only in their seed are one, with a band over the seeds."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from multiverse.algorithms import section_of
from multiverse.core.errors import InvalidRequest, in_digits
from multiverse.core.imports import without_folders
from multiverse.core.names import nearest
from multiverse.core.views import Array
from multiverse.training.config.budget import PARTS
from multiverse.training.runs.records import EVALUATED, Points, RunRecord, records_at
from multiverse.training.seeds import bootstrap_interval, bootstrap_intervals, interquartile_mean, interquartile_means

POINTS = 200
"""Of a band; and at most so many of a line: more than that nobody sees."""
STRETCHES = 40
"""Of a run: each has one figure for its speed."""
DRAWS = 1_000
MOST_NAMED = 3  # settings in a label, unless more are needed to tell curves apart
LONG_VALUE = 40  # characters of one there
HOW_IT_RUNS = frozenset(
    {"executor", "workers", "start_method", "ray_address", "cpus_per_worker", "gpus_per_worker",
     "torch_threads", "on_failure", "restarts_per_minute", "worker_memory_limit", "reply_timeout_s",
     "log_every", "evaluation_envs", "checkpoint_every_s", "keep_checkpoints"}
)  # fmt: skip
"""Settings that change nothing of what is learned: `--seeds`, say, gives each run one worker."""


@dataclass(frozen=True)
class Band:
    """Several seeds as one line: interquartile means, and the interval that 95 of 100 draws of the seeds stay in."""

    env_steps: Array
    middle: Array
    low: Array
    high: Array


@dataclass(frozen=True)
class Curve:
    """Runs of one kind, a seed each."""

    label: str
    runs: tuple[RunRecord, ...]

    def each(self, name: str) -> list[Points]:
        """One line for each seed that has this metric."""
        return [thinned(points) for run in self.runs if (points := _measured(run, name))[0]]

    def band(self, name: str) -> Band | None:
        """As far as all seeds have come; None of a single one. Of evaluations, which are rare, only where all seeds
        have one, if that is so at two steps at least."""
        if name.startswith(EVALUATED):
            shared = shared_band([_measured(run, name) for run in self.runs])
            if shared is not None:
                return shared
        return band_of(self.each(name))

    def final(self) -> list[float]:
        """Every seed's last evaluation."""
        return [found for run in self.runs if (found := run.last(EVALUATED)) is not None]

    def best(self) -> list[float]:
        return [max(values) for run in self.runs if (values := run.points(EVALUATED)[1])]

    def env_steps_per_s(self) -> float | None:
        """Over the whole run, evaluations and all; of several seeds the median."""
        rates = [rate for run in self.runs if (rate := mean_rate(run)) is not None]
        return statistics.median(rates) if rates else None

    def time_split(self) -> dict[str, float]:
        """Share of each part of the seconds of all seeds; {} if none has a line of metrics."""
        spent = dict.fromkeys(PARTS, 0.0)
        for run in self.runs:
            for part, part_s in _seconds_by_part(run).items():
                spent[part] += part_s
        whole = sum(spent.values())
        return {part: part_s / whole for part, part_s in spent.items()} if whole else {}


def curves_of(paths: Sequence[str | Path]) -> list[Curve]:
    """What these paths hold, by their settings without the seed and how they were run; of two runs with equal settings
    and seed below one path the one that was begun last. Runs that share a seed are two curves: by path, and below one
    path by how they were run."""
    by_settings: dict[str, list[tuple[str, RunRecord]]] = {}
    for path in paths:
        newest = {(_kind(run), str(run.seed)): run for run in sorted(records_at(path), key=_begun)}
        for run in newest.values():
            found = by_settings.setdefault(_kind(run, HOW_IT_RUNS), [])
            if all(one.path.resolve() != run.path.resolve() for _, one in found):
                found.append((str(path), run))
    groups = [group for found in by_settings.values() for group in _apart(found)]
    runs = [tuple(sorted((run for _, run in group), key=lambda run: str(run.seed))) for group in groups]
    return [Curve(label, one) for label, one in zip(_labels(runs), runs)]


def _apart(found: list[tuple[str, RunRecord]], by_path: bool = True) -> list[list[tuple[str, RunRecord]]]:
    """Of each seed one at most."""
    seeds = [str(run.seed) for _, run in found]
    if len({*seeds}) == len(seeds):
        return [found]
    parts: dict[str, list[tuple[str, RunRecord]]] = {}
    for path, run in found:
        parts.setdefault(path if by_path else _kind(run), []).append((path, run))
    return [group for part in parts.values() for group in (_apart(part, False) if by_path else [part])]


def settings_of(runs: Sequence[RunRecord]) -> list[dict[str, Any]]:
    """Of each in one row; of different algorithms `ppo.gamma` and `sac.gamma` are one setting, `gamma`."""
    sections = [f"{section_of(str(run.config.get('algorithm')))}." for run in runs]
    if len({*sections}) == 1:
        return [run.settings for run in runs]
    return [
        {name.removeprefix(section): value for name, value in run.settings.items()}
        for section, run in zip(sections, runs)
    ]


def differing(runs: Sequence[RunRecord]) -> dict[str, list[Any]]:
    """Settings in which these are not all alike, with the value of each; None where one has no such setting."""
    rows = settings_of(runs)
    names = list(dict.fromkeys(name for row in rows for name in row))
    every = {name: [row.get(name) for row in rows] for name in names if name != "seed"}
    return {name: values for name, values in every.items() if any(one != values[0] for one in values)}


def band_of(lines: Sequence[Points]) -> Band | None:
    if len(lines) < 2:
        return None
    first, last = max(steps[0] for steps, _ in lines), min(steps[-1] for steps, _ in lines)
    if first >= last:
        return None
    grid = np.linspace(first, last, POINTS)
    rows = np.stack([np.interp(grid, steps, values) for steps, values in lines])
    return Band(grid, interquartile_means(rows), *bootstrap_intervals(rows, DRAWS))


def shared_band(lines: Sequence[Points]) -> Band | None:
    """At the steps that all of these have, with nothing in between; None if those are fewer than two."""
    each = [dict(zip(*line)) for line in lines if line[0]]
    grid = sorted(set.intersection(*map(set, each))) if len(each) > 1 else []
    if len(grid) < 2:
        return None
    rows = np.array([[known[at] for at in grid] for known in each])
    return Band(np.array(grid), interquartile_means(rows), *bootstrap_intervals(rows, DRAWS))


def in_figures(values: Sequence[float]) -> str:
    """'493.1', or of several seeds 'IQM 493.1 (480.2 to 500.0)'; '–' if there is none."""
    if len(values) < 2:
        return in_digits(values[0]) if values else "–"
    low, high = bootstrap_interval(values)
    return f"IQM {in_digits(interquartile_mean(values))} ({in_digits(low)} to {in_digits(high)})"


def thinned(points: Points) -> Points:
    """At most so many points as can be told apart, the last one among them."""
    steps, values = points
    every = -(-len(steps) // (2 * POINTS)) or 1
    kept = sorted({*range(0, len(steps), every), len(steps) - 1}) if steps else []
    return [steps[i] for i in kept], [values[i] for i in kept]


def rates(run: RunRecord) -> Points:
    """Env steps per second of every fortieth of the run, whatever it was spent on."""
    steps, seconds = run.points("seconds")
    found: Points = ([], [])
    before = 0
    for i in range(1, len(steps)):
        enough = steps[i] - steps[before] >= (steps[-1] - steps[0]) / STRETCHES
        if enough and seconds[i] > seconds[before]:  # a resumed run may begin with a line it had before
            found[0].append(steps[i])
            found[1].append((steps[i] - steps[before]) / (seconds[i] - seconds[before]))
            before = i
    return found


def mean_rate(run: RunRecord) -> float | None:
    """As its summary tells it or, of a run without one or that has gone on since, from its lines."""
    steps, seconds = run.points("seconds")
    told, until = run.summary.get("env_steps_per_s"), run.summary.get("env_steps")
    if isinstance(told, int | float) and isinstance(until, int | float) and until >= (steps[-1] if steps else 0):
        return float(told)
    return steps[-1] / seconds[-1] if seconds and seconds[-1] > 0 else None


def _measured(run: RunRecord, name: str) -> Points:
    return rates(run) if name == "env_steps_per_s" else run.points(name)


def _seconds_by_part(run: RunRecord) -> dict[str, float]:
    """From the summary or, of a run without one, its lines: each tells the shares of the time since the one before."""
    told = {part: run.summary.get(f"{part}_s") for part in PARTS}
    if all(isinstance(one, int | float) for one in told.values()):
        return {part: float(one or 0.0) for part, one in told.items()}
    _, seconds = run.points("seconds")
    took = np.diff([0.0, *seconds])
    shares = {part: run.points(f"{part}_share")[1] for part in PARTS}
    return {part: float(took @ np.array(one)) for part, one in shares.items() if len(one) == len(took)}


def _kind(run: RunRecord, without: frozenset[str] = frozenset()) -> str:
    """All settings but the seed and these; equal ones are equal texts."""
    return repr(sorted((name, repr(value)) for name, value in run.settings.items() if name not in {"seed", *without}))


def _begun(run: RunRecord) -> str:
    return str((run.provenance or [{}])[-1].get("started") or "")


def _labels(runs: Sequence[tuple[RunRecord, ...]]) -> list[str]:
    """Each by what tells it from the others: env and algorithm where these differ; of those that share them settings
    and, where these do not tell, the directory. No two are equal."""
    envs, algorithms = (
        [without_folders(str(one[0].config.get(name))) for one in runs] for name in ("env", "algorithm")
    )
    named = [f"{env}, {algorithm}" for env, algorithm in zip(envs, algorithms)]
    labels = [*named] if len({*envs}) > 1 or len({*named}) == 1 else algorithms
    for name in [name for name in dict.fromkeys(named) if named.count(name) > 1]:
        alike = [i for i, one in enumerate(named) if one == name]
        for i, told in zip(alike, _told_apart([runs[i] for i in alike])):
            labels[i] = told if len({*named}) == 1 else f"{labels[i]}: {told}"
    return labels


def _told_apart(runs: Sequence[tuple[RunRecord, ...]]) -> list[str]:
    """Runs of one env and algorithm: by as many settings as it takes, at least the first three that differ."""
    found = differing([one[0] for one in runs])
    found = {name: found[name] for name in sorted(found, key=lambda name: name in HOW_IT_RUNS)}
    chosen, rows = list[str](), [""] * len(runs)
    for name, values in found.items():
        more = [f"{row}, {name.rpartition('.')[2]} {_in_short(value)}" for row, value in zip(rows, values)]
        if len({*more}) > len({*rows}) or (len(chosen) < MOST_NAMED and name not in HOW_IT_RUNS):
            chosen, rows = [*chosen, name], more
    rest = ", …" if {*found} - HOW_IT_RUNS - {*chosen} else ""
    told = [f"{row}{rest}".removeprefix(", ") for row in rows]
    places = [(one[0].path if len(one) == 1 else one[0].path.parent).parts for one in runs]
    for alike in [[i for i, one in enumerate(told) if one == label] for label in dict.fromkeys(told)]:
        for i, tail in zip(alike, _tails([places[i] for i in alike]) if len(alike) > 1 else []):
            told[i] = f"{told[i]}, {tail}".removeprefix(", ")
    return told


def _tails(places: Sequence[tuple[str, ...]]) -> list[str]:
    """As much of the end of each path as tells them apart; of equal ones also which it is."""
    for length in range(1, max(map(len, places)) + 1):
        tails = [str(Path(*parts[-length:])) for parts in places]
        if len({*tails}) == len(tails):
            return tails
    return [f"{Path(*parts)} ({number})" for number, parts in enumerate(places, start=1)]


def _in_short(value: Any) -> str:
    text = "none" if value is None else str(value)
    return text if len(text) <= LONG_VALUE else f"{text[: LONG_VALUE - 1]}…"


def require_metrics(curves: Sequence[Curve], *names: str) -> None:
    """A name that no run has is a mistake; the nearest ones are told."""
    known = sorted({key for curve in curves for run in curve.runs for row in run.metrics for key in row})
    for name in names:
        if name not in known:
            near = nearest(name, known, most=3, cutoff=0.4)
            told = f"nearest are {', '.join(near)}" if near else f"there are {', '.join(known)}"
            raise InvalidRequest(f"no run here has the metric {name}; {told}")

"""A search as a picture: what each trial came to, and how that goes with each setting."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from multiverse.cli.figures import COLORS, SIZE, Axes, Figure, prepare
from multiverse.cli.search_space import Range, Space
from multiverse.cli.search_study import PRUNED, Trial


def search_figure(trials: Sequence[Trial], space: Space) -> Figure:
    """Trials that have a return; pruned ones are crosses, at what they came to."""
    from matplotlib.figure import Figure

    known = [trial for trial in trials if trial.returned is not None]
    count = 1 + len(space.tried)
    columns = min(2, count)
    rows = -(-count // columns)
    whole = Figure(figsize=(SIZE[0] * columns, SIZE[1] * rows), layout="constrained")
    cells = list(whole.subplots(rows, columns, squeeze=False).reshape(-1))
    _course(cells[0], known)
    for cell, name in zip(cells[1:], space.tried):
        _setting(cell, name, known, space)
    for cell in cells[count:]:
        cell.set_axis_off()
    return whole


def _course(axes: Axes, trials: Sequence[Trial]) -> None:
    prepare(axes, "Return of every trial, and the best so far")
    _points(axes, trials, [trial.number for trial in trials])
    complete = [trial for trial in trials if trial.state != PRUNED and trial.returned is not None]
    best = accumulate((trial.returned for trial in complete if trial.returned is not None), max)
    axes.step([trial.number for trial in complete], list(best), where="post", color=COLORS[2], label="best so far")
    axes.set_xlabel("trial")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.legend(fontsize=9, framealpha=0.8, edgecolor="none")


def _setting(axes: Axes, name: str, trials: Sequence[Trial], space: Space) -> None:
    prepare(axes, name)
    dimension = space.tried[name]
    if isinstance(dimension, Range):
        _points(axes, trials, [trial.settings[name] for trial in trials])
        if dimension.log:
            _logarithmic(axes)
    else:
        order = {word: place for place, word in enumerate(dimension.words)}
        _points(axes, trials, [order[space.word(name, trial.settings[name])] for trial in trials])
        axes.set_xticks(range(len(order)), [*order])
    axes.set_xlabel(name)


def _logarithmic(axes: Axes) -> None:
    """Labels at powers of ten; of what spans fewer than two, at 2 and 5 as well, or wherever there are a few."""
    from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

    axes.set_xscale("log")
    low, high = axes.get_xlim()
    if high >= 100 * low:
        axes.xaxis.set_major_locator(LogLocator())
    else:
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)) if high >= 4 * low else MaxNLocator(5))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())


def _points(axes: Axes, trials: Sequence[Trial], places: Sequence[float]) -> None:
    for state, marker, color in (("complete", "o", COLORS[0]), (PRUNED, "x", COLORS[1])):
        some = [(place, trial.returned) for place, trial in zip(places, trials) if trial.state == state]
        if some:
            axes.scatter(*zip(*some), marker=marker, color=color, s=28, label=state, zorder=3)
    axes.set_ylabel("return")

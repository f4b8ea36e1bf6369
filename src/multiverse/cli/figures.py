"""Figures by matplotlib: learning curves with a band over the seeds, speed, time split; trials of a search."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from multiverse.cli.curves import Curve
from multiverse.cli.main import require
from multiverse.cli.output import percent
from multiverse.core.errors import InvalidRequest
from multiverse.core.imports import display_name
from multiverse.core.layout import Array
from multiverse.training.config.budget import PARTS
from multiverse.training.runs.records import EVALUATED

if TYPE_CHECKING:
    from multiverse.cli.search import Space
    from multiverse.cli.search_study import Trial

COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#8c6d31")
"""Colours that colour-blind readers can distinguish; they repeat after the last."""
PART_COLORS = dict(zip(PARTS, ("#56b4e9", "#0072b2", "#d55e00", "#009e73", "#e69f00", "#bbbbbb")))
SIZE = (7.2, 4.2)  # inches
LINE_LENGTH = 60  # characters of a line in a figure
DASHES = ("-", "--", ":", "-.")
MAX_INSIDE = 8  # number of curves up to which the legend is inside the axes
LINE_HEIGHT, BAR_HEIGHT = 0.2, 0.3  # inches, of a line of a legend and of a bar of the time split
MAX_ENVS = 16

Axes = Any  # types of matplotlib, which is imported when something is drawn
Figure = Any


@dataclass(frozen=True)
class Panel:
    """One panel of a figure: its title, and the function that draws it."""

    title: str
    draw: Callable[[Axes, Sequence[Curve]], None]


def panels_of(curves: Sequence[Curve], metrics: Sequence[str] = ()) -> list[Panel]:
    """Return the panels for which these runs have data, and one for each requested metric. Each env has its own panels,
    since returns of different envs cannot be compared."""
    by_env: dict[str, list[Curve]] = {}
    for curve in curves:
        by_env.setdefault(_env(curve), []).append(curve)
    if len(by_env) > MAX_ENVS:
        raise InvalidRequest(
            f"the runs have {len(by_env)} different envs, but a figure shows at most {MAX_ENVS}; name fewer runs"
        )
    if len(by_env) == 1:
        return _panels(curves, metrics)
    return [
        Panel(f"{env}: {panel.title}", _only(env, panel))
        for env, own in by_env.items()
        for panel in _panels(own, metrics)
    ]


def _env(curve: Curve) -> str:
    return display_name(str(curve.runs[0].config.get("env")))


def _only(env: str, panel: Panel) -> Callable[[Axes, Sequence[Curve]], None]:
    return lambda axes, curves: panel.draw(axes, [curve for curve in curves if _env(curve) == env])


def _panels(curves: Sequence[Curve], metrics: Sequence[str]) -> list[Panel]:
    evaluations = _metric(EVALUATED, "return", marker="o")
    panels = [
        Panel("Return while training, mean of the last 100 episodes", _metric("mean_return", "return")),
        *([Panel("Return in evaluations, on unseen seeds", evaluations)] if _have(curves, EVALUATED) else []),
        Panel("Speed", _metric("env_steps_per_s", "env steps per second", from_zero=True)),
        Panel("Time split", _time_split),
    ]
    if any(run.inner_episodes for curve in curves for run in curve.runs):
        panels.append(Panel("Return of each episode of a task, in evaluations", _per_episode))
    return [*panels, *(Panel(name, _metric(name, name)) for name in metrics)]


def figure(panels: Sequence[Panel], curves: Sequence[Curve]) -> Figure:
    """Draw all panels, two in a row."""
    whole, cells = _grid(len(panels))
    for panel, cell in zip(panels, cells):
        prepare(cell, panel.title)
        panel.draw(cell, curves)
    below = max(map(_lines_below, cells))
    taller = max(LINE_HEIGHT * below, BAR_HEIGHT * (len(curves) - MAX_INSIDE), 0.0)
    width, height = whole.get_size_inches()
    whole.set_size_inches(width, height / SIZE[1] * (SIZE[1] + taller))
    return whole


def _grid(count: int) -> tuple[Figure, list[Axes]]:
    """Return a new figure and this many axes, two in a row."""
    require("plot", "matplotlib", purpose="a figure")
    from matplotlib.figure import Figure

    columns = min(2, count)
    rows = -(-count // columns)
    whole = Figure(figsize=(SIZE[0] * columns, SIZE[1] * rows), layout="constrained")
    cells = list(whole.subplots(rows, columns, squeeze=False).reshape(-1))
    for cell in cells[count:]:
        cell.set_axis_off()
    return whole, cells[:count]


def drawn(whole: Figure, kind: str) -> bytes:
    """Return the figure as a file of this kind: 'png', 'svg' or 'pdf'. Equal figures give equal files."""
    import matplotlib

    file, dates = io.BytesIO(), {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "multiverse"}):
        whole.savefig(file, format=kind, dpi=110, metadata=dates[kind])
    return file.getvalue()


# -- panels ---------------------------------------------------------------------------------------------------------
def _metric(name: str, unit: str, marker: str = "", from_zero: bool = False) -> Callable[[Axes, Sequence[Curve]], None]:
    def draw(axes: Axes, curves: Sequence[Curve]) -> None:
        for number, curve in enumerate(curves):
            style = {"marker": marker, "color": COLORS[number % len(COLORS)], "linestyle": _dashes(number)}
            _line(axes, curve, name, _label(curve), style)
        _over_env_steps(axes, name)
        axes.set_ylabel(unit)
        if from_zero:
            axes.set_ylim(bottom=0)

    return draw


def _line(axes: Axes, curve: Curve, name: str, label: str, style: dict[str, Any]) -> None:
    """Draw a line for a single seed; for several seeds, faint lines below a strong one with its band. A single point is
    drawn as a dot."""
    band, single = curve.band(name), {"marker": style["marker"] or "o", "markersize": 6}
    for steps, values in curve.each(name):
        faint = {"linewidth": 0.8, "alpha": 0.35} if band else {"linewidth": 1.6, "label": label}
        dot = single if len(steps) == 1 else {"markersize": 3.5}
        axes.plot(steps, values, **{**style, **faint, **dot})
        label = "" if band is None else label
    if band is not None:
        axes.fill_between(band.env_steps, band.low, band.high, color=style["color"], alpha=0.18, linewidth=0)
        strong = style | (single if len(band.env_steps) == 1 else {"marker": ""})
        axes.plot(band.env_steps, band.middle, **strong, linewidth=2.0, label=label)


def _over_env_steps(axes: Axes, name: str) -> None:
    if not axes.lines:
        return _draw_message(axes, f"no run has {name} yet")
    axes.set_xlabel("env steps")
    axes.xaxis.set_major_formatter(lambda value, _: in_short(value))
    if max(abs(limit) for limit in axes.get_ylim()) >= 10_000:
        axes.yaxis.set_major_formatter(lambda value, _: in_short(value))
    _legend(axes)
    return None


def _time_split(axes: Axes, curves: Sequence[Curve]) -> None:
    """Draw a bar for each curve."""
    splits = [(curve, split) for curve in curves if (split := curve.time_split())]
    if not splits:
        return _draw_message(axes, "no run has metrics yet")
    left: Array = np.zeros(len(splits))
    rows, height = np.arange(len(splits)), 0.6 if len(splits) <= MAX_INSIDE else 0.4  # leaves space for labels
    for part in PARTS:
        width = np.array([split[part] for _, split in splits])
        axes.barh(rows, width, left=left, color=PART_COLORS[part], label=part, height=height)
        for row, (start, share) in enumerate(zip(left, width)):
            if share >= 0.06:
                axes.text(start + share / 2, row, percent(share), ha="center", va="center", fontsize=9, color="white")
        left = left + width
    for row, (curve, _) in enumerate(splits):
        axes.text(0, row - height / 2 - 0.04, _label(curve), ha="left", va="bottom", fontsize=9)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.set_ylim(len(splits) - 0.4, -0.9)
    axes.set_xlim(0, 1)
    axes.xaxis.set_major_formatter(lambda value, _: percent(value))
    axes.legend(ncols=len(PARTS), loc="upper center", bbox_to_anchor=(0.5, -0.1), frameon=False, fontsize=9)
    return None


def _per_episode(axes: Axes, curves: Sequence[Curve]) -> None:
    """Draw a line for each episode of a task: the first dotted, the last solid, with different markers."""
    for number, curve in enumerate(curves):
        episodes = max(run.inner_episodes for run in curve.runs)
        for k in range(1, episodes + 1):
            dashes = "-" if k == episodes else ":" if k == 1 else "--"
            marker = "o" if k == episodes else "v" if k == 1 else "s"
            style = {"marker": marker, "color": COLORS[number % len(COLORS)], "linestyle": dashes}
            _line(axes, curve, f"{EVALUATED}/episode_{k}", f"{_label(curve)}: episode {k}", style)
    _over_env_steps(axes, f"{EVALUATED}/episode_1")
    axes.set_ylabel("return")


# -- trials of a search --------------------------------------------------------------------------------------------
def search_figure(trials: Sequence[Trial], space: Space) -> Figure:
    """Draw the returns of the trials, by trial and over each setting; pruned trials are crosses."""
    known = [trial for trial in trials if trial.returned is not None]
    whole, (first, *others) = _grid(1 + len(space.dimensions))
    _course(first, known)
    for axes, name in zip(others, space.dimensions):
        _setting(axes, name, known, space)
    return whole


def _course(axes: Axes, trials: Sequence[Trial]) -> None:
    prepare(axes, "Return of every trial, and the best so far")
    _points(axes, trials, [trial.number for trial in trials])
    complete = [trial for trial in trials if trial.state != "pruned" and trial.returned is not None]
    best = accumulate((trial.returned for trial in complete if trial.returned is not None), max)
    axes.step([trial.number for trial in complete], list(best), where="post", color=COLORS[2], label="best so far")
    axes.set_xlabel("trial")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.legend(fontsize=9, framealpha=0.8, edgecolor="none")


def _setting(axes: Axes, name: str, trials: Sequence[Trial], space: Space) -> None:
    from multiverse.cli.search import Range

    prepare(axes, name)
    dimension = space.dimensions[name]
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
    """Put labels at powers of ten; in short ranges at 2 and 5 as well, or at any round numbers."""
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
    for state, marker, color in (("complete", "o", COLORS[0]), ("pruned", "x", COLORS[1])):
        shown = [(place, trial.returned) for place, trial in zip(places, trials) if trial.state == state]
        if shown:
            axes.scatter(*zip(*shown), marker=marker, color=color, s=28, label=state, zorder=3)
    axes.set_ylabel("return")


# -- appearance ----------------------------------------------------------------------------------------------------
def prepare(axes: Axes, title: str) -> None:
    """Set a title and a grid, without a frame."""
    axes.set_title(_plain(textwrap.fill(title, LINE_LENGTH)), loc="left", fontsize=11)
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _legend(axes: Axes) -> None:
    """Put the legend inside the axes, or below them if there are many curves that it would hide."""
    _, labels = axes.get_legend_handles_labels()
    if len(labels) <= MAX_INSIDE:
        axes.legend(fontsize=9, framealpha=0.8, edgecolor="none")
    else:
        axes.legend(loc="upper left", bbox_to_anchor=(0.0, -0.15), frameon=False, fontsize=9)


def _lines_below(axes: Axes) -> int:
    """Return the number of text lines in a legend below the axes."""
    _, labels = axes.get_legend_handles_labels()
    return sum(label.count("\n") + 1 for label in labels) if len(labels) > MAX_INSIDE else 0


def _dashes(number: int) -> str:
    """Return the line style, which changes each time the colours repeat."""
    return DASHES[number // len(COLORS) % len(DASHES)]


def _draw_message(axes: Axes, message: str) -> None:
    axes.set_axis_off()
    axes.text(0.5, 0.5, message, ha="center", va="center", transform=axes.transAxes, color="#666666")


def _label(curve: Curve) -> str:
    """Return the label, wrapped; it is not shortened, since its end may distinguish it from others."""
    seeds = f" ({len(curve.runs)} seeds)" if len(curve.runs) > 1 else ""
    return _plain(textwrap.fill(f"{curve.label}{seeds}", LINE_LENGTH))


def _plain(text: str) -> str:
    """Escape $, which would start a formula."""
    return text.replace("$", r"\$")


def _have(curves: Sequence[Curve], name: str) -> bool:
    return any(run.last(name) is not None for curve in curves for run in curve.runs)


def in_short(value: float) -> str:
    """Return a number as '950', '20k' or '1.5M'."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"

"""`multiverse compare RUN RUN`: compare the settings and results of runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from multiverse.cli.options import RUNS_HELP, argument, option, parse
from multiverse.cli.output import ResultConsole, percent, print_json, table_of
from multiverse.core.errors import InvalidRequest

if TYPE_CHECKING:
    from multiverse.cli.curves import Curve

DESCRIPTION = """\
Compares runs: the settings that differ, the returns of the last and the best
evaluation, the speed, and how the time was spent. Runs that differ only in
their seed share a column, which shows the interquartile mean (IQM) of their
returns with its 95 % bootstrap interval.

examples:
  multiverse compare runs/CartPole-v1/ppo-0-… runs/CartPole-v1/dqn-0-…
  multiverse compare runs/CartPole-v1 --json"""


@dataclass(frozen=True)
class Compare:
    """Options of `multiverse compare`."""

    runs: tuple[str, ...] = argument("RUN", RUNS_HELP)
    json: bool = option(False, "Print one JSON object instead of a table.")


def run(arguments: Sequence[str]) -> int:
    options = parse(Compare, "compare", DESCRIPTION, arguments)
    from multiverse.cli.curves import curves_of, differing

    curves = curves_of(options.runs)
    if len(curves) < 2:
        same = f"all have the same settings ({curves[0].label})" if curves else "there are none"
        raise InvalidRequest(
            f"{', '.join(options.runs)}: expected runs with different settings, but {same}; name another run"
        )
    settings = differing([curve.runs[0] for curve in curves])
    if options.json:
        print_json({"runs": [_summary(curve) for curve in curves], "settings": settings})
    else:
        _print(curves, settings)
    return 0


def _summary(curve: Curve) -> dict[str, Any]:
    return {
        "label": curve.label,
        "paths": [str(run.path) for run in curve.runs],
        "seeds": [run.seed for run in curve.runs],
        "env_steps": [max(run.points("seconds")[0], default=0) for run in curve.runs],
        "last_returns": curve.final(),
        "best_returns": curve.best(),
        "env_steps_per_s": curve.env_steps_per_s(),
        "time_split": curve.time_split(),
    }


def _print(curves: Sequence[Curve], settings: dict[str, list[Any]]) -> None:
    """Print a table with a numbered column for each curve, below a list that explains the numbers."""
    from multiverse.cli.curves import in_figures
    from multiverse.training.config.budget import PARTS

    console, every = ResultConsole(), [_summary(curve) for curve in curves]
    for number, one in enumerate(every, start=1):
        more = f" and {len(one['paths']) - 1} more" if len(one["paths"]) > 1 else ""
        console.print(f"{number}: {one['label']} ({one['paths'][0]}{more})", markup=False, soft_wrap=True)
    table = table_of("", ("",), tuple(map(str, range(1, len(curves) + 1))))
    for name, values in settings.items():
        table.add_row(name, *("–" if value is None else str(value) for value in values))
    if settings:
        table.add_section()
    table.add_row("seeds", *(str(len(one["seeds"])) for one in every))
    table.add_row("env steps", *(f"{max(one['env_steps']):,}" for one in every))
    table.add_row("last evaluation", *(in_figures(one["last_returns"]) for one in every))
    table.add_row("best evaluation", *(in_figures(one["best_returns"]) for one in every))
    speeds = (one["env_steps_per_s"] for one in every)
    table.add_row("env steps/s", *("–" if speed is None else f"{speed:,.0f}" for speed in speeds))
    for part in PARTS:
        shares = [one["time_split"].get(part) for one in every]
        table.add_row(f"time: {part}", *("–" if share is None else percent(share) for share in shares))
    console.print(table)

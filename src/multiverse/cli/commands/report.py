"""`multiverse report RUN`: write a report of runs as one HTML file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from multiverse.cli.commands.plot import write, written_files
from multiverse.cli.options import OUT_HELP, RUNS_HELP, argument, option, parse

DESCRIPTION = """\
Writes a self-contained HTML file with results, curves, the last recorded
video, failures, settings and provenance (versions, machine, commit, command
line). A directory of several runs gives one report of all of them; runs that
differ only in their seed become one curve. Needs the extra `plot`.

examples:
  multiverse report runs/CartPole-v1/ppo-0-20260101-120000
  multiverse report runs/CartPole-v1 --out cartpole.html"""


@dataclass(frozen=True)
class Report:
    """Options of `multiverse report`."""

    runs: tuple[str, ...] = argument("RUN", RUNS_HELP)
    out: str | None = option(None, f"An .html file, or a folder. {OUT_HELP}", metavar="FILE|FOLDER")


def run(arguments: Sequence[str]) -> int:
    options = parse(Report, "report", DESCRIPTION, arguments)
    from multiverse.cli.curves import curves_of
    from multiverse.cli.figures import panels_of
    from multiverse.cli.page import report_page

    (file,) = written_files(options.runs, options.out, "report", ("html",))
    curves = curves_of(options.runs)
    write(file, report_page(curves, panels_of(curves)))
    return 0

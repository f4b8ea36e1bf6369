"""`multiverse report RUN`: write a report of a run in one file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import tyro

from multiverse.cli.commands.plot import write, written_files
from multiverse.cli.main import parse

DESCRIPTION = """\
Writes one self-contained HTML file: results, curves, the last recorded video,
failures, settings, and the environment (versions, machine, commit, command
line). A directory of several runs gives one report of all of them, in which
runs that differ only in their seed are one curve. Needs the extra `plot`.

examples:
  multiverse report runs/CartPole-v1/ppo-0-20260101-120000
  multiverse report runs/CartPole-v1 --out cartpole.html"""


@dataclass(frozen=True)
class Report:
    """Options of `multiverse report`."""

    runs: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="RUN")]
    """Directories of runs, or directories that contain runs."""
    out: Annotated[str | None, tyro.conf.arg(metavar="FILE|FOLDER")] = None
    """An .html file, or a folder for report.html. Default: RUN or, for several, here."""


def run(arguments: Sequence[str]) -> int:
    options = parse(Report, "report", DESCRIPTION, arguments)
    from multiverse.cli.curves import curves_of
    from multiverse.cli.figures import panels_of
    from multiverse.cli.page import report_page

    (file,) = written_files(options.runs, options.out, "report", ("html",))
    curves = curves_of(options.runs)
    write(file, report_page(curves, panels_of(curves)))
    return 0

"""`multiverse plot RUN…`: plot figures of runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from multiverse.cli.options import OUT_HELP, RUNS_HELP, argument, option, parse
from multiverse.core.errors import InvalidRequest

DESCRIPTION = """\
Plots learning curves, evaluations, speed and the time split, as a PNG file and
as a self-contained HTML page. Runs that differ only in their seed become one
line, the interquartile mean, with the 95 % bootstrap interval as a band.
Needs the extra `plot`.

examples:
  multiverse plot runs/CartPole-v1
  multiverse plot runs/a runs/b --metrics entropy kl --out pictures/
  multiverse plot runs/CartPole-v1 --out curves.svg"""

KINDS = ("png", "svg", "pdf", "html")


@dataclass(frozen=True)
class Plot:
    """Options of `multiverse plot`."""

    runs: tuple[str, ...] = argument("RUN", RUNS_HELP)
    metrics: tuple[str, ...] = option((), "Further metrics to plot, by their names in metrics.jsonl.", metavar="METRIC")
    out: str | None = option(None, f"A .png, .svg, .pdf or .html file, or a folder. {OUT_HELP}", metavar="FILE|FOLDER")


def run(arguments: Sequence[str]) -> int:
    options = parse(Plot, "plot", DESCRIPTION, arguments)
    from multiverse.cli.curves import curves_of, require_metrics
    from multiverse.cli.figures import drawn, figure, panels_of
    from multiverse.cli.page import plot_page

    files = written_files(options.runs, options.out, "plot", ("png", "html"))
    curves = curves_of(options.runs)
    require_metrics(curves, *options.metrics)
    panels = panels_of(curves, options.metrics)
    for file in files:
        kind = file.suffix[1:]
        write(file, plot_page(curves, panels) if kind == "html" else drawn(figure(panels, curves), kind))
    return 0


def written_files(runs: Sequence[str], out: str | None, name: str, kinds: Sequence[str]) -> list[Path]:
    """Return the files to write: the file `out`, or one of each kind in a folder."""
    path = Path(out) if out is not None else Path(runs[0] if len(runs) == 1 else ".")
    if out is None or path.is_dir() or out.endswith("/"):
        return [path / f"{name}.{kind}" for kind in kinds]
    known = KINDS if name == "plot" else kinds
    if path.suffix[1:] not in known:
        raise InvalidRequest(f"--out {out}: expected a folder, or a file that ends in {', '.join(known)}")
    return [path]


def write(file: Path, content: bytes, stream: TextIO | None = None) -> None:
    """Write a file completely or not at all, and print its path on standard output or on `stream`."""
    from multiverse.training.runs.files import replace_file

    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        replace_file(file, content)
    except OSError as error:
        raise InvalidRequest(f"{file} cannot be written: {error.strerror or error}") from error
    print(file, file=stream)

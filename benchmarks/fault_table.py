"""Comparison of how libraries handle the same faults, measured in one run.

    python benchmarks/fault_table.py                              every fault, every library: about 15 minutes
    python benchmarks/fault_table.py --only hang raise_twice --contenders gymnasium multiverse_raise
    python benchmarks/fault_table.py --markdown > docs/fault_comparison.md

Each cell is a separate program in which the fault happens. It is watched, judged by the scenario's rule, and killed
with everything it started. All results are measured.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.faults.cell import BROKEN, Cell, run_cell
from benchmarks.faults.contenders import CONTENDERS, TITLES
from benchmarks.faults.scenarios import SCENARIOS
from benchmarks.faults.table import as_json, as_markdown, cell_text, is_handled_well
from benchmarks.provenance import provenance, write_results

LIMIT_S = 8.0


def measure(scenarios: Sequence[str], contenders: Sequence[str], limit_s: float) -> list[Cell]:
    """Measure all cells one after another; print each to stderr."""
    cells = []
    for scenario in scenarios:
        for contender in contenders:
            cell = run_cell(scenario, contender, limit_s)
            cells.append(cell)
            print(f"{scenario:24s}{contender:20s}{cell_text(cell)}", file=sys.stderr, flush=True)
    return cells


def summary(cells: Sequence[Cell]) -> list[str]:
    """Return one line per library."""
    lines = []
    for contender in dict.fromkeys(cell.contender for cell in cells):
        own = [cell for cell in cells if cell.contender == contender]
        lines.append(f"{TITLES[contender]:44s}{sum(map(is_handled_well, own)):3d} of {len(own)} taken well")
    return lines


def command_line(options: argparse.Namespace) -> str:
    """Return the command that reproduces this run."""
    only = [] if options.only == list(SCENARIOS) else ["--only", *options.only]
    contenders = [] if options.contenders == list(CONTENDERS) else ["--contenders", *options.contenders]
    limit = [] if options.limit_s == LIMIT_S else ["--limit-s", f"{options.limit_s:g}"]
    return " ".join(["python benchmarks/fault_table.py --markdown", *only, *contenders, *limit])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=SCENARIOS, default=list(SCENARIOS), metavar="NAME")
    parser.add_argument("--contenders", nargs="+", choices=CONTENDERS, default=list(CONTENDERS))
    parser.add_argument("--limit-s", type=float, default=LIMIT_S, help="seconds without output that count as a hang")
    parser.add_argument("--json", type=Path, help="also write all cells to this file")
    parser.add_argument("--markdown", action="store_true", help="print the page docs/fault_comparison.md")
    options = parser.parse_args()
    origin = provenance()
    cells = measure(options.only, options.contenders, options.limit_s)
    print(as_markdown(cells, options.limit_s, command_line(options)) if options.markdown else "\n".join(summary(cells)))
    if options.json:
        write_results(options.json, origin, as_json(cells, options.limit_s))
    if any(cell.verdict.outcome == BROKEN for cell in cells):
        sys.exit("some cells could not be measured")


if __name__ == "__main__":
    main()

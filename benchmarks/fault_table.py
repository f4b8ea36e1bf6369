"""What the libraries make of the same faults, measured in one run.

    python benchmarks/fault_table.py                              every fault, every library: some 15 minutes
    python benchmarks/fault_table.py --only hang raise_twice --contenders gymnasium multiverse_raise
    python benchmarks/fault_table.py --markdown > docs/fault_comparison.md

Each cell is a program of its own that meets the fault, is watched, judged by the rule written beside the scenario, and
taken away with everything it started. Nothing here is quoted from anywhere.
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
from benchmarks.faults.table import as_json, as_markdown, cell_text, taken_well
from benchmarks.provenance import provenance, write_results

LIMIT_S = 8.0


def measure(scenarios: Sequence[str], contenders: Sequence[str], limit_s: float) -> list[Cell]:
    """Every cell, one after the other; each is told on stderr as it comes."""
    cells = []
    for scenario in scenarios:
        for contender in contenders:
            cell = run_cell(scenario, contender, limit_s)
            cells.append(cell)
            print(f"{scenario:24s}{contender:20s}{cell_text(cell)}", file=sys.stderr, flush=True)
    return cells


def summary(cells: Sequence[Cell]) -> list[str]:
    """A line per library."""
    lines = []
    for contender in dict.fromkeys(cell.contender for cell in cells):
        own = [cell for cell in cells if cell.contender == contender]
        lines.append(f"{TITLES[contender]:44s}{sum(map(taken_well, own)):3d} of {len(own)} taken well")
    return lines


def command_line(asked: argparse.Namespace) -> str:
    """What was run, as a reader can run it again."""
    only = [] if asked.only == list(SCENARIOS) else ["--only", *asked.only]
    contenders = [] if asked.contenders == list(CONTENDERS) else ["--contenders", *asked.contenders]
    limit = [] if asked.limit_s == LIMIT_S else ["--limit-s", f"{asked.limit_s:g}"]
    return " ".join(["python benchmarks/fault_table.py --markdown", *only, *contenders, *limit])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=SCENARIOS, default=list(SCENARIOS), metavar="NAME")
    parser.add_argument("--contenders", nargs="+", choices=CONTENDERS, default=list(CONTENDERS))
    parser.add_argument("--limit-s", type=float, default=LIMIT_S, help="without a sign for so long: a hang")
    parser.add_argument("--json", type=Path, help="write every cell here too")
    parser.add_argument("--markdown", action="store_true", help="print the page that docs/fault_comparison.md holds")
    asked = parser.parse_args()
    origin = provenance()
    cells = measure(asked.only, asked.contenders, asked.limit_s)
    print(as_markdown(cells, asked.limit_s, command_line(asked)) if asked.markdown else "\n".join(summary(cells)))
    if asked.json:
        write_results(asked.json, origin, as_json(cells, asked.limit_s))
    if any(cell.verdict.outcome == BROKEN for cell in cells):
        sys.exit("some cells could not be measured")


if __name__ == "__main__":
    main()

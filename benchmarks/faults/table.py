"""The table: cells as text, as JSON, and as the page docs/fault_comparison.md."""

from __future__ import annotations

import platform
import time
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version
from typing import Any

from benchmarks.faults.cell import Cell
from benchmarks.faults.contenders import TIMEOUT_S, TITLES
from benchmarks.faults.judge import GOOD, HANG, MEANING
from benchmarks.faults.scenarios import SCENARIOS
from multiverse.executors.machine import usable_cores

INTRO = """# Fault comparison

```bash
{command}
```
This command prints the whole page. All results are measured; none is quoted.

The program has three envs in three worker processes, and at a known step a fault happens to the middle one. The same
program runs with every library, at its default settings or, where it helps, with the options that its documentation
offers: Gymnasium's `step_wait(timeout=…)` and `close(terminate=True)` have a separate column. Where a timeout can be
set it is {timeout:g} s (by default, multiverse's is 60 s and the others wait forever). A call without a result for
{limit:g} s is a hang. Every cell is a separate process.
"""

DECIDED = """## Outcomes
Each row has one rule, in `benchmarks/faults/scenarios.py`, which is the same for all libraries:
"""

TIMES = """Times are from the fault to the outcome; for a failing constructor, from the start of the workers.
*Taken well* means a good outcome (right error, continues, right data, clean end), a `close()` that neither raises nor
hangs, and no process left 1 s after the program's end."""

RULES = """## Rules
Regular expressions are matched case-insensitively against the type and text of the exception, its notes and its causes.
"""


def machine() -> dict[str, str]:
    """Return the date, machine and versions of the measurement."""
    packages = {name: version(name) for name in ("gymnasium", "stable_baselines3", "multiverse")}
    return {
        "date": time.strftime("%Y-%m-%d"),
        "machine": f"{usable_cores()} cores, {platform.system()}, Python {platform.python_version()}",
        **packages,
    }


def is_handled_well(cell: Cell) -> bool:
    """Return whether the cell has a good outcome, a normal `close`, and no remaining processes."""
    return cell.verdict.outcome in GOOD and not cell.close and not cell.left


def cell_text(cell: Cell) -> str:
    """Return a cell such as 'wrong error: EOFError (3 ms); close hangs'."""
    verdict = cell.verdict
    text = f"{verdict.outcome}: {verdict.note}" if verdict.note else verdict.outcome
    if verdict.seconds is not None:
        text += f" ({_duration(verdict.seconds)})"
    more = [cell.close] if cell.close and verdict.outcome != HANG else []
    if cell.left and "left" not in verdict.note:
        more.append(f"{len(cell.left)} left")
    return "; ".join([text, *more])


def _duration(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 0.9995 else f"{max(1, round(seconds * 1000))} ms"


def as_json(cells: Sequence[Cell], limit_s: float) -> dict[str, Any]:
    """Return all cells for a results file."""
    return {"limit_s": limit_s, "timeout_s": TIMEOUT_S, "cells": [asdict(cell) for cell in cells]}


def as_markdown(cells: Sequence[Cell], limit_s: float, command: str) -> str:
    """Return the whole page."""
    contenders = list(dict.fromkeys(cell.contender for cell in cells))
    scenarios = list(dict.fromkeys(cell.scenario for cell in cells))
    facts = machine()
    names = f"Gymnasium {facts['gymnasium']}, Stable-Baselines3 {facts['stable_baselines3']}"
    meaning = [f"- **{outcome}**: {text}" for outcome, text in MEANING.items()]
    rules = [f"- `{name}`: {SCENARIOS[name].rule}" for name in scenarios]
    return "\n".join(
        [
            INTRO.format(timeout=TIMEOUT_S, limit=limit_s, command=command),
            f"{facts['date']}, {facts['machine']}; {names}, multiverse {facts['multiverse']}.\n",
            *_grid(cells, contenders, scenarios),
            "",
            DECIDED,
            *meaning,
            "",
            TIMES,
            "",
            RULES,
            *rules,
            "",
        ]
    )


def _grid(cells: Sequence[Cell], contenders: Sequence[str], scenarios: Sequence[str]) -> list[str]:
    by_key = {(cell.scenario, cell.contender): cell for cell in cells}
    lines = [
        "| fault | " + " | ".join(TITLES[name] for name in contenders) + " |",
        "|---" * (1 + len(contenders)) + "|",
    ]
    for scenario in scenarios:
        each = [cell_text(by_key[scenario, contender]) for contender in contenders]
        lines.append(f"| {SCENARIOS[scenario].title} (`{scenario}`) | " + " | ".join(each) + " |")
    well = [sum(is_handled_well(by_key[scenario, contender]) for scenario in scenarios) for contender in contenders]
    lines.append("| **taken well** | " + " | ".join(f"**{count} of {len(scenarios)}**" for count in well) + " |")
    return lines

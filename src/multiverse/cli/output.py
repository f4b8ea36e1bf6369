"""Output of commands: results on standard output, progress on standard error, JSON for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as RichProgress
from rich.table import Column, Table
from rich.text import Text

from multiverse.cli.main import results

PIPED_WIDTH = 120
"""Number of columns of output that is not a terminal."""

STYLES = {"ok": "green", "warning": "yellow", "blocking": "bold red", "failed": "bold red", "error": "bold red"}
STATUS_WIDTH = max(map(len, STYLES))


class ResultConsole(Console):
    """Console on standard output. `main`, not rich, handles a reader that has closed it."""

    def __init__(self) -> None:
        super().__init__(highlight=False, width=None if sys.stdout.isatty() else PIPED_WIDTH)

    def print_status(self, status: str, name: str, name_width: int, text: str) -> None:
        """Print one line of a list of checks; a long text is wrapped within its column."""
        line = Table.grid(Column(width=STATUS_WIDTH), Column(width=name_width), Column(), padding=(0, 2, 0, 0))
        line.add_row(Text(status, STYLES.get(status, "")), Text(name), Text(text))
        self.print(line)

    def on_broken_pipe(self) -> NoReturn:
        raise BrokenPipeError


def print_json(value: dict[str, Any]) -> None:
    print(json.dumps(value, indent=2, allow_nan=False), file=results())


class Progress:
    """Progress on standard error: a bar in a terminal, else a line for each step, or one for all steps after `begin`.

    The bar is drawn only when a step begins: a thread that redraws it would disturb measurements and would not survive
    a fork.
    """

    def __init__(self, total: int) -> None:
        self._done, self._total = -1, total
        self._announced = False
        self._bar: RichProgress | None = None
        if sys.stderr.isatty():
            columns = (BarColumn(20), MofNCompleteColumn(), TextColumn("{task.description}", markup=False))
            self._bar = RichProgress(*columns, console=Console(stderr=True), auto_refresh=False, transient=True)
            self._task = self._bar.add_task("", total=total)

    def begin(self, what: str) -> None:
        """Announce several steps with one line; the steps then print no lines."""
        self._announced = True
        if self._bar is None:
            print(what, file=sys.stderr, flush=True)

    def next(self, what: str, during: str = "") -> None:
        """Begin the next step; the previous one is done."""
        what = during + what
        self._done += 1
        if self._bar is None:
            if not self._announced:
                print(f"[{self._done + 1}/{self._total}] {what}", file=sys.stderr, flush=True)
        else:
            self._bar.update(self._task, completed=self._done, description=what, refresh=True)

    def __enter__(self) -> Progress:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._bar is not None:
            self._bar.stop()


def table_of(title: str, left: Sequence[str], right: Sequence[str]) -> Table:
    """Return an empty table with left-aligned columns of words and right-aligned columns of numbers."""
    table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, header_style="")
    for heading in left:
        table.add_column(heading, no_wrap=True, vertical="bottom")
    for heading in right:
        table.add_column(heading, justify="right", vertical="bottom")
    return table


BUSY_MACHINE = "Other programs are using this machine, so these figures are unreliable. Measure again when it is idle."


def percent(share: float) -> str:
    return f"{100 * share:.0f} %"

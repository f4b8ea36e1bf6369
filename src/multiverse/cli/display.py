"""The live display of a run in a terminal: progress, returns, speed, where the time goes, and the load of the machine;
and the sinks for commands elsewhere: lines, JSON, or nothing.

The display is redrawn between updates, at most four times a second, and less often (down to every two seconds) where
drawing would take more than 0.5 % of the time. There is no thread that would compete with the training.
"""

from __future__ import annotations

import json
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import psutil
from rich.console import Console
from rich.control import Control
from rich.live import Live
from rich.segment import ControlType
from rich.text import Text

from multiverse.cli.bottleneck import bottleneck
from multiverse.cli.main import one_line
from multiverse.cli.output import percent
from multiverse.cli.results import results
from multiverse.cli.worker_prints import printed_above
from multiverse.core.errors import InvalidRequest
from multiverse.core.imports import without_folders
from multiverse.core.wording import counted, in_bytes, in_digits
from multiverse.executors import machine
from multiverse.training import events
from multiverse.training.config.budget import PARTS
from multiverse.training.progress import (
    NO_EPISODE,
    InterruptWarning,
    LinePrinter,
    ProgressLines,
    ResumeCommand,
    run_with_sinks,
)
from multiverse.training.runs.files import for_json

if TYPE_CHECKING:
    from multiverse.training.run import Run

DRAW_EVERY_S, LARGEST_SHARE, LONGEST_S = 0.25, 0.005, 2.0
STRETCH_S = 2.0  # over which speed and shares are measured
LEAST_COLUMNS, LEAST_ROWS, MOST_COLUMNS = 80, 20, 160
LABEL_WIDTH = 9
BLOCKS = "▁▂▃▄▅▆▇█"
PART_FILLS = dict(zip(PARTS, "█▓▒░▞·"))
"""What fills the bar of a part where there are no colours."""
PART_STYLES = dict(zip(PARTS, ("bright_cyan", "blue", "yellow", "green", "magenta", "bright_black")))


def run_and_show(
    begin: Callable[..., Run],
    voice: LinePrinter,
    *,
    about: Sequence[str] = (),
    quiet: bool = False,
    as_json: bool = False,
    resume: ResumeCommand | None = None,
) -> None:
    """Begin a run (`begin(sinks=…)`) and show it to its end: as a display on a terminal that is large enough, as lines
    elsewhere, both with `about` above them; as JSON; or (`quiet`) only where it is, at its end."""
    refuse_both(quiet, as_json)
    with _sink_for(voice, about, quiet, as_json) as sink:
        run = run_with_sinks(begin, [sink], resume)
    if quiet:
        print(run.path, file=results())


@contextmanager
def _sink_for(voice: LinePrinter, about: Sequence[str], quiet: bool, as_json: bool) -> Iterator[events.Sink]:
    console = Console(highlight=False)
    if quiet:
        yield InterruptWarning()
    elif as_json:
        yield JsonLines(voice)
    elif console.is_terminal and not console.is_dumb_terminal and _fits(console):
        display = Display(voice, console, about)
        with printed_above(console, display.drawing) as display.let_workers_print:
            yield display
    else:
        yield ProgressLines(voice, about)


def refuse_both(quiet: bool, as_json: bool) -> None:
    if quiet and as_json:
        raise InvalidRequest("--quiet and --json cannot be used together")


def _fits(console: Console) -> bool:
    return console.size.width >= LEAST_COLUMNS and console.size.height >= LEAST_ROWS


class JsonLines(ProgressLines):
    """An object a line, each with its `event`: start, metrics (as often as lines are), num_envs (a decision of
    `--num-envs auto`), evaluation, and at last end, interrupted or error; `of`: what else is in each of them."""

    def __init__(self, voice: LinePrinter, **of: Any) -> None:
        super().__init__(voice)
        self._of = of
        self._metrics: events.Metrics = {}  # those that were logged last

    def handle(self, event: events.Event) -> None:
        """`saved` of an interrupted run: whether all of it is; `saved_env_steps`: where it resumes, null if nowhere."""
        match event:
            case events.UpdateDone():
                self._update(event.status)
            case events.MetricsLogged():
                self._metrics = event.metrics
            case events.RunStarted():
                clock, plan = event.status.clock, str(event.status.plan)
                self._say("start", env_steps=clock.env_steps, run=str(event.path), plan=plan)
                self._begin(clock)
            case events.NumEnvsDecided():
                self._say("num_envs", **asdict(event.decision))
            case events.EvaluationDone():
                self._say("evaluation", env_steps=event.env_steps, **event.summary)
            case events.RunInterrupted():
                saved = event.saved_env_steps
                self._say("interrupted", **_at(event), saved=saved == event.env_steps, saved_env_steps=saved)
            case events.RunFailed():
                self._say("error", **_at(event), error=one_line(event.error))
            case events.RunEnded():
                self._say("end", run=str(event.path), **event.summary)

    def _line(self, status: events.RunStatus) -> str:
        return json_line({"event": "metrics", **self._of, "env_steps": status.clock.env_steps, **self._metrics})

    def _say(self, event: str, **fields: Any) -> None:
        self.voice.say(json_line({"event": event, **self._of, **fields}))


def _at(event: events.RunInterrupted | events.RunFailed) -> dict[str, Any]:
    return {"env_steps": event.env_steps, "run": None if event.path is None else str(event.path)}


def json_line(row: Mapping[str, Any]) -> str:
    """In one line."""
    return json.dumps(for_json(row), allow_nan=False)


class Display(ProgressLines):
    """Redrawn in one place; evaluations, decisions of `--num-envs auto` and warnings scroll by above it. `close`
    restores the terminal."""

    def __init__(
        self, voice: LinePrinter, console: Console, about: Sequence[str] = (), now: Any = time.monotonic
    ) -> None:
        super().__init__(voice, about, now=now)
        # What this process and its workers print meanwhile goes above the display; printing and drawing hold the lock.
        self.console, self.drawing = console, threading.RLock()
        self.let_workers_print: Callable[[], Any] = lambda: None
        self._live = Live(console=console, auto_refresh=False, transient=True, vertical_overflow="crop")
        self._machine = Machine()
        self._returns: list[float] = []
        self._best = float("-inf")  # return of an evaluation
        self._drawn, self._columns = Text(), console.width  # what was drawn last, and the terminal's width then
        self._next_at = 0.0
        self._speed, self._shares, self._measured = 0.0, dict.fromkeys(PARTS, 0.0), 0

    def handle(self, event: events.Event) -> None:
        if isinstance(event, events.RunInterrupted | events.RunFailed | events.RunEnded):
            self.close()
        super().handle(event)

    def _start(self, event: events.RunStarted) -> None:
        super()._start(event)
        self._best = event.best_return
        with self.drawing:
            self._live.start()

    def _update(self, status: events.RunStatus) -> None:
        if len(status.recent):
            self._returns.append(status.recent.mean_return)
        if self._now() >= self._next_at:
            self._draw(status)

    def _evaluation(self, event: events.EvaluationDone) -> None:
        super()._evaluation(event)
        self._best = max(self._best, event.summary["mean_return"])
        self._next_at = 0.0  # an evaluation takes time: what is shown is old

    def close(self) -> None:
        """Remove the display and show the cursor again. May be called twice."""
        with self.drawing:
            if self._live.is_started:
                self._wipe_broken_lines()
            self._live.stop()
        self.let_workers_print()  # before the last lines of the run

    def _draw(self, status: events.RunStatus) -> None:
        began_at = self._now()
        self._measure(status)
        try:
            picture = self.picture(status)
            with self.drawing:
                self._wipe_broken_lines()
                self._drawn = picture
                self._live.update(picture, refresh=True)
        except (OSError, ValueError):  # the terminal is gone
            self._next_at = float("inf")
            return
        took_s = self._now() - began_at
        self._next_at = began_at + max(DRAW_EVERY_S, min(took_s / LARGEST_SHARE, LONGEST_S))

    def _wipe_broken_lines(self) -> None:
        """Erase the extra rows of lines that a narrower terminal has broken: rich counts them as it drew them."""
        console, before = self._live.console, self._columns
        self._columns = columns = console.width
        if columns < before:
            broken = sum(max(line.cell_len - 1, 0) // columns for line in self._drawn.split("\n"))
            console.control(Control(*((ControlType.CURSOR_UP, 1), (ControlType.ERASE_IN_LINE, 2)) * broken))

    def _measure(self, status: events.RunStatus) -> None:
        """Measure speed and shares over some seconds, because single updates differ."""
        clock, before = status.clock, self._stretch
        if clock.seconds - before.seconds >= STRETCH_S or not self._speed:
            if clock.seconds > before.seconds:
                self._speed = (clock.env_steps - before.env_steps) / (clock.seconds - before.seconds)
                self._shares = clock.shares_since(before)
                self._measured += 1
            self._begin_stretch(clock)

    # -- what it looks like --------------------------------------------------------------------------------------
    def picture(self, status: events.RunStatus) -> Text:
        """What is drawn, as one text: tables and frames would take rich ten times as long. The last line is empty, for
        what the terminal itself writes (^C)."""
        config = status.config
        width = min(self._live.console.width, MOST_COLUMNS) - 1
        rows = [
            ("speed", self._pace(status)),
            ("return", self._return(status)),
            ("", Text(sparkline(self._returns, width - LABEL_WIDTH), "cyan")),
        ]
        if any(self._shares.values()):
            console = self._live.console
            fills = PART_FILLS if console.no_color or console.color_system is None else {}
            rows += [("time", time_bar(self._shares, width - LABEL_WIDTH, fills)), ("", legend(self._shares, fills))]
        if self._measured > 1:  # the first update, after a resume above all, is like no other
            cores, torch_on_cpu = machine.usable_cores(), status.learns_on_cpu_with_torch
            sentence = bottleneck(self._shares, status.plan, config, cores, torch_on_cpu)
            rows += [("", Text(line, "italic")) for line in textwrap.wrap(sentence, width - LABEL_WIDTH)]
        rows += self._machine.look(status.worker_pids).items()
        drawn = Text(no_wrap=True, overflow="crop")
        title = f"── {without_folders(config.algorithm)} on {without_folders(config.env)}, seed {config.seed} "
        drawn.append(f"{title[:width]:─<{width}}\n", "dim").append_text(self._budget(status, width)).append("\n")
        for name, text in rows:
            drawn.append(f"{name:<{LABEL_WIDTH}}", "dim").append_text(text).append("\n")
        return drawn

    def _budget(self, status: events.RunStatus, width: int) -> Text:
        budget, clock = status.config.budget, status.clock
        spent = budget.spent(clock)
        figures = f" {percent(spent)}  {clock.env_steps:,} env steps  {self._left(status)}"
        room = width - len(figures)
        done = round(room * spent)
        return Text.assemble(("━" * done, "green"), ("─" * (room - done), "bright_black"), figures)

    def _pace(self, status: events.RunStatus) -> Text:
        clock, restarts = status.clock, status.restarts
        text = Text.assemble((f"{self._speed:,.0f}", "bold"), " env steps/s")
        text.append(f"   {counted(clock.updates, 'update')}   {counted(clock.episodes, 'episode')}   ")
        return text.append(counted(restarts, "restart"), "bold red" if restarts else "")

    def _return(self, status: events.RunStatus) -> Text:
        recent, best = status.recent, self._best
        if not len(recent):
            return Text(NO_EPISODE)
        text = Text.assemble((in_digits(recent.mean_return), "bold"), f"   length {recent.mean_length:.0f}")
        return text.append(f"   best evaluation {in_digits(best)}" if best > float("-inf") else "")


def sparkline(values: Sequence[float], width: int) -> str:
    """All values in at most `width` blocks, scaled from the lowest to the highest."""
    if len(values) < 2:
        return ""
    count = min(width, len(values))
    edges = [round(i * len(values) / count) for i in range(count + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    low, high = min(means), max(means)
    return "".join(BLOCKS[int((one - low) / (high - low or 1.0) * (len(BLOCKS) - 1))] for one in means)


def time_bar(shares: Mapping[str, float], width: int, fills: Mapping[str, str] = {}) -> Text:
    """One line with a segment for each part, in its colour or filled with its character."""
    bar, done, drawn = Text(), 0.0, 0
    for part, share in shares.items():
        done += share
        until = max(drawn, min(width, round(done * width)))
        bar.append(fills.get(part, "█") * (until - drawn), PART_STYLES[part])
        drawn = until
    return bar


def legend(shares: Mapping[str, float], fills: Mapping[str, str] = {}) -> Text:
    """Names and shares of the parts; fits beside its label in 80 columns."""
    return Text(" ").join(
        Text.assemble((fills.get(part, "■"), PART_STYLES[part]), f"{part} {percent(shares[part])}") for part in shares
    )


class Machine:
    """Load of the cores, memory and GPU since the last look."""

    def __init__(self) -> None:
        self._usable = sorted(psutil.Process().cpu_affinity()) if hasattr(psutil.Process, "cpu_affinity") else []
        psutil.cpu_percent(percpu=True)  # from now on
        self._processes: dict[int, psutil.Process] = {}

    def look(self, worker_pids: tuple[int, ...]) -> dict[str, Text]:
        return {"cores": self._cores(), "memory": self._memory(worker_pids), **self._gpu()}

    def _cores(self) -> Text:
        """A block for each core, with its load in percent where there are few."""
        every = psutil.cpu_percent(percpu=True)
        busy = [every[i] for i in self._usable if i < len(every)] or every
        blocks = [BLOCKS[min(7, int(one / 12.5))] for one in busy]
        if len(busy) <= 6:
            return Text("  ").join(Text.assemble((b, "blue"), f" {one:.0f} %") for b, one in zip(blocks, busy))
        return Text.assemble(("".join(blocks), "blue"), f"  {sum(busy) / len(busy):.0f} % of {len(busy)}")

    def _memory(self, worker_pids: tuple[int, ...]) -> Text:
        pids = (psutil.Process().pid, *worker_pids)
        self._processes = {
            pid: self._processes.get(pid) or psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)
        }
        held = 0
        for process in self._processes.values():
            try:
                held += process.memory_info().rss
            except psutil.Error:  # it has just gone
                pass
        workers = f" with {counted(len(worker_pids), 'worker')}" if worker_pids else ""
        return Text(f"{in_bytes(held)}{workers}, {in_bytes(machine.memory_available())} free")

    def _gpu(self) -> dict[str, Text]:
        """Where torch is loaded and uses one."""
        cuda = getattr(sys.modules.get("torch"), "cuda", None)
        if cuda is None or not cuda.is_initialized():
            return {}
        free, whole = cuda.mem_get_info()
        return {"GPU": Text(f"{cuda.get_device_name()}: {in_bytes(whole - free)} of {in_bytes(whole)} used")}

"""A run as a terminal shows it, drawn over and over in one place: how far, how well, how fast, where the time goes, and
what the machine does; and who follows a run elsewhere: lines, JSON, or nothing.

Drawn between updates, at most four times a second and, where that would take over a two-hundredth of the time, less
often, down to every two seconds: no thread takes its share from the training.
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
from multiverse.core.errors import InvalidRequest, counted, in_bytes, in_digits
from multiverse.core.imports import without_folders
from multiverse.executors import machine
from multiverse.training.config.budget import PARTS
from multiverse.training.progress import LinePrinter, Progress, ProgressLines
from multiverse.training.runs.checkpoint import saved_steps
from multiverse.training.runs.files import for_json
from multiverse.training.runs.find_runs import CHECKPOINTS

if TYPE_CHECKING:
    from multiverse.algorithms.algorithm import UpdateReport
    from multiverse.training.evaluation import Evaluation
    from multiverse.training.run import Run
    from multiverse.training.scaling import Decision
    from multiverse.training.trainer import Trainer

DRAW_EVERY_S, LARGEST_SHARE, LONGEST_S = 0.25, 0.005, 2.0
STRETCH_S = 2.0  # that speed and shares are told of
LEAST_COLUMNS, LEAST_ROWS, MOST_COLUMNS = 80, 20, 160
LABEL_WIDTH = 9
BLOCKS = "▁▂▃▄▅▆▇█"
PART_FILLS = dict(zip(PARTS, "█▓▒░▞·"))
"""Where there are no colours."""
PART_STYLES = dict(zip(PARTS, ("bright_cyan", "blue", "yellow", "green", "magenta", "bright_black")))


@contextmanager
def progress_for(
    voice: LinePrinter, first: Sequence[str] = (), quiet: bool = False, as_json: bool = False
) -> Iterator[Progress]:
    """Who follows a run for the command line: a display on a terminal that is large enough, lines elsewhere, both with
    `first` above them. However the run ends, the terminal is as it was."""
    progress = _chosen(voice, first, quiet, as_json)
    if not isinstance(progress, Display):
        yield progress
        return
    with printed_above(progress.console, progress.drawing) as progress.let_workers_print:
        try:
            yield progress
        finally:
            progress.close()


def _chosen(voice: LinePrinter, first: Sequence[str], quiet: bool, as_json: bool) -> Progress:
    refuse_both(quiet, as_json)
    if quiet:
        return RunPath()
    if as_json:
        return JsonLines(voice)
    console = Console(highlight=False)
    if console.is_terminal and not console.is_dumb_terminal and _fits(console):
        return Display(voice, console, first)
    return ProgressLines(voice, first=first)


def refuse_both(quiet: bool, as_json: bool) -> None:
    if quiet and as_json:
        raise InvalidRequest("--quiet, or --json?")


def _fits(console: Console) -> bool:
    return console.size.width >= LEAST_COLUMNS and console.size.height >= LEAST_ROWS


class RunPath(Progress):
    """Prints where the run lies when it is over, and nothing else."""

    def done(self, run: Run) -> None:
        print(run.path, file=results())


class JsonLines(ProgressLines):
    """An object a line, each with its `event`: start, metrics (as often as lines are), num_envs (a decision of
    `--num-envs auto`), evaluation, and at last end, interrupted or error; `of`: what else is in each of them."""

    def __init__(self, voice: LinePrinter, **of: Any) -> None:
        super().__init__(voice)
        self._of = of

    def on_start(self, trainer: Trainer) -> None:
        Progress.on_start(self, trainer)
        self._say("start", env_steps=self.env_steps, run=str(self.path), plan=str(trainer.session.envs.plan))
        self._begin(trainer.clock)

    def scaled(self, decision: Decision) -> None:
        self._say("num_envs", **asdict(decision))

    def on_evaluation(self, trainer: Trainer, evaluation: Evaluation) -> None:
        self._say("evaluation", env_steps=trainer.clock.env_steps, **evaluation.summary())

    def done(self, run: Run) -> None:
        self._say("end", run=str(run.path), **run.summary)

    def interrupted(self) -> None:
        """`saved`: whether all of it is; `saved_env_steps`: where it goes on, null if anew."""
        at = None if self.path is None else saved_steps(self.path / CHECKPOINTS)
        self._say("interrupted", **self._at(), saved=at == self.env_steps, saved_env_steps=at)

    def failed(self, error: Exception) -> None:
        self._say("error", **self._at(), error=one_line(error))

    def _at(self) -> dict[str, Any]:
        return {"env_steps": self.env_steps, "run": None if self.path is None else str(self.path)}

    def _line(self, trainer: Trainer) -> str:
        return json_line({"event": "metrics", **self._of, "env_steps": trainer.clock.env_steps, **trainer.metrics})

    def _say(self, event: str, **told: Any) -> None:
        self.voice.say(json_line({"event": event, **self._of, **told}))


def json_line(row: Mapping[str, Any]) -> str:
    """In one line."""
    return json.dumps(for_json(row), allow_nan=False)


class Display(ProgressLines):
    """What is worth keeping (evaluations, decisions of `--num-envs auto`, warnings) scrolls by above it. `close` leaves
    the terminal as it was."""

    def __init__(
        self, voice: LinePrinter, console: Console, first: Sequence[str] = (), now: Any = time.monotonic
    ) -> None:
        super().__init__(voice, first=first, now=now)
        # What this process and its workers print meanwhile goes above it.
        self.console, self.drawing = console, threading.RLock()  # who draws, or prints from another thread, holds it
        self.let_workers_print: Callable[[], Any] = lambda: None
        self._live = Live(console=console, auto_refresh=False, transient=True, vertical_overflow="crop")
        self._machine = Machine()
        self._returns: list[float] = []
        self._drawn, self._columns = Text(), console.width  # what stands there, drawn in a terminal so wide
        self._next_at = 0.0
        self._speed, self._shares, self._measured = 0.0, dict.fromkeys(PARTS, 0.0), 0

    def on_start(self, trainer: Trainer) -> None:
        super().on_start(trainer)
        with self.drawing:
            self._live.start()

    def on_update(self, trainer: Trainer, report: UpdateReport) -> None:
        Progress.on_update(self, trainer, report)
        if len(trainer.session.recent):
            self._returns.append(trainer.session.recent.mean_return)
        if self._now() >= self._next_at:
            self._draw(trainer)

    def on_evaluation(self, trainer: Trainer, evaluation: Evaluation) -> None:
        super().on_evaluation(trainer, evaluation)
        self._next_at = 0.0  # it took its time: what is shown is old

    def interrupted(self) -> None:
        self.close()
        super().interrupted()

    def done(self, run: Run) -> None:
        self.close()
        super().done(run)

    def close(self) -> None:
        """Nothing is left of it, and the cursor is there again. Twice does no harm."""
        with self.drawing:
            if self._live.is_started:
                self._wipe_broken_lines()
            self._live.stop()
        self.let_workers_print()  # before what is told in the end

    def _draw(self, trainer: Trainer) -> None:
        began_at = self._now()
        self._measure(trainer)
        try:
            picture = self.picture(trainer)
            with self.drawing:
                self._wipe_broken_lines()
                self._drawn = picture
                self._live.update(picture, refresh=True)
        except (OSError, ValueError):  # nobody looks any more
            self._next_at = float("inf")
            return
        took_s = self._now() - began_at
        self._next_at = began_at + max(DRAW_EVERY_S, min(took_s / LARGEST_SHARE, LONGEST_S))

    def _wipe_broken_lines(self) -> None:
        """A terminal that has become narrower has broken lines in two: rich, who counts them as it drew them, would
        leave as many behind."""
        console, before = self._live.console, self._columns
        self._columns = columns = console.width
        if columns < before:
            broken = sum(max(line.cell_len - 1, 0) // columns for line in self._drawn.split("\n"))
            console.control(Control(*((ControlType.CURSOR_UP, 1), (ControlType.ERASE_IN_LINE, 2)) * broken))

    def _measure(self, trainer: Trainer) -> None:
        """Speed and shares since the last time this was done, which is some seconds ago: single updates differ."""
        clock, before = trainer.clock, self._stretch
        if clock.seconds - before.seconds >= STRETCH_S or not self._speed:
            if clock.seconds > before.seconds:
                self._speed = (clock.env_steps - before.env_steps) / (clock.seconds - before.seconds)
                self._shares = clock.shares_since(before)
                self._measured += 1
            self._begin_stretch(clock)

    # -- what it looks like --------------------------------------------------------------------------------------
    def picture(self, trainer: Trainer) -> Text:
        """One text, line by line: tables and frames would take rich ten times as long. The last line is empty, for
        what the terminal itself writes (^C)."""
        config, session = trainer.config, trainer.session
        width = min(self._live.console.width, MOST_COLUMNS) - 1
        rows = [
            ("speed", self._pace(trainer)),
            ("return", self._return(trainer)),
            ("", Text(sparkline(self._returns, width - LABEL_WIDTH), "cyan")),
        ]
        if any(self._shares.values()):
            console = self._live.console
            fills = PART_FILLS if console.no_color or console.color_system is None else {}
            rows += [("time", time_bar(self._shares, width - LABEL_WIDTH, fills)), ("", legend(self._shares, fills))]
        if self._measured > 1:  # the first update, after a resume above all, is like no other
            in_torch = any(getattr(learner, "torch_device", None) == "cpu" for learner in session.learners)
            sentence = bottleneck(self._shares, session.envs.plan, config, machine.usable_cores(), in_torch)
            rows += [("", Text(line, "italic")) for line in textwrap.wrap(sentence, width - LABEL_WIDTH)]
        rows += self._machine.look(session.envs.worker_pids).items()
        drawn = Text(no_wrap=True, overflow="crop")
        title = f"── {without_folders(config.algorithm)} on {without_folders(config.env)}, seed {config.seed} "
        drawn.append(f"{title[:width]:─<{width}}\n", "dim").append_text(self._budget(trainer, width)).append("\n")
        for name, text in rows:
            drawn.append(f"{name:<{LABEL_WIDTH}}", "dim").append_text(text).append("\n")
        return drawn

    def _budget(self, trainer: Trainer, width: int) -> Text:
        budget, clock = trainer.config.budget, trainer.clock
        spent = budget.spent(clock)
        told = f" {percent(spent)}  {clock.env_steps:,} env steps  {self._left(trainer)}"
        room = width - len(told)
        done = round(room * spent)
        return Text.assemble(("━" * done, "green"), ("─" * (room - done), "bright_black"), told)

    def _pace(self, trainer: Trainer) -> Text:
        clock, failures = trainer.clock, trainer.session.failures
        restarts = failures.env_restarts + failures.worker_restarts
        told = Text.assemble((f"{self._speed:,.0f}", "bold"), " env steps/s")
        told.append(f"   {counted(clock.updates, 'update')}   {counted(clock.episodes, 'episode')}   ")
        return told.append(counted(restarts, "restart"), "bold red" if restarts else "")

    def _return(self, trainer: Trainer) -> Text:
        recent, best = trainer.session.recent, trainer.best_return
        if not len(recent):
            return Text("no episode has ended")
        told = Text.assemble((in_digits(recent.mean_return), "bold"), f"   length {recent.mean_length:.0f}")
        return told.append(f"   best evaluation {in_digits(best)}" if best > float("-inf") else "")


def sparkline(values: Sequence[float], width: int) -> str:
    """The whole course in at most so many characters, from the lowest to the highest."""
    if len(values) < 2:
        return ""
    count = min(width, len(values))
    edges = [round(i * len(values) / count) for i in range(count + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    low, high = min(means), max(means)
    return "".join(BLOCKS[int((one - low) / (high - low or 1.0) * (len(BLOCKS) - 1))] for one in means)


def time_bar(shares: Mapping[str, float], width: int, fills: Mapping[str, str] = {}) -> Text:
    """One line, a colour for each part, or what fills it."""
    bar, done, drawn = Text(), 0.0, 0
    for part, share in shares.items():
        done += share
        until = max(drawn, min(width, round(done * width)))
        bar.append(fills.get(part, "█") * (until - drawn), PART_STYLES[part])
        drawn = until
    return bar


def legend(shares: Mapping[str, float], fills: Mapping[str, str] = {}) -> Text:
    """Fits beside its label in 80 columns, whatever the shares are."""
    return Text(" ").join(
        Text.assemble((fills.get(part, "■"), PART_STYLES[part]), f"{part} {percent(shares[part])}") for part in shares
    )


class Machine:
    """What the cores, the memory and a GPU do, since the last look."""

    def __init__(self) -> None:
        self._usable = sorted(psutil.Process().cpu_affinity()) if hasattr(psutil.Process, "cpu_affinity") else []
        psutil.cpu_percent(percpu=True)  # from now on
        self._processes: dict[int, psutil.Process] = {}

    def look(self, worker_pids: tuple[int, ...]) -> dict[str, Text]:
        return {"cores": self._cores(), "memory": self._memory(worker_pids), **self._gpu()}

    def _cores(self) -> Text:
        """A block for each; of a few also the figure."""
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

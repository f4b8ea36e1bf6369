"""The live display of a run in a terminal: progress, returns, speed, time split, and load of the machine.

The display is redrawn between updates, at most four times a second, and less often (down to every two seconds) if
drawing takes more than 0.5 % of the time. No thread competes with the training.
"""

from __future__ import annotations

import os
import select
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from itertools import pairwise
from typing import Any

import psutil
from rich.console import Console
from rich.control import Control
from rich.live import Live
from rich.segment import ControlType
from rich.text import Text

from multiverse.cli.bottleneck import bottleneck
from multiverse.cli.output import percent
from multiverse.core.imports import display_name
from multiverse.core.wording import format_bytes, format_return, pluralize
from multiverse.executors import machine
from multiverse.executors.launch import output, start_methods
from multiverse.training import events
from multiverse.training.config.budget import PARTS
from multiverse.training.progress import NO_EPISODE, LinePrinter, ProgressLines

try:
    import fcntl
    import pty
    import termios
    import tty
except ImportError:  # Windows has no such terminals; workers print to the standard streams there
    pty = None  # type: ignore[assignment]

DRAW_EVERY_S, MAX_DRAWING_SHARE, MAX_DRAW_EVERY_S = 0.25, 0.005, 2.0
STRETCH_S = 2.0  # period over which speed and shares are measured
MIN_COLUMNS, MIN_ROWS, MAX_COLUMNS = 80, 20, 160
LABEL_WIDTH = 9
BLOCKS = "▁▂▃▄▅▆▇█"
PART_FILLS = dict(zip(PARTS, "█▓▒░▞·"))
"""Characters that fill the bar of each part in a terminal without colours."""
PART_STYLES = dict(zip(PARTS, ("bright_cyan", "blue", "yellow", "green", "magenta", "bright_black")))


@contextmanager
def live_display(printer: LinePrinter, about: Sequence[str]) -> Iterator[Display | None]:
    """Yield a display; None if standard output is not a terminal, or too small."""
    console = Console(highlight=False)
    large_enough = console.size.width >= MIN_COLUMNS and console.size.height >= MIN_ROWS
    if not console.is_terminal or console.is_dumb_terminal or not large_enough:
        yield None
        return
    display = Display(printer, console, about)
    with printed_above(console, display.drawing) as display.flush_workers:
        yield display


class Display(ProgressLines):
    """Progress that is redrawn in place; evaluations, decisions of `--num-envs auto` and warnings scroll by above it.
    `close` restores the terminal."""

    def __init__(
        self, printer: LinePrinter, console: Console, about: Sequence[str] = (), now: Any = time.monotonic
    ) -> None:
        super().__init__(printer, about, now=now)
        self.drawing = threading.RLock()  # held to draw, and to print output of workers above the display
        self.flush_workers: Callable[[], Any] = lambda: None
        self._live = Live(console=console, auto_refresh=False, transient=True, vertical_overflow="crop")
        self._machine = Machine()
        self._returns: list[float] = []
        self._best = float("-inf")  # best return of an evaluation
        self._drawn, self._columns = Text(), console.width  # the last drawing, and the width of the terminal then
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
        self._next_at = 0.0  # an evaluation takes time, so what is displayed is old

    def close(self) -> None:
        """Remove the display and show the cursor again. May be called twice."""
        with self.drawing:
            if self._live.is_started:
                self._wipe_broken_lines()
            self._live.stop()
        self.flush_workers()  # before the last lines of the run

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
        self._next_at = began_at + max(DRAW_EVERY_S, min(took_s / MAX_DRAWING_SHARE, MAX_DRAW_EVERY_S))

    def _wipe_broken_lines(self) -> None:
        """Erase the rows that lines take in addition after the terminal became narrower; rich does not count them."""
        console, before = self._live.console, self._columns
        self._columns = columns = console.width
        if columns < before:
            broken = sum(max(line.cell_len - 1, 0) // columns for line in self._drawn.split("\n"))
            console.control(Control(*((ControlType.CURSOR_UP, 1), (ControlType.ERASE_IN_LINE, 2)) * broken))

    def _measure(self, status: events.RunStatus) -> None:
        """Measure speed and shares over a period of seconds, because single updates vary."""
        clock, before = status.clock, self._stretch
        if clock.seconds - before.seconds >= STRETCH_S or not self._speed:
            if clock.seconds > before.seconds:
                self._speed = (clock.env_steps - before.env_steps) / (clock.seconds - before.seconds)
                self._shares = clock.shares_since(before)
                self._measured += 1
            self._begin_stretch(clock)

    # -- appearance ----------------------------------------------------------------------------------------------
    def picture(self, status: events.RunStatus) -> Text:
        """Return the drawing as one text, since tables and frames would take rich ten times as long. The last line is
        empty, for characters that the terminal itself writes (^C)."""
        config = status.config
        width = min(self._live.console.width, MAX_COLUMNS) - 1
        rows = [
            ("speed", self._pace(status)),
            ("return", self._return(status)),
            ("", Text(sparkline(self._returns, width - LABEL_WIDTH), "cyan")),
        ]
        if any(self._shares.values()):
            console = self._live.console
            fills = PART_FILLS if console.no_color or console.color_system is None else {}
            rows += [("time", time_bar(self._shares, width - LABEL_WIDTH, fills)), ("", legend(self._shares, fills))]
        if self._measured > 1:  # the first update is not typical, especially after a resume
            cores, torch_on_cpu = machine.usable_cores(), status.learns_on_cpu_with_torch
            sentence = bottleneck(self._shares, status.plan, config, cores, torch_on_cpu)
            rows += [("", Text(line, "italic")) for line in textwrap.wrap(sentence, width - LABEL_WIDTH)]
        rows += self._machine.measure(status.worker_pids).items()
        drawn = Text(no_wrap=True, overflow="crop")
        title = f"── {display_name(config.algorithm)} on {display_name(config.env)}, seed {config.seed} "
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
        text.append(f"   {pluralize(clock.updates, 'update')}   {pluralize(clock.episodes, 'episode')}   ")
        return text.append(pluralize(restarts, "restart"), "bold red" if restarts else "")

    def _return(self, status: events.RunStatus) -> Text:
        recent, best = status.recent, self._best
        if not len(recent):
            return Text(NO_EPISODE)
        text = Text.assemble((format_return(recent.mean_return), "bold"), f"   length {recent.mean_length:.0f}")
        return text.append(f"   best evaluation {format_return(best)}" if best > float("-inf") else "")


def sparkline(values: Sequence[float], width: int) -> str:
    """Draw all values with at most `width` blocks, scaled from the lowest to the highest value."""
    if len(values) < 2:
        return ""
    count = min(width, len(values))
    edges = [round(i * len(values) / count) for i in range(count + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    low, high = min(means), max(means)
    return "".join(BLOCKS[int((one - low) / (high - low or 1.0) * (len(BLOCKS) - 1))] for one in means)


def time_bar(shares: Mapping[str, float], width: int, fills: Mapping[str, str] = {}) -> Text:
    """Draw a line with a segment for each part, in its colour or filled with its character."""
    bar, done, drawn = Text(), 0.0, 0
    for part, share in shares.items():
        done += share
        until = max(drawn, min(width, round(done * width)))
        bar.append(fills.get(part, "█") * (until - drawn), PART_STYLES[part])
        drawn = until
    return bar


def legend(shares: Mapping[str, float], fills: Mapping[str, str] = {}) -> Text:
    """Return the names and shares of the parts, short enough for 80 columns with a label."""
    return Text(" ").join(
        Text.assemble((fills.get(part, "■"), PART_STYLES[part]), f"{part} {percent(shares[part])}") for part in shares
    )


class Machine:
    """Load of the cores, memory and GPU since the last measurement."""

    def __init__(self) -> None:
        self._usable = sorted(psutil.Process().cpu_affinity()) if hasattr(psutil.Process, "cpu_affinity") else []
        psutil.cpu_percent(percpu=True)  # starts the measurement
        self._processes: dict[int, psutil.Process] = {}

    def measure(self, worker_pids: tuple[int, ...]) -> dict[str, Text]:
        """Return the lines of the display, by their labels."""
        return {"cores": self._cores(), "memory": self._memory(worker_pids), **self._gpu()}

    def _cores(self) -> Text:
        """Return a block for each core; with the load in percent if there are few cores."""
        all_loads = psutil.cpu_percent(percpu=True)
        loads = [all_loads[core] for core in self._usable if core < len(all_loads)] or all_loads
        blocks = [BLOCKS[min(7, int(load / 12.5))] for load in loads]
        if len(loads) <= 6:
            return Text("  ").join(Text.assemble((block, "blue"), f" {x:.0f} %") for block, x in zip(blocks, loads))
        return Text.assemble(("".join(blocks), "blue"), f"  {sum(loads) / len(loads):.0f} % of {len(loads)} cores")

    def _memory(self, worker_pids: tuple[int, ...]) -> Text:
        pids = (psutil.Process().pid, *worker_pids)
        self._processes = {
            pid: self._processes.get(pid) or psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)
        }
        used = 0
        for process in self._processes.values():
            with suppress(psutil.Error):  # it has just ended
                used += process.memory_info().rss
        workers = f" with {pluralize(len(worker_pids), 'worker')}" if worker_pids else ""
        return Text(f"{format_bytes(used)} used{workers}, {format_bytes(machine.memory_available())} free")

    def _gpu(self) -> dict[str, Text]:
        """Return the line of the GPU if torch uses one."""
        cuda = getattr(sys.modules.get("torch"), "cuda", None)
        if cuda is None or not cuda.is_initialized():
            return {}
        free, total = cuda.mem_get_info()
        return {"GPU": Text(f"{cuda.get_device_name()}: {format_bytes(total - free)} of {format_bytes(total)} used")}


# -- output of workers ---------------------------------------------------------------------------------------------
FLUSH, END = b"a", b"."
FLUSH_S = 1.0  # time limit of a flush: a process that an env has started may print forever
BATCH_S = 0.05  # output within this time is printed at once, because the display is redrawn each time
LONGEST_LINE = 1_024  # bytes of a line without end, after which it is printed


@contextmanager
def printed_above(console: Console, drawing: AbstractContextManager[Any]) -> Iterator[Callable[[], Any]]:
    """Print the output of workers that are started meanwhile above the display, line by line; otherwise it would end up
    inside the display. Yield a function that prints what has been written so far.

    Workers write to a pseudo-terminal, because they would buffer many lines for a pipe. A thread reads it and prints
    while it holds `drawing`.
    """
    if pty is None:
        yield lambda: None
        return
    source, workers_end = pty.openpty()
    request_reader, request_writer = os.pipe()
    tty.setraw(workers_end)
    with suppress(OSError, ValueError):
        size = fcntl.ioctl(console.file.fileno(), termios.TIOCGWINSZ, bytes(8))
        fcntl.ioctl(workers_end, termios.TIOCSWINSZ, size)

    def print_lines(lines: bytes) -> None:
        with suppress(Exception), drawing:  # after an error here nothing would be read, and workers would block
            console.print(Text.from_ansi(lines.decode(errors="replace")), soft_wrap=True)

    def request(kind: bytes) -> bool:
        done.clear()
        os.write(request_writer, kind)  # closing the pipe would not do: processes that an env forked have it, too
        return done.wait(2 * FLUSH_S)  # False if the thread is blocked by a terminal that is not read

    done, own = threading.Event(), {source, request_reader, request_writer}
    arguments = (source, request_reader, print_lines, done)
    threading.Thread(target=_print_output, args=arguments, name="multiverse-prints", daemon=True).start()
    start_methods.caller_fds.update(own)
    try:
        with output.of_workers(workers_end):
            yield partial(request, FLUSH)
    finally:
        start_methods.caller_fds.difference_update(own)
        if request(END):
            for fd in (*own, workers_end):
                os.close(fd)


def _print_output(source: int, requests: int, print_lines: Callable[[bytes], None], done: threading.Event) -> None:
    """Print whole lines as they come and, at a request, everything that has been written."""
    rest = kind = b""
    while kind != END:
        if requests not in select.select([source, requests], [], [])[0]:
            rest = _print_whole_lines(rest + _read(source, BATCH_S), print_lines)
            continue
        kind = os.read(requests, 1)
        rest = _print_whole_lines(rest + _read(source, FLUSH_S, wait_s=0.0), print_lines)
        if rest:
            print_lines(rest)
        rest = b""
        done.set()


def _read(source: int, for_s: float, wait_s: float | None = None) -> bytes:
    """Return what is written within `for_s` seconds, or until nothing is written for `wait_s` seconds."""
    data, until = list[bytes](), time.monotonic() + for_s
    while (left_s := until - time.monotonic()) > 0 and select.select(
        [source], [], [], left_s if wait_s is None else wait_s
    )[0]:
        data.append(os.read(source, 65536))
    return b"".join(data)


def _print_whole_lines(data: bytes, print_lines: Callable[[bytes], None]) -> bytes:
    """Print whole lines, and return the rest: an unfinished line, without parts that it has overwritten itself."""
    lines, end, rest = data.rpartition(b"\n")
    if end:
        print_lines(lines)
    rest = rest.rpartition(b"\r")[2] or rest
    if len(rest) > LONGEST_LINE:
        print_lines(rest)
        rest = b""
    return rest

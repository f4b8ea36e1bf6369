"""Sinks that print the progress of a run: a line every few seconds (in a notebook a bar that is redrawn), one per
evaluation, and how the run ended."""

from __future__ import annotations

import logging
import shlex
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from multiverse.core.errors import EnvFailed, ReplyTimeout, WorkerDied
from multiverse.core.failures import HOW_TO_CONTINUE
from multiverse.core.wording import counted, in_digits
from multiverse.executors.launch.output import hold_standard_descriptors
from multiverse.training import events
from multiverse.training.config.budget import Clock
from multiverse.training.run_text import (
    evaluated,
    failure_counts,
    failures_line,
    in_percent,
    in_time,
    next_commands,
    of_budget,
    of_each,
    summary_lines,
)
from multiverse.training.runs.checkpoint import saved_steps
from multiverse.training.runs.find_runs import CHECKPOINTS

if TYPE_CHECKING:
    from multiverse.training.run import Run
    from multiverse.training.scaling import Decision

log = logging.getLogger("multiverse")

LINE_EVERY_S, BAR_EVERY_S = 3.0, 0.2
BAR_WIDTH, NOTEBOOK_WIDTH = 12, 110
NO_EPISODE = "no episode yet"
"""Instead of a mean return, before the first episode has ended."""


class LinePrinter:
    """Prints lines on a stream, by default standard output, and where `redraws` a bar below them that is overwritten.
    If the reader closes the stream, the lines are lost, but the run continues."""

    def __init__(self, stream: TextIO | None = None, redraws: bool = False) -> None:
        self.stream, self.redraws, self.heard = stream, redraws, True
        self._bar = ""  # what is shown of it

    def say(self, line: str = "", wrap: bool = False) -> None:
        """Print a line. `wrap`: on a terminal, break it between words; not for lines that a user may copy, such as
        commands."""
        if wrap and self._is_on_terminal():
            broken = textwrap.wrap(
                line,
                shutil.get_terminal_size().columns - 1,
                subsequent_indent=" " * (len(line) - len(line.lstrip()) + 2),
                break_long_words=False,
                break_on_hyphens=False,
            )
            line = "\n".join(broken)
        self._write(f"{self._over('')}\r{line}\n" if self._bar else f"{line}\n")
        self._bar = ""

    def draw(self, bar: str) -> None:
        """Overwrite the bar, cut to one line."""
        columns = NOTEBOOK_WIDTH if in_notebook() else shutil.get_terminal_size().columns
        bar = bar[: columns - 1]
        self._write(self._over(bar))
        self._bar = bar

    def _is_on_terminal(self) -> bool:
        stream = self.stream or sys.stdout
        try:
            return stream is not None and stream.isatty()
        except ValueError:  # it is closed
            return False

    def _over(self, bar: str) -> str:
        """Return text that replaces the bar, the rest of a longer one included."""
        return f"\r{bar:<{len(self._bar)}}"

    def _write(self, text: str) -> None:
        stream = self.stream or sys.stdout
        if self.heard and stream is not None:  # None: standard output is closed
            try:
                stream.write(text)
                stream.flush()
            except (OSError, ValueError):
                self.heard = False


def printer_for_programs() -> LinePrinter:
    """The printer of `mv.train`: standard error, because standard output belongs to the program; in a notebook, which
    shows standard error in red, standard output."""
    stream = sys.stdout if in_notebook() else sys.stderr
    return LinePrinter(stream, redraws=in_notebook() or (stream is not None and stream.isatty()))


def in_notebook() -> bool:
    """Whether this is a Jupyter kernel, whose output is no terminal but can overwrite a line."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell is not None and hasattr(shell, "kernel")


# -- sinks -------------------------------------------------------------------------------------------------------
class InterruptWarning(events.Sink):
    """Logs how to resume an interrupted run, and shows nothing else."""

    def handle(self, event: events.Event) -> None:
        if isinstance(event, events.RunInterrupted):
            log.warning(interruption(event))


class ProgressLines(events.Sink):
    """Prints how far the run is and how well it does; `about` only once it has begun, so that nothing stands above a
    refusal. `commands`: print what to type next, too. `now` is a clock of its own for tests."""

    def __init__(
        self, voice: LinePrinter, about: Sequence[str] = (), commands: bool = True, now: Any = time.monotonic
    ) -> None:
        self.voice, self._about, self._commands, self._now = voice, about, commands, now
        self._line_at, self._first = now(), True
        self._stretch = Clock()  # as it was when the last line was printed, …
        self._earlier = Clock()  # … and the one before

    def handle(self, event: events.Event) -> None:
        match event:
            case events.UpdateDone():
                self._update(event.status)
            case events.RunStarted():
                self._start(event)
            case events.NumEnvsDecided():
                self._num_envs(event.decision)
            case events.EvaluationDone():
                self._evaluation(event)
            case events.RunInterrupted():
                self.voice.say(interruption(event))
            case events.RunEnded():
                self._end(event)

    def _start(self, event: events.RunStarted) -> None:
        status = event.status
        for line in (*self._about, f"Run: {event.path}", f"Envs: {status.plan}", *event.notes):
            self.voice.say(line, wrap=True)
        if status.clock.env_steps:
            self.voice.say(f"Resuming at {status.clock.env_steps:,} env steps.")
        if status.config.budget.spent(status.clock) >= 1.0:
            spent = "The run has used its budget. Pass a larger --env-steps, --episodes or --minutes to train further."
            self.voice.say(spent, wrap=True)
        self._begin(status.clock)

    def _update(self, status: events.RunStatus) -> None:
        every, clock = (BAR_EVERY_S if self.voice.redraws else LINE_EVERY_S), status.clock
        if self._now() - self._line_at >= every or self._first:  # the first tells that it runs, and how fast
            self._first = False
            if self.voice.redraws:
                self._line_at = self._now()
                self.voice.draw(self._bar(status))
                if clock.seconds - self._stretch.seconds >= LINE_EVERY_S:
                    self._begin_stretch(clock)
            else:
                self.voice.say(self._line(status))
                self._begin_stretch(clock)

    def _num_envs(self, decision: Decision) -> None:
        envs = f"{counted(decision.num_envs, 'env')}{', final' * decision.settled} ({decision.why})"
        self.voice.say(f"{decision.env_steps:>11,} env steps | {envs}")

    def _evaluation(self, event: events.EvaluationDone) -> None:
        figures = f"{evaluated(event.summary, event.opponent)}{' (best so far)' * event.is_best}"
        self.voice.say(f"{event.env_steps:>11,} env steps | evaluation: {figures}", wrap=True)

    def _end(self, event: events.RunEnded) -> None:
        for line in summary_lines(event.summary):
            self.voice.say(line, wrap=True)
        for line in next_commands(event.summary, event.path) if self._commands else []:
            self.voice.say(line)

    def _begin(self, clock: Clock) -> None:
        """Measure from here on: what was before is another part of the run."""
        self._stretch = replace(clock)
        self._begin_stretch(clock)

    def _begin_stretch(self, clock: Clock) -> None:
        self._line_at, self._earlier, self._stretch = self._now(), self._stretch, replace(clock)

    def _left(self, status: events.RunStatus) -> str:
        """At the pace of the last two stretches: '3:07 min left'."""
        return f"{in_time(status.config.budget.seconds_left(status.clock, self._earlier))} left"

    def _pace_since(self, before: Clock, clock: Clock) -> str:
        """Env steps per second."""
        seconds = clock.seconds - before.seconds
        return f"{(clock.env_steps - before.env_steps) / seconds if seconds else 0:,.0f}"

    def _line(self, status: events.RunStatus) -> str:
        """Of the stretch since the last line; returns and lengths are those of the last hundred episodes."""
        clock, recent = status.clock, status.recent
        parts = [
            f"{clock.env_steps:>11,} env steps ({of_budget(status.config.budget, clock)})",
            f"return {in_digits(recent.mean_return)}{of_each(recent.by_agent)}, length {recent.mean_length:.0f}"
            if len(recent)
            else NO_EPISODE,
            f"{self._pace_since(self._stretch, clock)} env steps/s",
            in_percent(clock.shares_since(self._stretch)),
            f"restarts {status.restarts}",
            self._left(status),
        ]
        return " | ".join(parts)

    def _bar(self, status: events.RunStatus) -> str:
        """Of the last two stretches, in one line of a terminal."""
        clock, recent, spent = status.clock, status.recent, status.config.budget.spent(status.clock)
        done = round(BAR_WIDTH * spent)
        parts = [
            f"{'█' * done}{'░' * (BAR_WIDTH - done)} {100 * spent:.0f} %",
            self._left(status),
            f"return {in_digits(recent.mean_return)}" if len(recent) else NO_EPISODE,
            f"{clock.env_steps:,} env steps ({self._pace_since(self._earlier, clock)}/s)",
        ]
        return " | ".join(parts)


class ShortLines(ProgressLines):
    """Of one of several runs: lines that fit in 80 columns behind its name."""

    def _start(self, event: events.RunStarted) -> None:
        before = event.status.clock.env_steps
        self.voice.say(f"Run: {event.path.name}{f', resuming at {before:,} env steps' if before else ''}")
        self._begin(event.status.clock)

    def _num_envs(self, decision: Decision) -> None:
        self.voice.say(f"{decision.env_steps:>10,} steps | {counted(decision.num_envs, 'env')}")

    def _evaluation(self, event: events.EvaluationDone) -> None:
        returned = f"{in_digits(event.summary['mean_return'])} ± {in_digits(event.summary['std_return'])}"
        best = " (best so far)" * event.is_best
        self.voice.say(f"{event.env_steps:>10,} steps | evaluation: return {returned}{best}")

    def _end(self, event: events.RunEnded) -> None:
        summary = event.summary
        pace = f"{summary['env_steps_per_s']:,.0f} env steps/s"
        self.voice.say(f"Done: {summary['env_steps']:,} env steps in {in_time(summary['seconds'])} ({pace}).")
        if failure_counts(summary):
            self.voice.say(failures_line(summary))

    def _line(self, status: events.RunStatus) -> str:
        clock, recent = status.clock, status.recent
        parts = [
            f"{clock.env_steps:>10,} steps {100 * status.config.budget.spent(clock):>3.0f} %",
            f"return {in_digits(recent.mean_return)}" if len(recent) else NO_EPISODE,
            f"{self._pace_since(self._stretch, clock)}/s",
            *([f"restarts {restarts}"] if (restarts := status.restarts) else []),
            self._left(status),
        ]
        return " | ".join(parts)


# -- following a run ---------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class ResumeCommand:
    """How a user resumes a run: with `mv.resume` or in a shell. `arguments`: what must be given again, behind it."""

    in_python: bool = False
    arguments: str = ""

    def of(self, path: Path) -> str:
        if self.in_python:
            return f"mv.resume({str(path)!r}{self.arguments})"
        return f"multiverse resume {shlex.quote(str(path))}{self.arguments}"


def run_with_sinks(begin: Callable[..., Run], sinks: Sequence[events.Sink], resume: ResumeCommand | None = None) -> Run:
    """Begin a run (`begin(sinks=…)`) whose events these sinks receive, up to its end; then close them.

    An interrupt or an error is reported to them when the run's envs are closed, and raised again.
    """
    hold_standard_descriptors()
    every, resume = events.Sinks(sinks), resume or ResumeCommand()
    try:
        run = begin(sinks=every)
    except (KeyboardInterrupt, SystemExit):
        path, env_steps = every.position
        saved, command = (None, "") if path is None else (saved_steps(path / CHECKPOINTS), resume.of(path))
        every.handle(
            events.RunInterrupted(path=path, env_steps=env_steps, saved_env_steps=saved, resume_command=command)
        )
        raise
    except Exception as error:
        path, env_steps = every.position
        named = _with_resume_command(error, path, resume)
        every.handle(events.RunFailed(path=path, env_steps=env_steps, error=named))
        if named is error:
            raise
        raise named.with_traceback(error.__traceback__) from error.__cause__
    else:
        every.handle(events.RunEnded(path=run.path, summary=run.summary))
        return run
    finally:
        every.close()


def _with_resume_command(error: Exception, path: Path | None, resume: ResumeCommand) -> Exception:
    """The same error, which names this run where it says how to resume one."""
    if not isinstance(error, EnvFailed | WorkerDied | ReplyTimeout):
        return error
    if path is None or HOW_TO_CONTINUE not in error.hint:
        return error
    return error.with_hint(error.hint.replace(HOW_TO_CONTINUE, f"the run can be resumed with `{resume.of(path)}`"))


def interruption(event: events.RunInterrupted) -> str:
    """Sentence that says whether the run was saved, and how to resume it."""
    steps, saved, command = event.env_steps, event.saved_env_steps, event.resume_command
    if event.path is None:
        return "Interrupted before training began: nothing was saved."
    if saved is None:
        return f"Ended at {steps:,} env steps, and nothing was saved. To start again: {command}"
    if saved < steps:
        ended = f"Ended at {steps:,} env steps without saving; the last checkpoint is at {saved:,}"
        return f"{ended}. To resume from there: {command}"
    return f"Interrupted at {steps:,} env steps. To resume: {command}"

"""Sinks that print the progress of a run: a line every few seconds (in a notebook a bar that is redrawn), one per
evaluation, and how the run ended."""

from __future__ import annotations

import logging
import shlex
import shutil
import sys
import textwrap
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from multiverse.core.wording import format_return, pluralize
from multiverse.training import events
from multiverse.training.config.budget import PARTS, Budget, Clock

if TYPE_CHECKING:
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
        """Print a line. `wrap`: on a terminal, break it between words; not for commands, which a user may copy."""
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
    """Whether this is a Jupyter kernel, whose output is not a terminal but can overwrite a line."""
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
    """Prints the progress of a run and its results. `about`: lines that are printed first, once the run has begun, so
    that they do not precede a refusal. `commands`: whether to print the next commands too. `now`: a clock for tests."""

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
        envs = f"{pluralize(decision.num_envs, 'env')}{', final' * decision.settled} ({decision.why})"
        self.voice.say(f"{decision.env_steps:>11,} env steps | {envs}")

    def _evaluation(self, event: events.EvaluationDone) -> None:
        figures = f"{evaluation_text(event.summary, event.opponent)}{' (best so far)' * event.is_best}"
        self.voice.say(f"{event.env_steps:>11,} env steps | evaluation: {figures}", wrap=True)

    def _end(self, event: events.RunEnded) -> None:
        for line in summary_lines(event.summary):
            self.voice.say(line, wrap=True)
        for line in next_commands(event.summary, event.path) if self._commands else []:
            self.voice.say(line)

    def _begin(self, clock: Clock) -> None:
        """Measure from now on: what was before belongs to another part of the run."""
        self._stretch = replace(clock)
        self._begin_stretch(clock)

    def _begin_stretch(self, clock: Clock) -> None:
        self._line_at, self._earlier, self._stretch = self._now(), self._stretch, replace(clock)

    def _left(self, status: events.RunStatus) -> str:
        """At the pace of the last two stretches: '3:07 min left'."""
        return f"{duration_text(status.config.budget.seconds_left(status.clock, self._earlier))} left"

    def _pace_since(self, before: Clock, clock: Clock) -> str:
        """Env steps per second."""
        seconds = clock.seconds - before.seconds
        return f"{(clock.env_steps - before.env_steps) / seconds if seconds else 0:,.0f}"

    def _line(self, status: events.RunStatus) -> str:
        """Line about the time since the last line; returns and lengths are those of the last hundred episodes."""
        clock, recent = status.clock, status.recent
        parts = [
            f"{clock.env_steps:>11,} env steps ({budget_text(status.config.budget, clock)})",
            f"return {format_return(recent.mean_return)}{returns_text(recent.by_agent)}, "
            f"length {recent.mean_length:.0f}"
            if len(recent)
            else NO_EPISODE,
            f"{self._pace_since(self._stretch, clock)} env steps/s",
            shares_text(clock.shares_since(self._stretch)),
            f"restarts {status.restarts}",
            self._left(status),
        ]
        return " | ".join(parts)

    def _bar(self, status: events.RunStatus) -> str:
        """Progress bar, with the speed since the last line but one, in one line of a terminal."""
        clock, recent, spent = status.clock, status.recent, status.config.budget.spent(status.clock)
        done = round(BAR_WIDTH * spent)
        parts = [
            f"{'█' * done}{'░' * (BAR_WIDTH - done)} {100 * spent:.0f} %",
            self._left(status),
            f"return {format_return(recent.mean_return)}" if len(recent) else NO_EPISODE,
            f"{clock.env_steps:,} env steps ({self._pace_since(self._earlier, clock)}/s)",
        ]
        return " | ".join(parts)


class ShortLines(ProgressLines):
    """Prints lines about one of several runs, which fit in 80 columns after its name."""

    def _start(self, event: events.RunStarted) -> None:
        before = event.status.clock.env_steps
        self.voice.say(f"Run: {event.path.name}{f', resuming at {before:,} env steps' if before else ''}")
        self._begin(event.status.clock)

    def _num_envs(self, decision: Decision) -> None:
        self.voice.say(f"{decision.env_steps:>10,} steps | {pluralize(decision.num_envs, 'env')}")

    def _evaluation(self, event: events.EvaluationDone) -> None:
        returned = f"{format_return(event.summary['mean_return'])} ± {format_return(event.summary['std_return'])}"
        best = " (best so far)" * event.is_best
        self.voice.say(f"{event.env_steps:>10,} steps | evaluation: return {returned}{best}")

    def _end(self, event: events.RunEnded) -> None:
        summary = event.summary
        pace = f"{summary['env_steps_per_s']:,.0f} env steps/s"
        self.voice.say(f"Done: {summary['env_steps']:,} env steps in {duration_text(summary['seconds'])} ({pace}).")
        if failure_counts(summary):
            self.voice.say(failures_line(summary))

    def _line(self, status: events.RunStatus) -> str:
        clock, recent = status.clock, status.recent
        parts = [
            f"{clock.env_steps:>10,} steps {100 * status.config.budget.spent(clock):>3.0f} %",
            f"return {format_return(recent.mean_return)}" if len(recent) else NO_EPISODE,
            f"{self._pace_since(self._stretch, clock)}/s",
            *([f"restarts {restarts}"] if (restarts := status.restarts) else []),
            self._left(status),
        ]
        return " | ".join(parts)


# -- runs in words -----------------------------------------------------------------------------------------------
SHOWN_AGENTS = 4


def summary_lines(summary: dict[str, Any]) -> list[str]:
    """Lines that describe how a run ended."""
    stopped = f" ({summary['stopped']})" if summary["stopped"] else ""
    pace = f"{duration_text(summary['seconds'])} ({summary['env_steps_per_s']:,.0f} env steps/s)"
    lines = [
        f"Done{stopped}: {pluralize(summary['env_steps'], 'env step')}, {pluralize(summary['episodes'], 'episode')} "
        f"and {pluralize(summary['updates'], 'update')} in {pace}.",
        f"Time: {shares_text({part: summary[f'{part}_s'] / (summary['seconds'] or 1.0) for part in PARTS})}.",
    ]
    best = "" if summary["best_return"] is None else f"; best {format_return(summary['best_return'])}"
    if summary["evaluation"] is not None:
        lines.append(f"Evaluation: {evaluation_text(summary['evaluation'], summary.get('evaluation_opponent'))}{best}.")
    elif summary["evaluation_failures"]["failed"]:
        lines.append(f"Evaluation: none, the last one failed{best}.")
    return [*lines, failures_line(summary)]


def next_commands(summary: dict[str, Any], path: Path) -> list[str]:
    """Commands that a user may want next."""
    where, longer = shlex.quote(str(path)), 2 * summary["env_steps"]
    more = f"resume {where} --env-steps {longer}"
    if summary["stopped"]:  # it would be stopped again
        more = f"train {shlex.quote(summary['env'])} --init-from {where}"
    return ["Next:", f"  multiverse evaluate {where}", f"  multiverse {more}"]


def evaluation_text(summary: Mapping[str, Any], opponent: str | None = None) -> str:
    """Describe an evaluation: 'return 493.1 ± 12.0, length 493, over 20 unseen episodes'. With several agents also the
    return of each or, against an opponent, the share of wins. With meta-episodes also the return and the success rate
    of each of their episodes."""
    prefix = "mean_return/"
    returned = f"{format_return(summary['mean_return'])} ± {format_return(summary['std_return'])}"
    if "wins" in summary:
        returned += f", {wins_text(summary)}"
    else:
        each = {key.removeprefix(prefix): one for key, one in summary.items() if key.startswith(prefix)}
        returned += returns_text(each, "episodes" if f"{prefix}episode_1" in summary else "agents")
    if successes := [one for key, one in summary.items() if key.startswith("success_rate/")]:
        returned += f", success {' → '.join(f'{100 * one:.0f} %' for one in successes)}"
    lost = f" ({summary['lost_episodes']} more failed)" if summary.get("lost_episodes") else ""
    episodes = pluralize(summary["episodes"], "unseen episode")
    against = f", against {opponent}" if opponent and "wins" in summary else ""
    return f"return {returned}, length {summary['mean_length']:.0f}, over {episodes}{lost}{against}"


def wins_text(summary: Mapping[str, Any]) -> str:
    """Describe the outcome against an opponent: 'won 70 %, drew 5 %'."""
    drew = f", drew {100 * summary['draws']:.0f} %" if summary.get("draws") else ""
    return f"won {100 * summary['wins']:.0f} %{drew}"


def returns_text(returns: dict[str, float], of: str = "agents") -> str:
    """Describe returns by agent: ' (adversary_0 -3.1, agent_0 -12.2)'; of many only the lowest and the highest, of a
    team with shared rewards the sum; '' without any."""
    if of == "agents" and len(returns) > 1 and len(set(returns.values())) == 1:
        return f" (each of {len(returns)} agents, {sum(returns.values()):.2f} together)"
    if len(returns) > SHOWN_AGENTS:
        low, high = min(returns, key=lambda agent: returns[agent]), max(returns, key=lambda agent: returns[agent])
        return (
            f" ({len(returns)} {of}, from {low} {format_return(returns[low])} to {high} {format_return(returns[high])})"
        )
    return f" ({', '.join(f'{agent} {format_return(one)}' for agent, one in returns.items())})" if returns else ""


def duration_text(seconds: float) -> str:
    """Format a duration: '4.2 s', '3:07 min', '2:05 h'."""
    if seconds == float("inf"):
        return "?"
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{seconds // 60:.0f}:{seconds % 60:02.0f} min"
    return f"{seconds // 3600:.0f}:{seconds % 3600 // 60:02.0f} h"


def failure_counts(summary: dict[str, Any]) -> dict[str, int]:
    """Return descriptions of the failures in a run, and their numbers; only those that occurred."""
    failures, evaluation = summary["failures"], summary["evaluation_failures"]
    counts = {
        "env restarts": failures["env_restarts"],
        "worker restarts": failures["worker_restarts"],
        "of them timeouts": failures["timeouts"],
        "bad values": failures["bad_values"],
        "observations outside their space": failures["out_of_bounds"],
        "env steps lost": summary["lost_steps"],
        "gradient steps skipped": summary["skipped_updates"],
        "evaluations failed": evaluation["failed"],
        "evaluation episodes lost": evaluation["lost_episodes"],
        "evaluation env restarts": evaluation["env_restarts"],
        "evaluation worker restarts": evaluation["worker_restarts"],
    }
    return {name: count for name, count in counts.items() if count}


def failures_line(summary: dict[str, Any]) -> str:
    """Describe the failures in a run: 'Failures: env restarts 2.'"""
    counts = [f"{name} {count:,}" for name, count in failure_counts(summary).items()]
    return f"Failures: {', '.join(counts) or 'none'}."


def budget_text(budget: Budget, clock: Clock) -> str:
    """Describe the used share of the budget, and its parts other than env steps."""
    parts = [f"{100 * budget.spent(clock):.0f} %"]
    parts += [f"{clock.episodes:,} of {budget.episodes:,} episodes"] if budget.episodes else []
    parts += [f"{duration_text(clock.seconds)} of {duration_text(60 * budget.minutes)}"] if budget.minutes else []
    return ", ".join(parts)


def shares_text(shares: dict[str, float]) -> str:
    """Format shares of the time: 'act 20 %, step 42 %, learn 35 %, evaluate 0 %, save 0 %, other 3 %'."""
    return ", ".join(f"{part} {100 * share:.0f} %" for part, share in shares.items())


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

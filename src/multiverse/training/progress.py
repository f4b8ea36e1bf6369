"""A run as one follows it: a line every few seconds (in a notebook one that is redrawn), one per evaluation, and how
it ended."""

from __future__ import annotations

import logging
import shlex
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from multiverse.core.errors import EnvFailed, ReplyTimeout, WorkerDied, counted, in_digits
from multiverse.core.failures import HOW_TO_GO_ON
from multiverse.executors.launch.output import hold_standard_descriptors
from multiverse.training.config.budget import PARTS, Clock
from multiverse.training.hooks import Hook
from multiverse.training.runs.checkpoint import saved_steps
from multiverse.training.runs.find_runs import CHECKPOINTS

if TYPE_CHECKING:
    from multiverse.algorithms.algorithm import UpdateReport
    from multiverse.training.config.budget import Budget
    from multiverse.training.evaluation import Evaluation
    from multiverse.training.run import Run
    from multiverse.training.scaling import Decision
    from multiverse.training.trainer import Trainer

log = logging.getLogger("multiverse")

LINE_EVERY_S, BAR_EVERY_S = 3.0, 0.2
BAR_WIDTH, NOTEBOOK_WIDTH = 12, 110
SHOWN_AGENTS = 4


class LinePrinter:
    """Lines on a stream, by default standard output; where `redraws`, below them a bar that is written over again and
    again. A reader that leaves costs the lines, never the run."""

    def __init__(self, stream: TextIO | None = None, redraws: bool = False) -> None:
        self.stream, self.redraws, self.heard = stream, redraws, True
        self._bar = ""  # as it stands there

    def say(self, line: str = "", wrap: bool = False) -> None:
        """`wrap`: on a terminal, break the line between words. Not for lines that a user may copy, such as commands."""
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
        """The bar, as much of it as one line holds."""
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
        """What is left of a longer one is wiped out."""
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
    """For `mv.train`: standard output is the program's own, but in a notebook, where the other one is red."""
    stream = sys.stdout if in_notebook() else sys.stderr
    return LinePrinter(stream, redraws=in_notebook() or (stream is not None and stream.isatty()))


def in_notebook() -> bool:
    """Whether cells are run here: a kernel's shell is no terminal, but can go back in its line."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell is not None and hasattr(shell, "kernel")


class Progress(Hook):
    """Follows a run and tells nothing but how to go on if it is interrupted. Whatever shows more of it is one too."""

    def __init__(self, in_python: bool = False) -> None:
        self.in_python, self.again = in_python, ""  # what must be given again to go on, behind the run
        self.path: Path | None = None
        self.env_steps = 0
        self._decision: Decision | None = None  # the last one that was told

    def on_start(self, trainer: Trainer) -> None:
        self.path, self.env_steps = trainer.directory.path, trainer.clock.env_steps
        self._decision = None if trainer.scaling is None else trainer.scaling.last

    def on_update(self, trainer: Trainer, report: UpdateReport) -> None:
        self.env_steps = trainer.clock.env_steps
        decision = None if trainer.scaling is None else trainer.scaling.last
        if decision is not None and decision is not self._decision:
            self._decision = decision
            self.scaled(decision)

    def scaled(self, decision: Decision) -> None:
        """`num_envs="auto"` has decided how many envs to go on with."""

    def going_on(self) -> str:
        """What to type to go on with the run, once it has begun."""
        path = str(self.path)
        if self.in_python:
            return f"mv.resume({path!r}{self.again})"
        return f"multiverse resume {shlex.quote(path)}{self.again}"

    def interrupted(self) -> None:
        """By Ctrl-C, SIGTERM or SIGUSR1: the run is saved, if it had begun and was asked once."""
        if self.path is None:
            self.tell("Interrupted before training began: nothing was saved.")
            return
        saved, how = saved_steps(self.path / CHECKPOINTS), self.going_on()
        if saved is None:
            self.tell(f"Ended at {self.env_steps:,} env steps, and nothing was saved. To begin it anew: {how}")
        elif saved < self.env_steps:
            ended = f"Ended at {self.env_steps:,} env steps without saving; the last checkpoint is at {saved:,}"
            self.tell(f"{ended}. To go on from there: {how}")
        else:
            self.tell(f"Interrupted at {self.env_steps:,} env steps. To go on: {how}")

    def failed(self, error: Exception) -> None:
        """It ended with this error, which goes on its way."""

    def tell(self, line: str) -> None:
        log.warning(line)

    def done(self, run: Run) -> None:
        """It came to its end."""


class ProgressLines(Progress):
    """Tells how far the run is and how well it does; what it is (`first`) only when it has begun, so that a refusal is
    all that is said. `now` is a clock of its own for tests."""

    def __init__(
        self, voice: LinePrinter, in_python: bool = False, first: Sequence[str] = (), now: Any = time.monotonic
    ) -> None:
        super().__init__(in_python)
        self.voice, self._about, self._now = voice, first, now
        self._line_at, self._first = now(), True
        self._stretch = Clock()  # as it was when the last line was printed, …
        self._earlier = Clock()  # … and the one before

    def tell(self, line: str) -> None:
        self.voice.say(line)

    def on_start(self, trainer: Trainer) -> None:
        super().on_start(trainer)
        plan, found = trainer.session.envs.plan, trainer.session.start_lines
        for line in (*self._about, f"Run: {self.path}", f"Envs: {plan}", *found):
            self.voice.say(line, wrap=True)
        if trainer.clock.env_steps:
            self.voice.say(f"Going on from {trainer.clock.env_steps:,} env steps.")
        if trainer.config.budget.spent(trainer.clock) >= 1.0:
            spent = "Its budget is spent: --env-steps, --episodes or --minutes with a larger one makes it longer."
            self.voice.say(spent, wrap=True)
        self._begin(trainer.clock)

    def on_update(self, trainer: Trainer, report: UpdateReport) -> None:
        super().on_update(trainer, report)
        every, clock = (BAR_EVERY_S if self.voice.redraws else LINE_EVERY_S), trainer.clock
        if self._now() - self._line_at >= every or self._first:  # the first tells that it runs, and how fast
            self._first = False
            if self.voice.redraws:
                self._line_at = self._now()
                self.voice.draw(self._bar(trainer))
                if clock.seconds - self._stretch.seconds >= LINE_EVERY_S:
                    self._begin_stretch(clock)
            else:
                self.voice.say(self._line(trainer))
                self._begin_stretch(clock)

    def scaled(self, decision: Decision) -> None:
        told = f"{counted(decision.num_envs, 'env')}{' to stay' * decision.settled} ({decision.why})"
        self.voice.say(f"{decision.env_steps:>11,} env steps | {told}")

    def on_evaluation(self, trainer: Trainer, evaluation: Evaluation) -> None:
        best = " (best so far)" if evaluation.mean_return > trainer.best_return else ""
        told = evaluated(evaluation.summary(), trainer.config.evaluation_opponent)
        self.voice.say(f"{trainer.clock.env_steps:>11,} env steps | evaluation: {told}{best}", wrap=True)

    def done(self, run: Run) -> None:
        for line in summary_lines(run.summary):
            self.voice.say(line, wrap=True)
        for line in [] if self.in_python else next_lines(run.summary, run.path):
            self.voice.say(line)

    def _begin(self, clock: Clock) -> None:
        """What was before is another part of the run."""
        self._stretch = replace(clock)
        self._begin_stretch(clock)

    def _begin_stretch(self, clock: Clock) -> None:
        self._line_at, self._earlier, self._stretch = self._now(), self._stretch, replace(clock)

    def _left(self, trainer: Trainer) -> str:
        """At the pace of the last two stretches: '3:07 min left'."""
        return f"{in_time(trainer.config.budget.seconds_left(trainer.clock, self._earlier))} left"

    def _line(self, trainer: Trainer) -> str:
        """Of the stretch since the last line; returns and lengths are those of the last hundred episodes."""
        clock, recent = trainer.clock, trainer.session.recent
        steps, seconds = clock.env_steps - self._stretch.env_steps, clock.seconds - self._stretch.seconds
        failures = trainer.session.failures
        parts = [
            f"{clock.env_steps:>11,} env steps ({_of_budget(trainer.config.budget, clock)})",
            f"return {in_digits(recent.mean_return)}{_of_each(recent.by_agent)}, length {recent.mean_length:.0f}"
            if len(recent)
            else "no episode has ended",
            f"{steps / seconds if seconds else 0:,.0f} env steps/s",
            _in_percent(clock.shares_since(self._stretch)),
            f"restarts {failures.env_restarts + failures.worker_restarts}",
            self._left(trainer),
        ]
        return " | ".join(parts)

    def _bar(self, trainer: Trainer) -> str:
        """Of the last two stretches, in one line of a terminal."""
        clock, budget, recent = trainer.clock, trainer.config.budget, trainer.session.recent
        steps, seconds = clock.env_steps - self._earlier.env_steps, clock.seconds - self._earlier.seconds
        done = round(BAR_WIDTH * budget.spent(clock))
        parts = [
            f"{'█' * done}{'░' * (BAR_WIDTH - done)} {100 * budget.spent(clock):.0f} %",
            self._left(trainer),
            f"return {in_digits(recent.mean_return)}" if len(recent) else "no episode has ended",
            f"{clock.env_steps:,} env steps ({steps / seconds if seconds else 0:,.0f}/s)",
        ]
        return " | ".join(parts)


class ShortLines(ProgressLines):
    """Of one of several runs: lines that fit in 80 columns behind its name."""

    def on_start(self, trainer: Trainer) -> None:
        Progress.on_start(self, trainer)
        before = trainer.clock.env_steps
        going_on = f", going on from {before:,} env steps" if before else ""
        self.voice.say(f"Run: {trainer.directory.path.name}{going_on}")
        self._begin(trainer.clock)

    def scaled(self, decision: Decision) -> None:
        self.voice.say(f"{decision.env_steps:>10,} steps | {counted(decision.num_envs, 'env')}")

    def on_evaluation(self, trainer: Trainer, evaluation: Evaluation) -> None:
        best = " (best so far)" if evaluation.mean_return > trainer.best_return else ""
        told = f"{in_digits(evaluation.mean_return)} ± {in_digits(evaluation.std_return)}"
        self.voice.say(f"{trainer.clock.env_steps:>10,} steps | evaluation: return {told}{best}")

    def done(self, run: Run) -> None:
        steps, pace = run.summary["env_steps"], f"{run.summary['env_steps_per_s']:,.0f} env steps/s"
        self.voice.say(f"Done: {steps:,} env steps in {in_time(run.summary['seconds'])} ({pace}).")
        if failure_counts(run.summary):
            self.voice.say(_failures(run.summary))

    def _line(self, trainer: Trainer) -> str:
        clock, recent, failures = trainer.clock, trainer.session.recent, trainer.session.failures
        steps, seconds = clock.env_steps - self._stretch.env_steps, clock.seconds - self._stretch.seconds
        restarts = failures.env_restarts + failures.worker_restarts
        parts = [
            f"{clock.env_steps:>10,} steps {100 * trainer.config.budget.spent(clock):>3.0f} %",
            f"return {in_digits(recent.mean_return)}" if len(recent) else "no episode yet",
            f"{steps / seconds if seconds else 0:,.0f}/s",
            *([f"restarts {restarts}"] if restarts else []),
            self._left(trainer),
        ]
        return " | ".join(parts)


def summary_lines(summary: dict[str, Any]) -> list[str]:
    """How a run ended."""
    stopped = f" ({summary['stopped']})" if summary["stopped"] else ""
    pace = f"{in_time(summary['seconds'])} ({summary['env_steps_per_s']:,.0f} env steps/s)"
    lines = [
        f"Done{stopped}: {counted(summary['env_steps'], 'env step')}, {counted(summary['episodes'], 'episode')} and "
        f"{counted(summary['updates'], 'update')} in {pace}.",
        f"Time: {_in_percent({part: summary[f'{part}_s'] / (summary['seconds'] or 1.0) for part in PARTS})}.",
    ]
    best = "" if summary["best_return"] is None else f"; best {in_digits(summary['best_return'])}"
    if summary["evaluation"] is not None:
        lines.append(f"Evaluation: {evaluated(summary['evaluation'], summary.get('evaluation_opponent'))}{best}.")
    elif summary["evaluation_failures"]["failed"]:
        lines.append(f"Evaluation: none, the last one failed{best}.")
    return [*lines, _failures(summary)]


def next_lines(summary: dict[str, Any], path: Path) -> list[str]:
    """What to type next."""
    where, longer = shlex.quote(str(path)), 2 * summary["env_steps"]
    more = f"resume {where} --env-steps {longer}"
    if summary["stopped"]:  # it would be stopped again
        more = f"train {shlex.quote(summary['env'])} --init-from {where}"
    return ["Next:", f"  multiverse evaluate {where}", f"  multiverse {more}"]


def evaluated(summary: dict[str, Any], opponent: str | None = None) -> str:
    """'return 493.1 ± 12.0, length 493, over 20 unseen episodes'; of several agents also each one's return or, against
    an opponent, how often the policy's side won. Of meta-episodes, what each of their episodes returned, and how many
    of those had a success."""
    prefix = "mean_return/"
    returned = f"{in_digits(summary['mean_return'])} ± {in_digits(summary['std_return'])}"
    if "wins" in summary:
        returned += f", {won(summary)}"
    else:
        each = {key.removeprefix(prefix): one for key, one in summary.items() if key.startswith(prefix)}
        returned += _of_each(each, "episodes" if f"{prefix}episode_1" in summary else "agents")
    if successes := [one for key, one in summary.items() if key.startswith("success_rate/")]:
        returned += f", success {' → '.join(f'{100 * one:.0f} %' for one in successes)}"
    lost = f" ({summary['lost_episodes']} more failed)" if summary.get("lost_episodes") else ""
    episodes = counted(summary["episodes"], "unseen episode")
    against = f", against {opponent}" if opponent and "wins" in summary else ""
    return f"return {returned}, length {summary['mean_length']:.0f}, over {episodes}{lost}{against}"


def won(summary: dict[str, Any]) -> str:
    """'won 70 %, drew 5 %', of an evaluation against an opponent."""
    drew = f", drew {100 * summary['draws']:.0f} %" if summary.get("draws") else ""
    return f"won {100 * summary['wins']:.0f} %{drew}"


def _of_each(returns: dict[str, float], of: str = "agents") -> str:
    """' (adversary_0 -3.1, agent_0 -12.2)'; of many the worst and the best, of a team with shared rewards the whole.
    Nothing of a single one."""
    if of == "agents" and len(returns) > 1 and len(set(returns.values())) == 1:
        return f" (each of {len(returns)} agents, {sum(returns.values()):.2f} together)"
    if len(returns) > SHOWN_AGENTS:
        low, high = min(returns, key=lambda agent: returns[agent]), max(returns, key=lambda agent: returns[agent])
        return f" ({len(returns)} {of}, from {low} {in_digits(returns[low])} to {high} {in_digits(returns[high])})"
    return f" ({', '.join(f'{agent} {in_digits(one)}' for agent, one in returns.items())})" if returns else ""


def in_time(seconds: float) -> str:
    """'4.2 s', '3:07 min', '2:05 h'."""
    if seconds == float("inf"):
        return "?"
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{seconds // 60:.0f}:{seconds % 60:02.0f} min"
    return f"{seconds // 3600:.0f}:{seconds % 3600 // 60:02.0f} h"


def failure_counts(summary: dict[str, Any]) -> dict[str, int]:
    """What went wrong in a run, in words, and how often; nothing that was never met."""
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


def _failures(summary: dict[str, Any]) -> str:
    found = [f"{name} {count:,}" for name, count in failure_counts(summary).items()]
    return f"Failures: {', '.join(found) or 'none'}."


def _of_budget(budget: Budget, clock: Clock) -> str:
    """The share of whatever will be spent first, and what is not env steps."""
    parts = [f"{100 * budget.spent(clock):.0f} %"]
    parts += [f"{clock.episodes:,} of {budget.episodes:,} episodes"] if budget.episodes else []
    parts += [f"{in_time(clock.seconds)} of {in_time(60 * budget.minutes)}"] if budget.minutes else []
    return ", ".join(parts)


def _in_percent(shares: dict[str, float]) -> str:
    """'act 20 %, step 42 %, learn 35 %, evaluate 0 %, save 0 %, other 3 %'."""
    return ", ".join(f"{part} {100 * share:.0f} %" for part, share in shares.items())


def run_with_progress(begin: Callable[..., Run], progress: Progress) -> Run:
    """Begin a run (`begin(hooks=…)`) and tell of it to its end.

    A run that is interrupted says how to go on with it, and the interrupt goes on its way.
    """
    hold_standard_descriptors()
    try:
        run = begin(hooks=[progress])
    except (KeyboardInterrupt, SystemExit):
        progress.interrupted()
        raise
    except Exception as error:
        told = _with_how_to_go_on(error, progress)
        progress.failed(told)
        if told is error:
            raise
        raise told.with_traceback(error.__traceback__) from error.__cause__
    progress.done(run)
    return run


def _with_how_to_go_on(error: Exception, progress: Progress) -> Exception:
    """The same error, which names this run where it says how to go on."""
    if not isinstance(error, EnvFailed | WorkerDied | ReplyTimeout):
        return error
    if progress.path is None or HOW_TO_GO_ON not in error.hint:
        return error
    return error.with_hint(error.hint.replace(HOW_TO_GO_ON, f"the run goes on with `{progress.going_on()}`"))

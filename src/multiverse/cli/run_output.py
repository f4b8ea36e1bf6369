"""Output of the commands that train: a live display in a terminal, lines elsewhere, JSON for programs, or nothing."""

from __future__ import annotations

import functools
import io
import json
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from multiverse.cli.main import one_line, results
from multiverse.core.errors import InvalidRequest, MultiverseError
from multiverse.training import events
from multiverse.training.events import ResumeCommand, run_with_sinks
from multiverse.training.progress import InterruptWarning, LinePrinter, ProgressLines, ShortLines
from multiverse.training.runs.files import for_json
from multiverse.training.seed_runs import SeedSet, read_set, run_order, run_set, seed_lines, with_seeds
from multiverse.training.side_by_side import in_child

if TYPE_CHECKING:
    from multiverse.training.run import Run


def run_and_show(
    begin: Callable[..., Run],
    printer: LinePrinter,
    *,
    about: Sequence[str] = (),
    quiet: bool = False,
    as_json: bool = False,
    resume: ResumeCommand | None = None,
) -> None:
    """Start a run (`begin(sinks=…)`) and show it until it ends: as a live display in a terminal that is large enough,
    else as lines, both below the lines of `about`; as JSON; or (`quiet`) only by its directory at the end."""
    _refuse_both(quiet, as_json)
    with _sink_for(printer, about, quiet, as_json) as sink:
        run = run_with_sinks(begin, [sink], resume)
    if quiet:
        print(run.path, file=results())


@contextmanager
def _sink_for(printer: LinePrinter, about: Sequence[str], quiet: bool, as_json: bool) -> Iterator[events.Sink]:
    if quiet:
        yield InterruptWarning()
    elif as_json:
        yield JsonLines(printer)
    else:
        from multiverse.cli.display import live_display

        with live_display(printer, about) as display:
            yield display or ProgressLines(printer, about)


def _refuse_both(quiet: bool, as_json: bool) -> None:
    if quiet and as_json:
        raise InvalidRequest("--quiet and --json cannot be used together")


class JsonLines(ProgressLines):
    """Prints one JSON object per line, each with its `event`: start, metrics (as often as lines are printed), num_envs
    (a decision of `--num-envs auto`), evaluation, and at last end, interrupted or error. All have `fields`, too."""

    def __init__(self, printer: LinePrinter, **fields: Any) -> None:
        super().__init__(printer)
        self._fields = fields
        self._metrics: events.Metrics = {}  # as they were last logged

    def handle(self, event: events.Event) -> None:
        """Print an event. `saved` of an interrupted run: whether all of it is saved; `saved_env_steps`: where it
        resumes, null if there is no checkpoint."""
        match event:
            case events.UpdateDone():
                self._update(event.status)
            case events.MetricsLogged():
                self._metrics = event.metrics
            case events.RunStarted():
                clock, plan = event.status.clock, str(event.status.plan)
                self._print("start", env_steps=clock.env_steps, run=str(event.path), plan=plan)
                self._begin(clock)
            case events.NumEnvsDecided():
                self._print("num_envs", **asdict(event.decision))
            case events.EvaluationDone():
                self._print("evaluation", env_steps=event.env_steps, **event.summary)
            case events.RunInterrupted():
                saved = event.saved_env_steps
                self._print("interrupted", **_position(event), saved=saved == event.env_steps, saved_env_steps=saved)
            case events.RunFailed():
                self._print("error", **_position(event), error=one_line(event.error))
            case events.RunEnded():
                self._print("end", run=str(event.path), **event.summary)

    def _line(self, status: events.RunStatus) -> str:
        return _json_line({"event": "metrics", **self._fields, "env_steps": status.clock.env_steps, **self._metrics})

    def _print(self, event: str, **fields: Any) -> None:
        self.voice.say(_json_line({"event": event, **self._fields, **fields}))


def _position(event: events.RunInterrupted | events.RunFailed) -> dict[str, Any]:
    return {"env_steps": event.env_steps, "run": None if event.path is None else str(event.path)}


def _json_line(row: Mapping[str, Any]) -> str:
    return json.dumps(for_json(row), allow_nan=False)


# -- several seeds -------------------------------------------------------------------------------------------------
def run_set_and_show(seeds: SeedSet, printer: LinePrinter, quiet: bool = False, as_json: bool = False) -> None:
    """Run all unfinished runs of a set and print their results; `quiet`, `as_json`: as for one run."""
    _refuse_both(quiet, as_json)
    if as_json:
        return _run_set_as_json(seeds, printer)
    shown = LinePrinter(io.StringIO()) if quiet else printer

    def run_one(order: dict[str, Any]) -> Run:
        return run_with_sinks(functools.partial(run_order, order), [ShortLines(shown)])

    try:
        state = run_set(seeds, with_seeds(shown.say), run_one, "multiverse.training.seed_runs")
    except (KeyboardInterrupt, SystemExit):
        arguments = "".join(f" --{name} {shlex.quote(value)}" for name, value in seeds.names.items())
        shown.say(f"Interrupted. To resume all of them: {ResumeCommand(arguments=arguments).of(seeds.path)}")
        raise
    for line in seed_lines(state):
        shown.say(line)
    if quiet:
        printer.say(str(seeds.path))


def _run_set_as_json(seeds: SeedSet, printer: LinePrinter) -> None:
    """Print the events of each run with its seed, and a last event for the set."""

    def print_line(seed: int | None, line: str) -> None:
        if line.startswith('{"event"'):
            printer.say(line)
        elif seed is not None:  # a warning or an error
            print(f"seed {seed} | {line}", file=sys.stderr)

    def run_one(order: dict[str, Any]) -> Run:
        return run_with_sinks(functools.partial(run_order, order), [JsonLines(printer, seed=order["seed"])])

    def print_last(event: str, **fields: Any) -> None:
        printer.say(_json_line({"event": event, "run": str(seeds.path), **fields}))

    try:
        run_set(seeds, print_line, run_one, __name__)
    except (KeyboardInterrupt, SystemExit):
        print_last("interrupted")
        raise
    except MultiverseError as error:
        print_last("error", error=one_line(error))
        raise
    print_last("end", **read_set(seeds.path))


def child(order: Mapping[str, Any]) -> int:
    """Run one seed in its own process, and print its events."""
    lines = JsonLines(LinePrinter(), seed=order["seed"])
    return in_child(lambda: run_with_sinks(functools.partial(run_order, order), [lines]))

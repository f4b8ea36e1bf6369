"""Runs of several seeds on the command line, and their output."""

from __future__ import annotations

import functools
import io
import shlex
import sys
from collections.abc import Mapping
from typing import Any

from multiverse.cli.display import JsonLines, json_line, refuse_both
from multiverse.cli.main import one_line
from multiverse.core.errors import MultiverseError
from multiverse.training.events import ResumeCommand, run_with_sinks
from multiverse.training.progress import LinePrinter, ShortLines
from multiverse.training.run import Run
from multiverse.training.seed_runs import SeedSet, read_set, run_order, run_set, seed_lines, with_seeds
from multiverse.training.side_by_side import in_child


def run_and_tell(several: SeedSet, voice: LinePrinter, quiet: bool = False, as_json: bool = False) -> None:
    """Run all unfinished runs of a set, and print their common result; `quiet`, `as_json`: as for one run."""
    refuse_both(quiet, as_json)
    if as_json:
        return _run_and_tell_in_json(several, voice)
    loud, voice = voice, LinePrinter(io.StringIO()) if quiet else voice

    def one(order: dict[str, Any]) -> Run:
        return run_with_sinks(functools.partial(run_order, order), [ShortLines(voice)])

    try:
        found = run_set(several, with_seeds(voice.say), one, "multiverse.training.seed_runs")
    except (KeyboardInterrupt, SystemExit):
        again = "".join(f" --{name} {shlex.quote(one)}" for name, one in several.names.items())
        voice.say(f"Interrupted. To resume all of them: {ResumeCommand(arguments=again).of(several.path)}")
        raise
    for line in seed_lines(found):
        voice.say(line)
    if quiet:
        loud.say(str(several.path))


def _run_and_tell_in_json(several: SeedSet, voice: LinePrinter) -> None:
    """Print the events of each run with its seed, and a final event of all."""

    def say(seed: int | None, line: str) -> None:
        if line.startswith('{"event"'):
            voice.say(line)
        elif seed is not None:  # a warning, or an error
            print(f"seed {seed} | {line}", file=sys.stderr)

    def one(order: dict[str, Any]) -> Run:
        return run_with_sinks(functools.partial(run_order, order), [JsonLines(voice, seed=order["seed"])])

    def end(event: str, **told: Any) -> None:
        voice.say(json_line({"event": event, "run": str(several.path), **told}))

    try:
        run_set(several, say, one, __name__)
    except (KeyboardInterrupt, SystemExit):
        end("interrupted")
        raise
    except MultiverseError as error:
        end("error", error=one_line(error))
        raise
    end("end", **read_set(several.path))


def child(order: Mapping[str, Any]) -> int:
    """Run one seed in a process of its own, and print its events."""
    lines = JsonLines(LinePrinter(), seed=order["seed"])
    return in_child(lambda: run_with_sinks(functools.partial(run_order, order), [lines]))

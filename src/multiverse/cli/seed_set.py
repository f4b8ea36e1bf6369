"""Runs of several seeds on the command line, and their output."""

from __future__ import annotations

import functools
import io
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from multiverse.cli.display import JsonLines, json_line, refuse_both
from multiverse.cli.main import one_line
from multiverse.core.errors import MultiverseError
from multiverse.training.config.train_config import TrainConfig
from multiverse.training.progress import LinePrinter, ShortLines, run_with_progress
from multiverse.training.run import Run
from multiverse.training.seed_runs import in_lines, ordered, read_set, run_set, seed_lines
from multiverse.training.side_by_side import in_child


def run_and_tell(
    path: Path,
    config: TrainConfig,
    settings: Mapping[str, Any],
    voice: LinePrinter,
    trust: bool = False,
    quiet: bool = False,
    as_json: bool = False,
    own: Mapping[str, str | None] | None = None,
) -> None:
    """Run all unfinished runs of a set, and print their common result; `quiet`, `as_json`: as for one run.
    `own`: the current places of the user's own `algorithm` and `network`."""
    own = {name: one for name, one in (own or {}).items() if one}
    refuse_both(quiet, as_json)
    if as_json:
        return _run_and_tell_in_json(path, config, settings, voice, trust, own)
    loud, voice = voice, LinePrinter(io.StringIO()) if quiet else voice

    def one(order: dict[str, Any]) -> Run:
        return run_with_progress(functools.partial(ordered, order), ShortLines(voice))

    try:
        apart = "multiverse.training.seed_runs"
        found = run_set(path, config, settings, in_lines(voice.say), one, apart, trust, **own)
    except (KeyboardInterrupt, SystemExit):
        again = shlex.join([str(path), *(word for name, one in own.items() for word in (f"--{name}", str(one)))])
        voice.say(f"Interrupted. To resume all of them: multiverse resume {again}")
        raise
    for line in seed_lines(found):
        voice.say(line)
    if quiet:
        loud.say(str(path))


def _run_and_tell_in_json(
    path: Path,
    config: TrainConfig,
    settings: Mapping[str, Any],
    voice: LinePrinter,
    trust: bool,
    own: Mapping[str, Any],
) -> None:
    """Print the events of each run with its seed, and a final event of all."""

    def say(seed: int | None, line: str) -> None:
        if line.startswith('{"event"'):
            voice.say(line)
        elif seed is not None:  # a warning, or an error
            print(f"seed {seed} | {line}", file=sys.stderr)

    def one(order: dict[str, Any]) -> Run:
        return run_with_progress(functools.partial(ordered, order), JsonLines(voice, seed=order["seed"]))

    def end(event: str, **told: Any) -> None:
        voice.say(json_line({"event": event, "run": str(path), **told}))

    try:
        run_set(path, config, settings, say, one, __name__, trust, **own)
    except (KeyboardInterrupt, SystemExit):
        end("interrupted")
        raise
    except MultiverseError as error:
        end("error", error=one_line(error))
        raise
    end("end", **read_set(path))


def child(order: Mapping[str, Any]) -> int:
    """Run one seed in a process of its own, and print its events."""
    lines = JsonLines(LinePrinter(), seed=order["seed"])
    return in_child(lambda: run_with_progress(functools.partial(ordered, order), lines))

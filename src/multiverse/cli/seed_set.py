"""Several seeds on the command line."""

from __future__ import annotations

import functools
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from multiverse.cli.display import progress_for
from multiverse.cli.output import print_json
from multiverse.training.config.train_config import TrainConfig
from multiverse.training.progress import LinePrinter, run_with_progress
from multiverse.training.run import Run
from multiverse.training.seed_runs import ordered, run_set, seed_lines


def run_and_tell(
    path: Path,
    config: TrainConfig,
    settings: Mapping[str, Any],
    voice: LinePrinter,
    trust: bool = False,
    quiet: bool = False,
    as_json: bool = False,
) -> None:
    """All that is not done of a set of runs, and what they say together; `quiet`: where they lie, at the end, and
    `as_json`: what they say as an object, and nothing else."""
    aloud = not (quiet or as_json)

    def one(order: dict[str, Any]) -> Run:
        with progress_for(voice, quiet=not aloud) as progress:
            return run_with_progress(functools.partial(ordered, order), progress)

    try:
        found = run_set(path, config, settings, voice.say if aloud else _nothing, one, apart=True, trust=trust)
    except (KeyboardInterrupt, SystemExit):
        if aloud:
            voice.say(f"Interrupted. To go on with all of them: multiverse resume {shlex.quote(str(path))}")
        raise
    if as_json:
        print_json({"run": str(path), **found.summary})
    for line in seed_lines(found) if aloud else [str(path)] * quiet:
        voice.say(line)


def _nothing(line: str) -> None:
    pass

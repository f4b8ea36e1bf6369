"""Several seeds, as the command line runs and tells them."""

from __future__ import annotations

import functools
import io
import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from multiverse.cli.display import refuse_both
from multiverse.training.config.train_config import TrainConfig
from multiverse.training.progress import LinePrinter, ShortLines, run_with_progress
from multiverse.training.run import Run
from multiverse.training.seed_runs import ordered, read_set, run_set, seed_lines


def run_and_tell(
    path: Path,
    config: TrainConfig,
    settings: Mapping[str, Any],
    voice: LinePrinter,
    trust: bool = False,
    quiet: bool = False,
    as_json: bool = False,
) -> None:
    """All that is not done of a set of runs, and what they say together; `quiet`, `as_json`: as of one run, of all."""
    refuse_both(quiet, as_json)
    loud, voice = voice, LinePrinter(io.StringIO()) if quiet or as_json else voice

    def one(order: dict[str, Any]) -> Run:
        return run_with_progress(functools.partial(ordered, order), ShortLines(voice))

    try:
        found = run_set(path, config, settings, voice.say, one, apart=True, trust=trust)
    except (KeyboardInterrupt, SystemExit):
        voice.say(f"Interrupted. To go on with all of them: multiverse resume {shlex.quote(str(path))}")
        raise
    for line in seed_lines(found):
        voice.say(line)
    if quiet:
        loud.say(str(path))
    if as_json:
        loud.say(json.dumps({"event": "end", "run": str(path), **read_set(path)}))

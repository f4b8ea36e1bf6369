"""`multiverse resume RUN`: continue a run, possibly with other settings."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import shlex
from collections.abc import Iterable, Sequence, Set
from pathlib import Path
from typing import Any

from multiverse.algorithms import ALGORITHMS, DEFAULT_ALGORITHM, algorithm_class, known_name
from multiverse.algorithms.capabilities import capabilities_of
from multiverse.cli.flags import WORDS, Setting, all_settings, parser, typed
from multiverse.cli.main import require, require_positive, results
from multiverse.cli.options import JSON_HELP, MOVED_HELP, QUIET_HELP, TRUST_HELP, spelled
from multiverse.core.errors import InvalidRequest
from multiverse.training.config.build import Located
from multiverse.training.config.changes import HOLD, KEPT
from multiverse.training.config.train_config import BUDGETS

DESCRIPTION = """\
Continues a run exactly from its last checkpoint: an interrupted run to the
end of its budget, a finished run with a larger budget. Weights, random
generators and every env in the middle of its episode are restored. Settings
given here replace those of the run, also for later resumes.

examples:
  multiverse resume runs/CartPole-v1
  multiverse resume runs/CartPole-v1/ppo-0-20260101-120000 --env-steps 200000
  multiverse resume runs/CartPole-v1 --lr 1e-4 --executor serial"""

RUN_HELP = (
    "Directory of the run, or a parent directory (its most recent run is used). A checkpoint of the run: the run "
    "continues from there, and everything after it is removed. The directory of several seeds: all unfinished runs "
    "are resumed."
)
COMMAND = (
    Setting("env", str, "", MOVED_HELP.format("env (ID or MODULE:NAME)")),
    Setting("algorithm", str, "", MOVED_HELP.format("algorithm (MODULE:CLASS)")),
    Setting("network", str, "", MOVED_HELP.format("network (FILE.py:CLASS)")),
    Setting("trust", bool, None, TRUST_HELP),
    Setting("tensorboard", bool, None, "Also write metrics for TensorBoard (extra `tensorboard`)."),
    Setting(
        "without_replay", bool, None, "Start with an empty replay buffer, if the saved one is damaged; not bit-exact."
    ),
    Setting(HOLD, bool, None, "With a new budget, keep learning rate, clip range and exploration as they are."),
    Setting("quiet", bool, None, QUIET_HELP),
    Setting("json", bool, None, JSON_HELP),
)


def run(arguments: Sequence[str]) -> int:
    path, command, settings = resume_options(arguments)
    require_positive(**{name: settings[name] for name in BUDGETS if isinstance(settings.get(name), int | float)})
    if command["tensorboard"]:
        require("tensorboard", "tensorboard", purpose="--tensorboard")
    from multiverse.cli.run_output import run_and_show, run_set_and_show
    from multiverse.training.events import ResumeCommand
    from multiverse.training.progress import LinePrinter
    from multiverse.training.run import resume_run
    from multiverse.training.runs.find_runs import find_set
    from multiverse.training.seed_runs import resumed_set
    from multiverse.training.validation import ResumeOptions, RunObjects

    settings |= {HOLD: True} if command[HOLD] else {}
    printer = LinePrinter(results())
    output_format: dict[str, Any] = {"quiet": bool(command["quiet"]), "as_json": bool(command["json"])}
    objects = RunObjects(algorithm=command["algorithm"] or None, network=command["network"] or None)
    if (run_set := find_set(path)) is not None:
        if command["env"] or command["tensorboard"] or command["without_replay"]:
            raise InvalidRequest(
                f"--env, --tensorboard and --without-replay apply to one run, and {run_set} has several: resume each "
                "of them separately"
            )
        resumed, _ = resumed_set(run_set, settings, objects, bool(command["trust"]))
        run_set_and_show(resumed, printer, **output_format)
        return 0
    objects = objects.filled(env=command["env"] or None)
    options = ResumeOptions(**{name: bool(command[name]) for name in ("trust", "tensorboard", "without_replay")})
    resume = ResumeCommand(arguments=f" --env {shlex.quote(command['env'])}" if command["env"] else "")
    begin = functools.partial(resume_run, path, settings, options, objects)
    run_and_show(begin, printer, resume=resume, **output_format)
    return 0


def resume_options(arguments: Sequence[str]) -> tuple[str, dict[str, Any], Located]:
    """Return (the run, options of the command, settings). The flags depend on the run's algorithm, so the run is looked
    for first."""
    all_changeable = _changeable_in_any()
    words = [spelled(word) for word in arguments if word not in ("-h", "--help")]  # the help depends on the algorithm
    try:
        known, _ = flags_of(all_changeable).parse_known_intermixed_args(words)
    except argparse.ArgumentError:  # reported below, by the parser of the run's algorithm
        known = argparse.Namespace()
    path = next((word for word in getattr(known, WORDS, []) if Path(word).exists()), None)
    given_algorithm = known_name(getattr(known, "algorithm", ""))
    algorithm = DEFAULT_ALGORITHM if path is None else _algorithm_of(path, hasattr(known, "trust"), given_algorithm)
    settings = all_changeable if path is None else changeable(algorithm)
    _refuse_fixed(arguments, algorithm, {setting.name for setting in settings})
    parsed = typed(flags_of(settings), [*COMMAND, *settings], arguments, algorithm)
    if not parsed.words:
        raise InvalidRequest("RUN is missing; for example: `multiverse resume runs/CartPole-v1`")
    if len(parsed.words) > 1:
        raise InvalidRequest(f"expected one RUN, got {len(parsed.words)}: {', '.join(parsed.words)}")
    command = {option.name: parsed.values.pop(option.name, option.default) for option in COMMAND}
    return parsed.words[0], command, Located(parsed.values, parsed.flags)


def _refuse_fixed(arguments: Sequence[str], algorithm: str, free: Set[str]) -> None:
    """Refuse flags of settings that a run cannot change, with another message than for mistyped flags."""
    every = [setting for group in all_settings(algorithm).values() for setting in group]
    free = {*free, *(option.name for option in COMMAND)}
    fixed = {flag: setting.name for setting in every if setting.name not in free for flag in setting.flags}
    for word in arguments:
        flag = spelled(word).partition("=")[0]
        if flag in fixed or flag.replace("--no-", "--", 1) in fixed:
            raise InvalidRequest(
                f"{flag} cannot change in a run; to change it, start a new run from its weights: multiverse train … "
                "--init-from RUN"
            )


def changeable(algorithm: str) -> list[Setting]:
    """Return the settings that a run of this algorithm may change. They have no default: the run has its own values."""
    groups = all_settings(algorithm).values()
    kept = KEPT | capabilities_of(algorithm_class(algorithm)).fixed
    return [
        dataclasses.replace(setting, default="") for group in groups for setting in group if setting.name not in kept
    ]


def _changeable_in_any() -> list[Setting]:
    """Return the settings that a run of any algorithm may change. The help names the algorithms if not all of them have
    the setting, or if their help texts differ."""
    helps, settings = dict[str, dict[str, list[str]]](), dict[str, Setting]()
    for algorithm in ALGORITHMS:
        for setting in changeable(algorithm):
            settings[setting.name] = setting
            helps.setdefault(setting.name, {}).setdefault(setting.help, []).append(algorithm)
    shared = [*ALGORITHMS]
    merged = {
        name: " ".join(text if owners == shared else f"{', '.join(owners)}: {text}" for text, owners in texts.items())
        for name, texts in helps.items()
    }
    return [dataclasses.replace(setting, help=merged[setting.name]) for setting in settings.values()]


def flags_of(settings: Iterable[Setting]) -> argparse.ArgumentParser:
    return parser(
        "resume", DESCRIPTION, "RUN", RUN_HELP, {"options of the command": COMMAND, "settings to change": settings}
    )


def _algorithm_of(run: str, trust: bool, given: str) -> str:
    """Return the run's algorithm, or the one given in its place. A class that this user did not write here is not
    imported."""
    from multiverse.training.runs.find_runs import find_run, find_set
    from multiverse.training.runs.origin import check_trusted
    from multiverse.training.runs.run_directory import read_mark
    from multiverse.training.saved_runs import settings_in
    from multiverse.training.validation import current_location, refuse_another

    path = find_set(run) or find_run(run).path
    config = settings_in(path)
    named = str(config.get("algorithm", DEFAULT_ALGORITHM))
    if given:
        refuse_another("algorithm", ALGORITHMS, named, given)
        return given
    if named in ALGORITHMS or ":" not in named:
        return named if named in ALGORITHMS else DEFAULT_ALGORITHM
    check_trusted(config, read_mark(path), path, trust)  # guard: a-strangers-algorithm-has-no-flags
    return current_location("algorithm", named, warn=False)

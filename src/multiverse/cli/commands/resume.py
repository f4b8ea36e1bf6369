"""`multiverse resume RUN`: go on with a run, also with other settings."""

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
from multiverse.cli.flags import WORDS, Setting, all_settings, parser, spelled, typed
from multiverse.cli.main import require, require_positive
from multiverse.cli.results import results
from multiverse.core.errors import InvalidRequest
from multiverse.training.config.build import Located
from multiverse.training.config.changes import HOLD, KEPT
from multiverse.training.config.train_config import BUDGETS

DESCRIPTION = """\
  Goes on with a run exactly where its last checkpoint was taken: an interrupted
  one to the end of its budget, a finished one with a larger budget. Weights,
  noise and every env in the middle of its episode come back as they were.
  Settings that are given go before those of the run, which keeps them.

examples:
    multiverse resume runs/CartPole-v1
    multiverse resume runs/CartPole-v1/ppo-0-20260101-120000 --env-steps 200000
    multiverse resume runs/CartPole-v1 --lr 1e-4 --executor serial"""

WHICH = (
    "The run's directory, or one above: then the run in it that was written to last. A checkpoint in it: then the run "
    "goes on from there, and what came after it goes. The directory of several seeds: all that are not done."
)
COMMAND = (
    Setting("env", str, "", "The env (ID or MODULE:NAME), for a run whose env was an object of a program."),
    Setting(
        "algorithm", str, "", "Your algorithm (MODULE:CLASS), for a run of one that was in a program, or has moved."
    ),
    Setting("network", str, "", "Your network (FILE.py:CLASS), for a run of one that was in a program, or has moved."),
    Setting(
        "trust",
        bool,
        None,
        "Call the code (module:name) and join the Ray cluster that the run names, although you did not write it here.",
    ),
    Setting("tensorboard", bool, None, "Metrics for TensorBoard too. A run that began with them goes on with them."),
    Setting(
        "without_replay",
        bool,
        None,
        "Begin with an empty replay buffer, for a run whose buffer is damaged. All else is that of the checkpoint, but "
        "the run is not bit-exact.",
    ),
    Setting(
        HOLD,
        bool,
        None,
        "With another budget, keep learning rate, clip range and exploration as they were in the last update. By "
        "default those that follow the budget follow the new one, and jump.",
    ),
    Setting("quiet", bool, None, "Print nothing but the run's directory, at its end."),
    Setting("json", bool, None, "Print a JSON object a line: start, metrics every 3 s, evaluation, end or error."),
)


def run(arguments: Sequence[str]) -> int:
    where, command, settings = resume_options(arguments)
    require_positive(**{name: settings[name] for name in BUDGETS if isinstance(settings.get(name), int | float)})
    if command["tensorboard"]:
        require("tensorboard", "tensorboard", purpose="--tensorboard")
    from multiverse.cli.display import run_and_show
    from multiverse.training.events import ResumeCommand
    from multiverse.training.progress import LinePrinter
    from multiverse.training.run import resume_run
    from multiverse.training.runs.find_runs import find_set
    from multiverse.training.seed_runs import resumed_set
    from multiverse.training.validation import ResumeOptions, RunObjects

    settings |= {HOLD: True} if command[HOLD] else {}
    voice = LinePrinter(results())
    shown: dict[str, Any] = {"quiet": bool(command["quiet"]), "as_json": bool(command["json"])}
    objects = RunObjects(algorithm=command["algorithm"] or None, network=command["network"] or None)
    if (several := find_set(where)) is not None:
        from multiverse.cli.seed_set import run_and_tell

        if command["env"] or command["tensorboard"] or command["without_replay"]:
            raise InvalidRequest(
                "--env, --tensorboard and --without-replay apply to one run: resume each of these separately"
            )
        resumed, _ = resumed_set(several, settings, objects, bool(command["trust"]))
        run_and_tell(resumed, voice, **shown)
        return 0
    objects = objects.filled(env=command["env"] or None)
    options = ResumeOptions(**{name: bool(command[name]) for name in ("trust", "tensorboard", "without_replay")})
    again = ResumeCommand(arguments=f" --env {shlex.quote(command['env'])}" if command["env"] else "")
    begin = functools.partial(resume_run, where, settings, options, objects)
    run_and_show(begin, voice, resume=again, **shown)
    return 0


def resume_options(arguments: Sequence[str]) -> tuple[str, dict[str, Any], Located]:
    """(the run, options of the command, settings). Flags follow from the run's algorithm: it is looked for first."""
    every = _changeable_in_any()
    words = [spelled(word) for word in arguments if word not in ("-h", "--help")]  # help is of the run's algorithm
    try:
        known, _ = flags_of(every).parse_known_intermixed_args(words)
    except argparse.ArgumentError:  # it is told below, with the flags that there are
        known = argparse.Namespace()
    where = next((word for word in getattr(known, WORDS, []) if Path(word).exists()), None)
    brought = known_name(getattr(known, "algorithm", ""))
    algorithm = DEFAULT_ALGORITHM if where is None else _algorithm_of(where, hasattr(known, "trust"), brought)
    settings = every if where is None else changeable(algorithm)
    _refuse_fixed(arguments, algorithm, {one.name for one in settings})
    found = typed(flags_of(settings), [*COMMAND, *settings], arguments, algorithm)
    if not found.words:
        raise InvalidRequest("which run? `multiverse resume runs/CartPole-v1`")
    if len(found.words) > 1:
        raise InvalidRequest(f"one run at a time: {found.words[0]}, or {found.words[1]}?")
    command = {one.name: found.values.pop(one.name, one.default) for one in COMMAND}
    return found.words[0], command, Located(found.values, found.flags)


def _refuse_fixed(arguments: Sequence[str], algorithm: str, free: Set[str]) -> None:
    """What a run has for its whole life has no flag here, and is told from a slip of the pen."""
    every = [one for group in all_settings(algorithm).values() for one in group]
    free = {*free, *(one.name for one in COMMAND)}
    fixed = {flag: one.name for one in every if one.name not in free for flag in one.flags}
    for word in arguments:
        flag = spelled(word).partition("=")[0]
        if flag in fixed or flag.replace("--no-", "--", 1) in fixed:
            raise InvalidRequest(f"{flag} cannot change in a run: another may begin with its weights (--init-from)")


def changeable(algorithm: str) -> list[Setting]:
    """What a run of this algorithm may go on with; nothing has a default, it has its own."""
    groups = all_settings(algorithm).values()
    kept = KEPT | capabilities_of(algorithm_class(algorithm)).fixed
    return [dataclasses.replace(one, default="") for group in groups for one in group if one.name not in kept]


def _changeable_in_any() -> list[Setting]:
    """The same of every algorithm; what not all of them have, or have with other words, says whose it is."""
    words, found = dict[str, dict[str, list[str]]](), dict[str, Setting]()
    for name in ALGORITHMS:
        for one in changeable(name):
            found[one.name] = one
            words.setdefault(one.name, {}).setdefault(one.help, []).append(name)
    shared = [*ALGORITHMS]
    told = {
        name: " ".join(text if whose == shared else f"{', '.join(whose)}: {text}" for text, whose in texts.items())
        for name, texts in words.items()
    }
    return [dataclasses.replace(one, help=told[one.name]) for one in found.values()]


def flags_of(settings: Iterable[Setting]) -> argparse.ArgumentParser:
    return parser("resume", DESCRIPTION, "RUN", WHICH, {"what to do": COMMAND, "settings from here on": settings})


def _algorithm_of(run: str, trust: bool, brought: str) -> str:
    """The run's or, where that is one of somebody's own, what is brought for it. A stranger's is not imported for its
    flags."""
    from multiverse.training.opening import settings_in
    from multiverse.training.runs.find_runs import find_run, find_set
    from multiverse.training.runs.origin import check_trusted
    from multiverse.training.runs.run_directory import read_mark
    from multiverse.training.validation import current_location, refuse_another

    where = find_set(run) or find_run(run).path
    config = settings_in(where)
    named = str(config.get("algorithm", DEFAULT_ALGORITHM))
    if brought:
        refuse_another("algorithm", ALGORITHMS, named, brought)
        return brought
    if named in ALGORITHMS or ":" not in named:
        return named if named in ALGORITHMS else DEFAULT_ALGORITHM
    check_trusted(config, read_mark(where), where, trust)  # guard: a-strangers-algorithm-has-no-flags
    return current_location("algorithm", named, warn=False)

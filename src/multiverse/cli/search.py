"""`multiverse tune ENV --search …`: hyper-parameters, searched by trials that are ordinary runs."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from multiverse.cli.commands import train
from multiverse.cli.commands.plot import write
from multiverse.cli.flags import Setting, flag_words, spelled, value_words
from multiverse.cli.main import require, require_positive
from multiverse.cli.output import print_json
from multiverse.core.errors import InvalidRequest, MultiverseError, PreflightError, counted, in_digits
from multiverse.training.config.build import Located
from multiverse.training.runs.run_directory import safe_name

DESCRIPTION = """\
  Searches hyper-parameters (extra `search`: optuna). Every trial is an
  ordinary run of its own; one that others have left behind is pruned on its
  way. The same command goes on with a search that was interrupted, or with
  more --trials. All flags of `multiverse train` are there too: a budget for
  each trial, say. At the end: the best settings as a command to type, every
  trial in search.json, and a picture (extra `plot`).

examples:
    multiverse tune CartPole-v1 --search learning_rate,batch_size
    multiverse tune CartPole-v1 --search 'lr=1e-4..1e-2,epochs=4|10|20'
          --trials 50 --env-steps 20000
    multiverse tune Pendulum-v1 --algorithm sac --search lr,tau --pruner halving"""

OWN = (
    Setting(
        "search",
        str,
        "",
        "Settings, divided by commas: NAME for the usual range, NAME=LOW..HIGH (by the logarithm, where the end is at "
        "least 10 times the beginning), or NAME=A|B|C.",
    ),
    Setting("trials", int, 20, "How many, those of earlier commands included."),
    Setting(
        "pruner",
        str,
        "median",
        "Which trials are ended early, by evaluations after every fifth of the budget: `median`, those below the "
        "median of the others, from two fifths on; `halving`, all but a third, again and again; `none`.",
    ),
    Setting("run_dir", str, "", "Where the search lies. Default: searches/<env>-<algorithm>."),
    Setting("json", bool, None, "Print search.json as well."),
)
COMMAND = (*OWN, *(one for one in train.COMMAND if one.name in ("config", "trust", "preset", "no_preset", "plan")))


def asked_for(arguments: Sequence[str]) -> bool:
    return any(spelled(word).partition("=")[0] == "--search" for word in arguments)


def run(arguments: Sequence[str]) -> int:
    options = train.train_options(arguments, COMMAND, "tune", DESCRIPTION)
    require("search", "optuna", purpose="--search")
    from multiverse.cli.search_space import space_of
    from multiverse.cli.search_study import PRUNERS, Search

    command = options.command
    require_positive(trials=command["trials"])
    if command["pruner"] not in PRUNERS:
        raise InvalidRequest(f"--pruner {command['pruner']}: one of {', '.join(PRUNERS)}")
    if sys.platform == "win32":
        raise PreflightError("--search runs every trial in a process of its own, as is not done on Windows yet")
    config = train.config_from(options)
    train.refuse_unknown(config)
    space = space_of(command["search"], config)
    train.refuse_beside(command["config"], Located(space.tried, {name: f"--search {name}" for name in space.tried}))
    path = Path(command["run_dir"] or Path("searches") / safe_name(f"{config.env}-{config.algorithm}"))
    search = Search(path, config, space, command["search"], command["pruner"])
    if done := [trial for trial in search.trials if trial.state != "running"]:
        _say(f"Going on with {path}: {len(done)} of {counted(command['trials'], 'trial')} done.")
    else:
        _say(f"Searching in {path}, {counted(command['trials'], 'trial')}:\n{space}")
    best = None if search.best is None else search.best.returned

    def tell(trial: Any) -> None:
        nonlocal best
        _say(f"trial {trial.number} ({_in_words(trial.settings)}): {_outcome(trial, best)}")
        if trial.state == "complete":
            best = trial.returned if best is None else max(best, trial.returned)

    try:
        search.run(command["trials"], tell)
    except (KeyboardInterrupt, SystemExit):
        _say(f"Interrupted. The same command goes on with it; so far: {path}")
        raise
    search.write()
    _tell_result(search, space, options)
    if command["json"]:
        print_json(search.results())
    return 0


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _in_words(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {' '.join(value_words(value))}" for name, value in settings.items())


def _outcome(trial: Any, best: float | None) -> str:
    from multiverse.cli.search_study import STAGES

    if trial.state == "failed":
        return f"failed: {trial.why}"
    told = f"return {in_digits(trial.returned)}"
    if trial.state == "complete":
        return told + (" (best so far)" if best is None or trial.returned > best else "")
    return f"{told}, pruned at {100 * trial.stage // STAGES} % of its budget"


def _tell_result(search: Any, space: Any, options: train.TrainOptions) -> None:
    trials, best = search.trials, search.best
    if best is None:
        why = next((trial.why for trial in trials if trial.why), "all were pruned")
        raise MultiverseError(f"no trial came to its end: {why}. The search is in {search.path}")
    try:
        require("plot", "matplotlib", purpose="the picture of a search")
    except PreflightError as error:
        _say(str(error))
    else:
        from multiverse.cli.figures import drawn, search_figure

        write(search.path / "search.png", drawn(search_figure(trials, space), "png"), sys.stderr)
    count = {state: sum(trial.state == state for trial in trials) for state in ("pruned", "failed")}
    rest = "".join(f", {number} {state}" for state, number in count.items() if number)
    told = f"return {in_digits(best.returned)} with {_in_words(best.settings)}"
    print(f"Best of {counted(len(trials), 'trial')}{rest}: {told}.")
    own = trials[0]
    if own.number != best.number and own.returned is not None and space.drawn_for_all(search.config):
        print(f"Without a search: return {in_digits(own.returned)} with {_in_words(own.settings)}.")
    print("The best of many was lucky too; what it is worth, on seeds of its own:")
    print(f"  {command_of(options, best.settings)}")


def command_of(options: train.TrainOptions, settings: Mapping[str, Any]) -> str:
    """What trains with these settings, and with all that was typed beside them, for five seeds."""
    words = ["multiverse", "train", *([options.env] if options.env else [])]
    kept = {name: value for name, value in options.command.items() if value and not _is_own(name)}
    for name, value in {**kept, **options.settings, **settings}.items():
        words += flag_words(name, value)
    return shlex.join([*words, "--seeds", "5"])


def _is_own(name: str) -> bool:
    return any(one.name == name for one in OWN)

"""`multiverse tune ENV`: how to run this env on this machine; with `--search`, its hyper-parameters (cli/search.py)."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from multiverse.algorithms import DEFAULT_ALGORITHM
from multiverse.cli.commands.plot import write
from multiverse.cli.main import parse, parsed_kwargs, require_positive
from multiverse.cli.output import BUSY_MACHINE, percent, print_json

DESCRIPTION = """\
Measures which executor, how many envs and how many workers collect the most
env steps per second here, with the acting of an algorithm's policy as its
training collects them. Envs are doubled until that gains less than 5 % twice
in a row, then workers as long as it gains as much. The best is told in a
sentence and written to a file, for `multiverse train --plan FILE` and
`mv.make_vec(ENV, plan=FILE)`.

With --search it tries hyper-parameters instead, by training with each.

examples:
  multiverse tune CartPole-v1
  multiverse tune HalfCheetah-v5 --algorithm sac --out cheetah.json
  multiverse tune my_module:make_env --algorithm random --num-envs 64
  multiverse tune CartPole-v1 --search 'learning_rate,batch_size=32|64|128'"""


@dataclass(frozen=True)
class Tune:
    """Options of `multiverse tune`."""

    env: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="ENV")]
    """A Gymnasium id, or module:name of something that builds an env, Gymnasium's or PettingZoo's."""
    algorithm: str = DEFAULT_ALGORITHM
    """Whose policy acts, with the settings of the env's preset; random: actions drawn beforehand, in lock-step."""
    num_envs: int | None = None
    """How many envs, if that is not to be found: it changes what is learned too."""
    workers: int | None = None
    """How many workers, if that is not to be found."""
    executors: tuple[str, ...] = ("serial", "thread", "process", "hybrid")
    """Which executors."""
    seconds: float = 0.5
    """How long each measurement takes."""
    rounds: int = 2
    """How often each is measured: the best counts."""
    env_kwargs: Annotated[str, tyro.conf.arg(metavar="JSON")] = "{}"
    """Arguments for the env, as a JSON object."""
    exhaustive: bool = False
    """Then measure every combination up to four times as many envs, and tell what the search has missed."""
    search: Annotated[str | None, tyro.conf.arg(metavar="SETTINGS")] = None
    """Another thing: hyper-parameters, learning_rate,batch_size say. `multiverse tune --search= --help` tells of it."""
    out: Annotated[str, tyro.conf.arg(metavar="FILE")] = "plan.json"
    """Where the plan goes."""
    json: bool = False
    """Print the plan as well, as one JSON object."""


def run(arguments: Sequence[str]) -> int:
    from multiverse.cli import search as hyper_parameters

    if hyper_parameters.asked_for(arguments):
        return hyper_parameters.run(arguments)
    options = parse(Tune, "tune", DESCRIPTION, arguments)
    require_positive(num_envs=options.num_envs, workers=options.workers, seconds=options.seconds, rounds=options.rounds)
    from multiverse.adapters.env_source import recipes
    from multiverse.algorithms import algorithm_class, known_name
    from multiverse.cli.comparison import machine_is_busy
    from multiverse.cli.tuning import RANDOM, Measuring, Search, checked_executors, plan_file, sentence
    from multiverse.core.plan import Plan
    from multiverse.executors import machine

    kwargs, executors = parsed_kwargs(options.env_kwargs), checked_executors(options.executors)
    (recipe,) = recipes(options.env, 1, kwargs, None)  # what is not there is one sentence, at once
    options = dataclasses.replace(options, algorithm=known_name(options.algorithm))
    if options.algorithm != RANDOM:
        algorithm_class(options.algorithm)
    cores = machine.usable_cores()
    if busy := machine_is_busy(recipe, options.seconds):
        print(BUSY_MACHINE, file=sys.stderr, flush=True)
    measure = Measuring(options.env, kwargs, options.algorithm, options.seconds, options.rounds)
    search = Search(measure, cores, lambda line: print(line, file=sys.stderr, flush=True))
    found = search.best(executors, options.num_envs, options.workers)
    about = {"env": options.env, "env_kwargs": kwargs, "algorithm": options.algorithm, "usable_cores": cores}
    about |= {"collected": measure.collected, "machine_is_busy": busy}
    told, content = sentence(search, found), plan_file(search, found, about)
    if options.exhaustive:
        best = max(search.everything(executors, found, options.num_envs), key=search.rate)
        share = 1.0 if best == found else search.in_turn([found, best])[found]
        told += f"\nOf every combination the best is {best}: measured in turn, the plan has {percent(share)} of it."
        content["share_of_best"] = share
    write(Path(options.out), f"{json.dumps(content, indent=2)}\n".encode(), sys.stderr)
    if options.json:
        print_json(content)
    else:
        print(told)
        costs = Plan(found.executor, found.workers, None, "auto", "").a_crash_costs
        print(f"Actions of {options.algorithm}, collected {measure.collected}; a crash of an env costs {costs}.")
        if options.num_envs is None and options.algorithm != RANDOM:
            print(
                f"How many envs there are changes what a run learns too, and {found.num_envs} are best for speed only: "
                "compare returns, or keep the number (--num-envs)."
            )
        if busy:
            print(BUSY_MACHINE)
        print(f"Use it: multiverse train {options.env} --plan {options.out}")
    return 0

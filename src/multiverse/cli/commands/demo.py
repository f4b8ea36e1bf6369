"""`multiverse demo`: train CartPole, then compare the speed with Gymnasium's vector envs, in under a minute."""

from __future__ import annotations

import functools
import importlib.util
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from multiverse.algorithms import DEFAULT_ALGORITHM
from multiverse.cli.main import print_wrapped, require_positive
from multiverse.cli.options import option, parse
from multiverse.cli.output import BUSY_MACHINE, ResultConsole, percent, table_of
from multiverse.core.wording import pluralize

if TYPE_CHECKING:
    from multiverse.cli.comparison import Comparison, Round
    from multiverse.measure import AnyVectorEnv

ENV, NUM_ENVS, TARGET = "CartPole-v1", 8, 475.0
SYNC, ASYNC, OURS = "gymnasium SyncVectorEnv", "gymnasium AsyncVectorEnv", "multiverse (auto)"

DESCRIPTION = f"""\
Trains {NUM_ENVS} copies of {ENV} until an evaluation on unseen seeds reaches a
mean return of {TARGET:g} (the maximum is 500), and plots the learning curve if
the extra `plot` is installed. Then measures the steps per second of one bare
env in a loop, of Gymnasium's two vector envs and of multiverse, with random
actions, beside the machine's limit (one bare loop per usable core). Takes
less than a minute. The exit code is 1 if the target is not reached.

examples:
  multiverse demo"""

HOW_TO_READ = "Every number is the median over the rounds; ratios are computed within a round."

WHAT_NEXT = f"""\
In Python:    import multiverse as mv
              envs = mv.make_vec("{ENV}", num_envs={NUM_ENVS})
              observations, infos = envs.reset(seed=7)
Your env:     multiverse train YOUR_ENV      (a Gymnasium id, or module:name)
              multiverse bench YOUR_ENV
This machine: multiverse doctor --self-test"""


@dataclass(frozen=True)
class Demo:
    """Options of `multiverse demo`."""

    train: bool = option(True, "Measure the speed only.")
    seed: int = option(0, "Seed of the training.")
    seconds: float = option(0.5, "Duration of each measurement of speed, in seconds.")
    rounds: int = option(2, "Number of rounds, each of which measures everything once.")


def run(arguments: Sequence[str]) -> int:
    options = parse(Demo, "demo", DESCRIPTION, arguments)
    require_positive(rounds=options.rounds, seconds=options.seconds)
    reached = _train(options.seed) if options.train else True
    _compare(options)
    return int(not reached)


def _train(seed: int) -> bool:
    """Train, and return whether the target was reached."""
    from multiverse.training.config.resolve import config_for
    from multiverse.training.events import run_with_sinks
    from multiverse.training.progress import LinePrinter, ProgressLines
    from multiverse.training.run import start_run

    settings = {"num_envs": NUM_ENVS, "seed": seed, "target_return": TARGET}
    config, printer = config_for(ENV, DEFAULT_ALGORITHM, settings), LinePrinter()
    printer.say(f"Training {NUM_ENVS} × {ENV} until the mean return is {TARGET:g} or more.")
    run = run_with_sinks(functools.partial(start_run, config), [ProgressLines(printer)])
    _plot(run.path)
    printer.say()
    evaluation = run.summary["evaluation"]
    return evaluation is not None and float(evaluation["mean_return"]) >= TARGET


def _plot(run: Path) -> None:
    """Plot the learning curve, or print how to get it if matplotlib is not installed."""
    if importlib.util.find_spec("matplotlib") is None:
        print(f"To plot the learning curve: pip install 'multiverse[plot]', then multiverse plot {run}")
        return
    from multiverse.cli.commands import plot

    print("Learning curve:")
    plot.run([str(run), "--out", str(run / "plot.png")])


def _compare(options: Demo) -> None:
    import multiverse as mv
    from multiverse.adapters.env_source import recipes
    from multiverse.cli.comparison import compared

    contenders = {SYNC: _sync, ASYNC: _async, OURS: lambda: mv.make_vec(ENV, NUM_ENVS)}
    (recipe,) = recipes(ENV, 1, None, None)
    comparison = compared(recipe, contenders, options.rounds, options.seconds)
    for error in comparison.failures.values():
        raise error
    _print_results(comparison)


def _sync() -> AnyVectorEnv:
    import gymnasium

    return gymnasium.make_vec(ENV, NUM_ENVS, vectorization_mode="sync")


def _async() -> AnyVectorEnv:
    """Start the workers with a handler that only records Ctrl-C: otherwise each would print a traceback."""
    import gymnasium

    interrupts: list[int] = []
    previous = signal.signal(signal.SIGINT, lambda number, _: interrupts.append(number))
    try:
        envs = gymnasium.make_vec(ENV, NUM_ENVS, vectorization_mode="async")
    finally:
        signal.signal(signal.SIGINT, previous)
    if interrupts:
        envs.close()
        raise KeyboardInterrupt
    return envs


def _print_results(comparison: Comparison) -> None:
    table = table_of(f"{NUM_ENVS} × {ENV}", ("",), ("steps/s", "×\nAsyncVectorEnv", "of the\nlimit"))

    def add_row(name: str, steps_per_s: Callable[[Round], float], style: str | None = None) -> None:
        rate = comparison.median(steps_per_s)
        times_async = comparison.median(lambda one: steps_per_s(one) / one.readings[ASYNC].steps_per_s)
        of_limit = comparison.median(lambda one: steps_per_s(one) / one.limit_steps_per_s)
        table.add_row(name, f"{rate:,.0f}", f"{times_async:.1f}", percent(of_limit), style=style)

    add_row("one bare env in a loop", lambda one: one.plain_steps_per_s)
    add_row(SYNC, lambda one: one.readings[SYNC].steps_per_s)
    add_row(ASYNC, lambda one: one.readings[ASYNC].steps_per_s)
    add_row(OURS, lambda one: one.readings[OURS].steps_per_s, style="bold")
    table.add_section()
    loops = pluralize(comparison.cores, "bare loop")
    add_row(f"the machine's limit ({loops})", lambda one: one.limit_steps_per_s)
    plan = comparison.rounds[-1].readings[OURS].plan
    ResultConsole().print(table)
    print_wrapped(f"{HOW_TO_READ}\n\nChosen on this machine: {plan}\n")
    if comparison.machine_is_busy:
        print_wrapped(f"{BUSY_MACHINE}\n")
    print(WHAT_NEXT)

"""Sets of runs that differ only in their seeds, in one directory, in parallel if there are enough cores.

runs/CartPole-v1/ppo-seeds-0-4-20260102-153000/
  config.yaml  origin.json       as in a run
  seeds.json                     the seeds; of finished runs their returns, interquartile mean and interval
  seed-0/  seed-1/ …             the runs
"""

from __future__ import annotations

import dataclasses
import functools
import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from multiverse.algorithms import algorithm_class
from multiverse.core.errors import InvalidRequest, MultiverseError
from multiverse.core.imports import display_name
from multiverse.core.plan import whole_number
from multiverse.core.wording import format_return, pluralize
from multiverse.training.config.build import Located
from multiverse.training.config.changes import HOLD, Schedule, changed_config, without_schedules
from multiverse.training.config.files import dump_yaml
from multiverse.training.config.resolve import plain_config, saved_config
from multiverse.training.config.train_config import TrainConfig
from multiverse.training.events import ResumeCommand, Sinks, run_with_sinks
from multiverse.training.hooks import Hook
from multiverse.training.progress import LinePrinter, ShortLines, printer_for_programs
from multiverse.training.run import Run, resume_run, run_from_program, start_run
from multiverse.training.runs.files import for_json, replace_file
from multiverse.training.runs.find_runs import CONFIG, ORIGIN, SEEDS, is_run, path_of
from multiverse.training.runs.origin import mark_of, names_code, redacted
from multiverse.training.runs.records import DRAWS, INTERVAL, bootstrap_interval, interquartile_mean
from multiverse.training.runs.run_directory import fresh, read_object, read_summary, safe_name
from multiverse.training.saved_runs import may_be_marked, settings_in, trusted_config
from multiverse.training.side_by_side import in_child, run_in_processes, share_of_cores
from multiverse.training.validation import NO_OBJECTS, ResumeOptions, RunObjects, StartOptions, config_with_folders

log = logging.getLogger("multiverse")

MAX_SEEDS = 10_000

Say = Callable[[str], None]
SayOf = Callable[[int | None, str], None]
"""Prints a line about the run of a seed, or (None) about all of them."""
OneRun = Callable[[dict[str, Any]], Run]
"""Starts or resumes the run of one seed; see `run_order`."""


@dataclass(frozen=True, repr=False)
class SeedRuns(Run):
    """Runs that differ only in their seeds. `path` and `summary` are those of the set: `summary["iqm"]`,
    `summary["interval"]`."""

    runs: Mapping[int, Run]

    def rows(self) -> list[dict[str, Any]]:
        """Metrics of all runs, each row with its seed."""
        return [{"seed": seed, **row} for seed, run in self.runs.items() for row in run.rows()]

    def __repr__(self) -> str:
        return f"<SeedRuns {self.path}: {iqm_text(self.summary)}>"


# -- sets --------------------------------------------------------------------------------------------------------
def checked_count(count: Any) -> int:
    number = whole_number("seeds", count)
    if not 1 <= number <= MAX_SEEDS:
        raise InvalidRequest(f"seeds={number}: expected 1 to {MAX_SEEDS:,}")
    return number


@dataclass(frozen=True, kw_only=True)
class SeedSet:
    """A set of runs that are to be started or resumed."""

    path: Path
    config: TrainConfig
    settings: Mapping[str, Any] = field(default_factory=dict)  # new values of settings
    trust: bool = False
    names: Mapping[str, str] = field(default_factory=dict)  # new names of a user-defined `algorithm` and `network`


def new_set(config: TrainConfig, count: int, options: StartOptions) -> SeedSet:
    """Create the directory of a set of this many runs, with seeds from the config's on."""
    count = checked_count(count)
    if config.render:
        raise InvalidRequest(
            f"render shows one run in one process, and seeds={count} are several runs: leave one of them out"
        )
    last = dataclasses.replace(config, seed=config.seed + count - 1).seed  # raises if the seed is too large
    name = f"{safe_name(config.algorithm.rpartition(':')[2])}-seeds-{config.seed}-{last}"
    parent = Path(options.root) / safe_name(display_name(config.env))
    path = parent if options.run_dir is None else Path(options.run_dir)
    begun_from = None if options.init_from is None else str(path_of(options.init_from).absolute())
    try:
        if options.run_dir is None:
            path = fresh(path, f"{name}-{time.strftime('%Y%m%d-%H%M%S')}")
        elif path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise InvalidRequest(f"{path} is not empty: choose another directory, or resume the runs in it")
        path.mkdir(parents=True, exist_ok=True)
        write_config(path, config_with_folders(config))
        seeds = list(range(config.seed, last + 1))
        _write(path, {"seeds": seeds, "init_from": begun_from, "tensorboard": options.tensorboard})
    except OSError as error:
        raise InvalidRequest(f"{path} cannot be the directory of runs: {error.strerror or error}") from error
    return SeedSet(path=path, config=config)


def write_config(path: Path, config: TrainConfig, ours: bool = True) -> None:
    plain = plain_config(config)
    replace_file(path / CONFIG, dump_yaml(redacted(plain)).encode())
    if ours and names_code(plain):
        replace_file(path / ORIGIN, json.dumps({"mark": mark_of(plain)}).encode())


def _write(path: Path, content: Mapping[str, Any]) -> None:
    replace_file(path / SEEDS, f"{json.dumps(for_json(content), indent=2, allow_nan=False)}\n".encode())


def read_set(path: Path) -> dict[str, Any]:
    """Read the file `seeds.json` of a set."""
    content = read_object(path / SEEDS)
    seeds = content.get("seeds")
    if isinstance(seeds, list) and seeds and all(type(seed) is int for seed in seeds):
        return content
    raise InvalidRequest(f"{path / SEEDS} does not name the seeds: restore it, or resume each run separately")


def finished(run: Path) -> Run | None:
    """Return the run in this directory if it has finished, else None."""
    summary = read_summary(run)
    return Run(run, summary) if summary.get("finished") is True else None


# -- statistics --------------------------------------------------------------------------------------------------
def collect_results(path: Path) -> SeedRuns:
    """Return the finished runs of a set with their statistics, and write these to `seeds.json`."""
    content = read_set(path)
    runs = {seed: run for seed in content["seeds"] if (run := finished(path / f"seed-{seed}")) is not None}
    evaluations = {seed: run.summary["evaluation"] for seed, run in runs.items()}
    returns = {str(seed): float(each["mean_return"]) for seed, each in evaluations.items() if each is not None}
    content |= over_seeds(returns)
    _write(path, content)
    return SeedRuns(path, content, runs)


def over_seeds(returns: Mapping[str, float]) -> dict[str, Any]:
    """Statistics of the mean returns of several seeds."""
    values, method = list(returns.values()), {"interval_percent": INTERVAL, "draws": DRAWS}
    iqm, interval = (interquartile_mean(values), list(bootstrap_interval(values))) if values else (None, None)
    return {"returns": dict(returns), "iqm": iqm, "interval": interval, **method}


def iqm_text(summary: Mapping[str, Any]) -> str:
    """Describe the statistics: 'IQM of 5 seeds: 493.1 (95 % bootstrap interval 480.2 to 500.0)'."""
    if summary["iqm"] is None:
        return "IQM: no seed has a completed evaluation"
    count, (low, high) = len(summary["returns"]), summary["interval"]
    seeds = pluralize(count, "seed")
    interval = f"{INTERVAL:g} % bootstrap interval {format_return(low)} to {format_return(high)}"
    return f"IQM of {seeds}: {format_return(summary['iqm'])} ({interval})"


def seed_lines(runs: SeedRuns) -> list[str]:
    """Lines with the final evaluation of every seed, and their statistics."""
    returns = runs.summary["returns"]
    results = {seed: format_return(returns[str(seed)]) if str(seed) in returns else "failed" for seed in runs.runs}
    rows = [f"  {seed:>6}  {results[seed]:>10}  {runs.runs[seed].path}" for seed in runs.runs]
    return ["", f"{'seed':>8}  {'return':>10}  run", *rows, iqm_text(runs.summary)]


# -- running them ------------------------------------------------------------------------------------------------
def run_set(seed_set: SeedSet, say: SayOf, run_one: OneRun, module: str | None) -> SeedRuns:
    """Run all runs of a set that are not finished: in parallel processes, if these can get what they need (`module`:
    the one with their function `child`) and there are enough cores, or else one after the other by `run_one`.

    In processes the failure of one run does not affect the others; it is raised when these have ended.
    """
    path, (at_once, config) = seed_set.path, (1, seed_set.config)
    if module:
        at_once, config = share_of_cores(config, len(read_set(path)["seeds"]))
    orders, failed = orders_for(dataclasses.replace(seed_set, config=config)), dict[int, str]()

    def ended(seed: int, why: str | None) -> None:
        if why is not None:
            failed[seed] = why

    say(None, f"Runs: {path}")
    try:
        if at_once > 1 and module:
            run_in_processes(iter(orders.items()), at_once, module, say, ended)
        for number, (seed, order) in enumerate(orders.items() if at_once == 1 else (), 1):
            say(None, f"\nSeed {seed} ({number} of {len(orders)})")
            run_one(order)
    finally:
        results = collect_results(path)
    if failed:
        seed, why = next(iter(failed.items()))
        more = f", and {len(failed) - 1} more" if len(failed) > 1 else ""
        others = "The others have finished; " if len(failed) < len(read_set(path)["seeds"]) else ""
        raise MultiverseError(f"seed {seed}{more} failed: {why}. {others}{path} can be resumed")
    return results


def with_seeds(say: Say) -> SayOf:
    """Return a printer whose lines about one seed begin with it."""
    return lambda seed, line: say(line if seed is None else f"seed {seed} | {line}")


def orders_for(seed_set: SeedSet) -> dict[int, dict[str, Any]]:
    """Return seed → order (JSON) for all runs that are not finished; with new settings also for finished ones."""
    content, orders = read_set(seed_set.path), {}
    for seed in content["seeds"]:
        run = seed_set.path / f"seed-{seed}"
        order: dict[str, Any] = {"run": str(run), "seed": seed, "tensorboard": bool(content.get("tensorboard"))}
        if not is_run(run):
            config = plain_config(dataclasses.replace(seed_set.config, seed=seed))
            orders[seed] = {**order, "config": config, "init_from": content.get("init_from")}
        elif seed_set.settings or finished(run) is None:
            more = {"settings": dict(seed_set.settings), "trust": seed_set.trust, "names": dict(seed_set.names)}
            orders[seed] = {**order, **more}
    return orders


def run_order(
    order: Mapping[str, Any],
    objects: RunObjects = NO_OBJECTS,
    hooks: Sequence[Hook] = (),
    sinks: Sinks | None = None,
) -> Run:
    """Start the run of an order, if it has a `config`, or resume it. `objects`: those that only this process has."""
    run, tensorboard = Path(order["run"]), order["tensorboard"]
    if "config" not in order:
        settings, objects = {**order["settings"], **objects.schedules}, objects.filled(**order["names"])
        options = ResumeOptions(trust=order["trust"], tensorboard=tensorboard)
        return resume_run(run, settings, options, objects, hooks, sinks)
    config = saved_config(order["config"], order["run"], objects.maker)
    brought = dataclasses.replace(objects, algorithm=objects.maker)
    ours = may_be_marked(run.parent, settings_in(run.parent), brought)
    begun = StartOptions(run_dir=run, init_from=order["init_from"], tensorboard=tensorboard, ours=ours)
    return start_run(config, begun, objects, hooks, sinks)


def child(order: Mapping[str, Any]) -> int:
    """Main function of the process of one run."""
    begin, resume = functools.partial(run_order, order), ResumeCommand(in_python=True)
    return in_child(lambda: run_with_sinks(begin, [ShortLines(LinePrinter())], resume))


# -- resuming ----------------------------------------------------------------------------------------------------
def resumed_set(
    path: Path, settings: Mapping[str, Any], objects: RunObjects, trust: bool
) -> tuple[SeedSet, dict[str, Schedule]]:
    """Return (the set with new settings, which it keeps; those settings that are functions).

    The new name of a user-defined algorithm is kept by each run."""
    saved = settings_in(path)
    given_wrappers = dataclasses.replace(objects, wrappers=())  # each run checks its own
    config = trusted_config(path, saved, given_wrappers, trust, given=settings)
    kind = objects.maker or algorithm_class(config.algorithm)
    given, schedules = without_schedules(settings, kind)
    hold = {HOLD: given.pop(HOLD)} if HOLD in given else {}  # of each run, where it is
    if given:
        config = changed_config(config, given, kind)
        algorithm, network = saved.get("algorithm", config.algorithm), saved.get("network")
        kept = dataclasses.replace(config, algorithm=algorithm, network=network)
        write_config(path, kept, may_be_marked(path, saved, objects))
    named = {"algorithm": objects.algorithm_name, "network": objects.network}
    names = {name: value for name, value in named.items() if isinstance(value, str)}
    given = Located(given | hold, given.places)
    return SeedSet(path=path, config=config, settings=given, trust=trust, names=names), schedules


def run_in_program(seed_set: SeedSet, objects: RunObjects, hooks: Sequence[Hook], progress: bool) -> SeedRuns:
    """Run a set for `mv.train` and `mv.resume`."""
    voice = printer_for_programs()
    say: Say = voice.say if progress else lambda line: None
    arguments = objects.arguments()
    arguments += f", algorithm={objects.algorithm_name!r}" if objects.algorithm_name else ""
    command = ResumeCommand(in_python=True, arguments=arguments).of(seed_set.path)
    interrupted = f"Interrupted. To resume all of them: {command}"

    def run_one(order: dict[str, Any]) -> Run:
        return run_from_program(functools.partial(run_order, order, objects), hooks, progress, arguments)

    in_processes = not hooks and objects.known_elsewhere(seed_set.config)
    try:
        runs = run_set(seed_set, with_seeds(say), run_one, __name__ if in_processes else None)
    except (KeyboardInterrupt, SystemExit):
        (voice.say if progress else log.warning)(interrupted)
        raise
    for line in seed_lines(runs):
        say(line)
    return runs

"""Runs that differ only in their seeds: in one directory, side by side where cores allow, and what they say together.

runs/CartPole-v1/ppo-seeds-0-4-20260102-153000/
  config.yaml  origin.json       as those of a run
  seeds.json                     which seeds, and of those that are done returns, interquartile mean and interval
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
from multiverse.core.imports import without_folders
from multiverse.core.plan import whole_number
from multiverse.core.wording import counted, in_digits
from multiverse.training.config.build import Located
from multiverse.training.config.changes import HOLD, Schedule, changed_config, without_schedules
from multiverse.training.config.files import dump_yaml
from multiverse.training.config.train_config import TrainConfig, plain_config, saved_config
from multiverse.training.events import Sinks
from multiverse.training.hooks import Hook
from multiverse.training.objects import NO_OBJECTS, RunObjects, config_with_folders
from multiverse.training.opening import settings_in
from multiverse.training.progress import LinePrinter, ResumeCommand, ShortLines, printer_for_programs, run_with_sinks
from multiverse.training.run import Run, resume_run, start_run, watched
from multiverse.training.runs.files import for_json, replace_file
from multiverse.training.runs.find_runs import CONFIG, ORIGIN, SEEDS, is_run, path_of
from multiverse.training.runs.origin import mark_of, names_code, redacted
from multiverse.training.runs.run_directory import fresh, read_object, read_summary, safe_name
from multiverse.training.seeds import DRAWS, INTERVAL, bootstrap_interval, interquartile_mean
from multiverse.training.side_by_side import in_child, share_of_cores, side_by_side
from multiverse.training.validation import ResumeOptions, StartOptions, may_be_marked, trusted_config

log = logging.getLogger("multiverse")

MOST_SEEDS = 10_000

Say = Callable[[str], None]
SayOf = Callable[[int | None, str], None]
"""A line about the run of a seed, or (None) about all of them."""
OneRun = Callable[[dict[str, Any]], Run]
"""Begins, or goes on with, the run of one seed; see `ordered`."""


@dataclass(frozen=True, repr=False)
class SeedRuns(Run):
    """Several runs; `path` and `summary` are those of all together: `summary["iqm"]`, `summary["interval"]`."""

    runs: Mapping[int, Run]

    def rows(self) -> list[dict[str, Any]]:
        """The metrics of all of them, each row with its seed."""
        return [{"seed": seed, **row} for seed, run in self.runs.items() for row in run.rows()]

    def __repr__(self) -> str:
        return f"<SeedRuns {self.path}: {together(self.summary)}>"


# -- what they are -----------------------------------------------------------------------------------------------
def checked_count(count: Any) -> int:
    number = whole_number("seeds", count)
    if not 1 <= number <= MOST_SEEDS:
        raise InvalidRequest(f"seeds={number}: expected 1 to {MOST_SEEDS:,}")
    return number


@dataclass(frozen=True, kw_only=True)
class SeedSet:
    """Runs of a directory that are to be begun or gone on with."""

    path: Path
    config: TrainConfig
    settings: Mapping[str, Any] = field(default_factory=dict)  # from here on
    trust: bool = False
    names: Mapping[str, str] = field(default_factory=dict)  # where the user's own `algorithm` and `network` are now


def new_set(config: TrainConfig, count: int, options: StartOptions) -> SeedSet:
    """A directory for this many runs, from the config's seed on, of which each begins as `options` say."""
    count = checked_count(count)
    if config.render:
        raise InvalidRequest(
            f"render shows one run in one process, and seeds={count} are several: leave one of them out"
        )
    last = dataclasses.replace(config, seed=config.seed + count - 1).seed  # refused where it would be too large
    name = f"{safe_name(config.algorithm.rpartition(':')[2])}-seeds-{config.seed}-{last}"
    parent = Path(options.root) / safe_name(without_folders(config.env))
    path = parent if options.run_dir is None else Path(options.run_dir)
    begun_from = None if options.init_from is None else str(path_of(options.init_from).absolute())
    try:
        if options.run_dir is None:
            path = fresh(path, f"{name}-{time.strftime('%Y%m%d-%H%M%S')}")
        elif path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise InvalidRequest(f"{path} is not empty: choose another directory, or resume what is there")
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


def _write(path: Path, told: Mapping[str, Any]) -> None:
    replace_file(path / SEEDS, f"{json.dumps(for_json(told), indent=2, allow_nan=False)}\n".encode())


def read_set(path: Path) -> dict[str, Any]:
    """What `seeds.json` says."""
    said = read_object(path / SEEDS)
    seeds = said.get("seeds")
    if isinstance(seeds, list) and seeds and all(type(seed) is int for seed in seeds):
        return said
    raise InvalidRequest(f"{path / SEEDS} does not say which seeds there are: restore it, or resume each run by itself")


def finished(run: Path) -> Run | None:
    """The run in this directory if it came to its end, else None."""
    summary = read_summary(run)
    return Run(run, summary) if summary.get("finished") is True else None


# -- what they say -----------------------------------------------------------------------------------------------
def gathered(path: Path) -> SeedRuns:
    """Those that are done, and what they say together, which is in `seeds.json` from now on."""
    said = read_set(path)
    done = {seed: run for seed in said["seeds"] if (run := finished(path / f"seed-{seed}")) is not None}
    found = {seed: run.summary["evaluation"] for seed, run in done.items()}
    returns = {str(seed): float(one["mean_return"]) for seed, one in found.items() if one is not None}
    said |= over_seeds(returns)
    _write(path, said)
    return SeedRuns(path, said, done)


def over_seeds(returns: Mapping[str, float]) -> dict[str, Any]:
    """What the mean returns of several seeds say together."""
    each, told = list(returns.values()), {"interval_percent": INTERVAL, "draws": DRAWS}
    iqm, interval = (interquartile_mean(each), list(bootstrap_interval(each))) if each else (None, None)
    return {"returns": dict(returns), "iqm": iqm, "interval": interval, **told}


def together(summary: Mapping[str, Any]) -> str:
    """'IQM of 5 seeds: 493.1 (95 % bootstrap interval 480.2 to 500.0)'."""
    if summary["iqm"] is None:
        return "IQM: no seed has an evaluation that came to its end"
    count, (low, high) = len(summary["returns"]), summary["interval"]
    seeds = counted(count, "seed")
    interval = f"{INTERVAL:g} % bootstrap interval {in_digits(low)} to {in_digits(high)}"
    return f"IQM of {seeds}: {in_digits(summary['iqm'])} ({interval})"


def seed_lines(found: SeedRuns) -> list[str]:
    """Every seed's final evaluation, and what they say together; one whose evaluation failed has nothing to say."""
    returns = found.summary["returns"]
    told = {seed: in_digits(returns[str(seed)]) if str(seed) in returns else "failed" for seed in found.runs}
    rows = [f"  {seed:>6}  {told[seed]:>10}  {found.runs[seed].path}" for seed in found.runs]
    return ["", f"{'seed':>8}  {'return':>10}  run", *rows, together(found.summary)]


# -- running them ------------------------------------------------------------------------------------------------
def run_set(several: SeedSet, say: SayOf, one: OneRun, apart: str | None) -> SeedRuns:
    """Every run of a set that is not done: side by side in processes of their own, where these can have what it takes
    (`apart`: the module with their `child`) and there are cores for them, or else here, one by one (`one`).

    In processes of their own the failure of one costs the others nothing: it is raised when these are done.
    """
    path, (at_once, config) = several.path, (1, several.config)
    if apart:
        at_once, config = share_of_cores(config, len(read_set(path)["seeds"]))
    orders, failed = orders_for(dataclasses.replace(several, config=config)), dict[int, str]()

    def ended(seed: int, why: str | None) -> None:
        if why is not None:
            failed[seed] = why

    say(None, f"Runs: {path}")
    try:
        if at_once > 1 and apart:
            side_by_side(iter(orders.items()), at_once, apart, say, ended)
        for number, (seed, order) in enumerate(orders.items() if at_once == 1 else (), 1):
            say(None, f"\nSeed {seed} ({number} of {len(orders)})")
            one(order)
    finally:
        found = gathered(path)
    if failed:
        seed, why = next(iter(failed.items()))
        more = f", and {len(failed) - 1} more" if len(failed) > 1 else ""
        others = "The others are done; " if len(failed) < len(read_set(path)["seeds"]) else ""
        raise MultiverseError(f"seed {seed}{more} failed: {why}. {others}{path} can be resumed")
    return found


def in_lines(say: Say) -> SayOf:
    """What is about one seed begins with it."""
    return lambda seed, line: say(line if seed is None else f"seed {seed} | {line}")


def orders_for(several: SeedSet) -> dict[int, dict[str, Any]]:
    """By seed, what is still to be done; with other settings also for those that had come to their end."""
    said, orders = read_set(several.path), {}
    for seed in said["seeds"]:
        run = several.path / f"seed-{seed}"
        order: dict[str, Any] = {"run": str(run), "seed": seed, "tensorboard": bool(said.get("tensorboard"))}
        if not is_run(run):
            mine = plain_config(dataclasses.replace(several.config, seed=seed))
            orders[seed] = {**order, "config": mine, "init_from": said.get("init_from")}
        elif several.settings or finished(run) is None:
            more = {"settings": dict(several.settings), "trust": several.trust, "names": dict(several.names)}
            orders[seed] = {**order, **more}
    return orders


def ordered(
    order: Mapping[str, Any],
    objects: RunObjects = NO_OBJECTS,
    hooks: Sequence[Hook] = (),
    sinks: Sinks | None = None,
) -> Run:
    """The run of one seed, as a file can say it: a new one with a `config`, or one to go on with. `objects`: what only
    this process has."""
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
    """The process of one run."""
    begin, resume = functools.partial(ordered, order), ResumeCommand(in_python=True)
    return in_child(lambda: run_with_sinks(begin, [ShortLines(LinePrinter())], resume))


# -- going on ----------------------------------------------------------------------------------------------------
def resumed_set(
    path: Path, settings: Mapping[str, Any], objects: RunObjects, trust: bool
) -> tuple[SeedSet, dict[str, Schedule]]:
    """(the runs that are gone on with, those of their settings that are functions). The set keeps the settings.

    Where one's own algorithm is now, each run keeps once that is made."""
    saved = settings_in(path)
    given_wrappers = dataclasses.replace(objects, wrappers=())  # each run asks for its own
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
    names = {name: one for name, one in named.items() if isinstance(one, str)}
    given = Located(given | hold, given.places)
    return SeedSet(path=path, config=config, settings=given, trust=trust, names=names), schedules


def run_in_program(several: SeedSet, objects: RunObjects, hooks: Sequence[Hook], progress: bool) -> SeedRuns:
    """For `mv.train` and `mv.resume`."""
    voice = printer_for_programs()
    say: Say = voice.say if progress else lambda line: None
    again = objects.arguments()
    again += f", algorithm={objects.algorithm_name!r}" if objects.algorithm_name else ""
    command = ResumeCommand(in_python=True, arguments=again).of(several.path)
    interrupted = f"Interrupted. To resume all of them: {command}"

    def one(order: dict[str, Any]) -> Run:
        return watched(functools.partial(ordered, order, objects), hooks, progress, again)

    apart = not hooks and objects.known_elsewhere(several.config)
    try:
        found = run_set(several, in_lines(say), one, __name__ if apart else None)
    except (KeyboardInterrupt, SystemExit):
        (voice.say if progress else log.warning)(interrupted)
        raise
    for line in seed_lines(found):
        say(line)
    return found

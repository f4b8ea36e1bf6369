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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium

from multiverse.adapters.env_source import BUILT_IN
from multiverse.algorithms import algorithm_class
from multiverse.core.errors import InvalidRequest, MultiverseError, counted, in_digits
from multiverse.core.imports import without_folders
from multiverse.core.plan import whole_number
from multiverse.training.config.build import Located
from multiverse.training.config.changes import HOLD, changed_config, without_schedules
from multiverse.training.config.files import dump_yaml
from multiverse.training.config.train_config import TrainConfig, plain_config, saved_config
from multiverse.training.hooks import Hook
from multiverse.training.progress import LinePrinter, ResumeCommand, ShortLines, printer_for_programs, run_with_sinks
from multiverse.training.run import Run, resume_run, start_run, watched
from multiverse.training.run_sources import (
    as_name,
    config_with_folders,
    given_again,
    may_be_marked,
    saved_settings,
    trusted_config,
)
from multiverse.training.runs.files import for_json, replace_file
from multiverse.training.runs.find_runs import CONFIG, ORIGIN, SEEDS, is_run
from multiverse.training.runs.origin import mark_of, names_code, redacted
from multiverse.training.runs.run_directory import fresh, read_object, read_summary, safe_name
from multiverse.training.seeds import DRAWS, INTERVAL, bootstrap_interval, interquartile_mean
from multiverse.training.side_by_side import in_child, share_of_cores, side_by_side

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


def new_set(config: TrainConfig, count: int, run_dir: Path | str | None, root: Path | str, **how: Any) -> Path:
    """A directory for this many runs, from the config's seed on; `how` is told to each of them when it begins."""
    count = checked_count(count)
    if config.render:
        raise InvalidRequest(
            f"render shows one run in one process, and seeds={count} are several: leave one of them out"
        )
    last = dataclasses.replace(config, seed=config.seed + count - 1).seed  # refused where it would be too large
    name = f"{safe_name(config.algorithm.rpartition(':')[2])}-seeds-{config.seed}-{last}"
    path = Path(root) / safe_name(without_folders(config.env)) if run_dir is None else Path(run_dir)
    try:
        if run_dir is None:
            path = fresh(path, f"{name}-{time.strftime('%Y%m%d-%H%M%S')}")
        elif path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise InvalidRequest(f"{path} is not empty: choose another directory, or resume what is there")
        path.mkdir(parents=True, exist_ok=True)
        write_config(path, config_with_folders(config))
        _write(path, {"seeds": list(range(config.seed, last + 1)), **how})
    except OSError as error:
        raise InvalidRequest(f"{path} cannot be the directory of runs: {error.strerror or error}") from error
    return path


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
def run_set(
    path: Path,
    config: TrainConfig,
    settings: Mapping[str, Any],
    say: SayOf,
    one: OneRun,
    apart: str | None,
    trust: bool = False,
    algorithm: str | None = None,
    network: str | None = None,
) -> SeedRuns:
    """Every run of a set that is not done: side by side in processes of their own, where these can have what it takes
    (`apart`: the module with their `child`) and there are cores for them, or else here, one by one (`one`).
    `algorithm`, `network`: where one's own is now, which each run keeps.

    In processes of their own the failure of one costs the others nothing: it is raised when these are done.
    """
    at_once, config = share_of_cores(config, len(read_set(path)["seeds"])) if apart else (1, config)
    orders, failed = (
        orders_for(path, config, settings, trust=trust, algorithm=algorithm, network=network),
        dict[int, str](),
    )

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


def orders_for(path: Path, config: TrainConfig, settings: Mapping[str, Any], **how: Any) -> dict[int, dict[str, Any]]:
    """By seed, what is still to be done; with other `settings` also for those that had come to their end."""
    said, orders = read_set(path), {}
    for seed in said["seeds"]:
        run = path / f"seed-{seed}"
        order: dict[str, Any] = {"run": str(run), "seed": seed, **how, "tensorboard": bool(said.get("tensorboard"))}
        if not is_run(run):
            mine = plain_config(dataclasses.replace(config, seed=seed))
            orders[seed] = {**order, "config": mine, "init_from": said.get("init_from")}
        elif settings or finished(run) is None:
            orders[seed] = {**order, "settings": dict(settings)}
    return orders


def ordered(order: Mapping[str, Any], **more: Any) -> Run:
    """The run of one seed, as a file can say it: a new one with a `config`, or one to go on with. `more`: what only
    this process has, as `start_run` and `resume_run` take it."""
    more["tensorboard"] = order["tensorboard"]
    if "config" not in order:
        settings = {**order["settings"], **(more.pop("schedules", None) or {})}
        more = {"algorithm": order["algorithm"], "network": order.get("network"), **more}
        return resume_run(order["run"], settings, trust=order["trust"], **more)
    config = saved_config(order["config"], order["run"], more.get("algorithm"))
    ours = may_be_marked(Path(order["run"]).parent, more.get("env"), more.get("algorithm"), more.get("network"))
    return start_run(config, run_dir=order["run"], init_from=order["init_from"], ours=ours, **more)


def child(order: Mapping[str, Any]) -> int:
    """The process of one run."""
    begin, resume = functools.partial(ordered, order), ResumeCommand(in_python=True)
    return in_child(lambda: run_with_sinks(begin, [ShortLines(LinePrinter())], resume))


# -- going on ----------------------------------------------------------------------------------------------------
def set_config(
    path: Path, settings: Mapping[str, Any], trust: bool, env: Any = None, algorithm: Any = None, network: Any = None
) -> Any:
    """(the config of a set that is gone on with, its settings, and those of them that are functions). It keeps them.
    Where one's own algorithm is now, each run keeps once that is made."""
    maker, name = as_name(algorithm)
    # Each run asks for its wrappers.
    config = trusted_config(path, env, maker, None, trust, (), named=name, given=settings, network=network)
    kind = maker or algorithm_class(config.algorithm)
    given, schedules = without_schedules(settings, kind)
    hold = {HOLD: given.pop(HOLD)} if HOLD in given else {}  # of each run, where it is
    if given:
        config, own = changed_config(config, given, kind), saved_settings(path)
        kept = {"algorithm": own.get("algorithm", config.algorithm), "network": own.get("network")}
        write_config(path, dataclasses.replace(config, **kept), may_be_marked(path, env, algorithm, network))
    return config, Located(given | hold, given.places), schedules


def run_in_program(
    path: Path,
    config: TrainConfig,
    settings: Mapping[str, Any],
    hooks: Sequence[Hook],
    progress: bool,
    trust: bool = False,
    algorithm_name: str | None = None,
    **own: Any,
) -> SeedRuns:
    """For `mv.train` and `mv.resume`; `own`: what the program has, as `ordered` takes it."""
    voice = printer_for_programs()
    say: Say = voice.say if progress else lambda line: None
    own = {name: value for name, value in own.items() if value}
    again = given_again(**own) + (f", algorithm={algorithm_name!r}" if algorithm_name else "")
    interrupted = f"Interrupted. To resume all of them: {ResumeCommand(in_python=True, arguments=again).of(path)}"

    def one(order: dict[str, Any]) -> Run:
        return watched(functools.partial(ordered, order, **own), hooks, progress, again)

    apart = not hooks and own.keys() <= {"env", "wrappers"} and _known_by_name(config, own.get("env"))
    try:
        found = run_set(path, config, settings, in_lines(say), one, __name__ if apart else None, trust, algorithm_name)
    except (KeyboardInterrupt, SystemExit):
        (voice.say if progress else log.warning)(interrupted)
        raise
    for line in seed_lines(found):
        say(line)
    return found


def _known_by_name(config: TrainConfig, env: Any) -> bool:
    """Whether another process finds the env and its wrappers: an id may be one that only this program registers."""
    if not isinstance(env, str | None) or any(":" not in name for name in config.wrappers):
        return False
    module, colon, _ = config.env.partition(":")
    if colon or config.env in BUILT_IN:
        return module != "__main__"
    found = gymnasium.registry.get(config.env)
    return found is not None and str(found.entry_point).startswith(("gymnasium.", "multiverse."))

"""`multiverse tune ENV`: find the fastest way to run an env on this machine; with `--search`, search hyperparameters
(`cli/search.py`).

The measurements compare executors first, then numbers of envs, then numbers of workers; each number is doubled as long
as that makes the run faster."""

from __future__ import annotations

import dataclasses
import functools
import json
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from multiverse.algorithms import DEFAULT_ALGORITHM
from multiverse.cli.commands.plot import write
from multiverse.cli.main import parsed_kwargs, print_wrapped, require_positive
from multiverse.cli.options import ENV_HELP, ENV_KWARGS_HELP, argument, option, parse
from multiverse.cli.output import BUSY_MACHINE, percent, print_json
from multiverse.core.errors import InvalidRequest, MultiverseError
from multiverse.core.plan import Plan, PlannedExecutor, WorkerOptions
from multiverse.core.wording import pluralize
from multiverse.executors import machine
from multiverse.executors.backends import BACKENDS
from multiverse.executors.choose import decide
from multiverse.measure import step_rate

if TYPE_CHECKING:
    from multiverse.training.session import Session

DESCRIPTION = """\
Finds the executor, the number of envs and the number of workers that collect
the most env steps per second on this machine, with an algorithm's policy
acting as in training. The number of envs is doubled until a doubling gains
less than 5 % twice in a row, then the number of workers as long as a doubling
gains 5 %. The result is printed, and written to a plan file for `multiverse
train --plan FILE` and `mv.make_vec(ENV, plan=FILE)`.

With --search, hyperparameters are searched instead, by training with each.

examples:
  multiverse tune CartPole-v1
  multiverse tune HalfCheetah-v5 --algorithm sac --out cheetah.json
  multiverse tune my_module:make_env --algorithm random --num-envs 64
  multiverse tune CartPole-v1 --search 'learning_rate,batch_size=32|64|128'"""


@dataclass(frozen=True)
class Tune:
    """Options of `multiverse tune`."""

    env: str = argument("ENV", ENV_HELP)
    algorithm: str = option(DEFAULT_ALGORITHM, "Algorithm whose policy acts; `random`: random actions in lock-step.")
    num_envs: int | None = option(None, "Fixed number of envs. Default: found by measuring.")
    workers: int | None = option(None, "Fixed number of workers. Default: found by measuring.")
    executors: tuple[str, ...] = option(
        ("serial", "thread", "process", "hybrid"), "Executors to measure.", metavar="EXECUTOR"
    )
    seconds: float = option(0.5, "Duration of each measurement, in seconds.")
    rounds: int = option(2, "Number of measurements of each configuration, of which the best counts.")
    env_kwargs: str = option("{}", ENV_KWARGS_HELP, metavar="JSON")
    exhaustive: bool = option(False, "Also measure every combination, and compare the plan with the best of them.")
    search: str | None = option(None, "Search hyperparameters: `multiverse tune --search= --help`.", metavar="SETTINGS")
    out: str = option("plan.json", "The plan file.", metavar="FILE")
    json: bool = option(False, "Print the plan as one JSON object instead of text.")


def run(arguments: Sequence[str]) -> int:
    from multiverse.cli import search as hyperparameters

    if hyperparameters.requested(arguments):
        return hyperparameters.run(arguments)
    options = parse(Tune, "tune", DESCRIPTION, arguments)
    require_positive(num_envs=options.num_envs, workers=options.workers, seconds=options.seconds, rounds=options.rounds)
    from multiverse.adapters.env_source import recipes
    from multiverse.algorithms import algorithm_class, known_name
    from multiverse.cli.comparison import machine_is_busy

    kwargs, executors = parsed_kwargs(options.env_kwargs), checked_executors(options.executors)
    (recipe,) = recipes(options.env, 1, kwargs, None)  # refuses an env that does not exist, before anything is measured
    options = dataclasses.replace(options, algorithm=known_name(options.algorithm))
    if options.algorithm != RANDOM:
        algorithm_class(options.algorithm)
    cores = machine.usable_cores()
    if busy := machine_is_busy(recipe, options.seconds):
        print_wrapped(BUSY_MACHINE, sys.stderr)
    measure = Measuring(options.env, kwargs, options.algorithm, options.seconds, options.rounds)
    search = Search(measure, cores, functools.partial(print_wrapped, stream=sys.stderr))
    best = search.best(executors, options.num_envs, options.workers)
    about = {"env": options.env, "env_kwargs": kwargs, "algorithm": options.algorithm, "usable_cores": cores}
    about |= {"collected": measure.collected, "machine_is_busy": busy}
    text, content = sentence(search, best), plan_file(search, best, about)
    if options.exhaustive:
        top = max(search.everything(executors, best, options.num_envs), key=search.rate)
        share = 1.0 if top == best else search.in_turn([best, top])[best]
        text += f".\nBest of all combinations: {top}. Measured in turn, the plan reaches {percent(share)} of its speed"
        content["share_of_best"] = share
    write(Path(options.out), f"{json.dumps(content, indent=2)}\n".encode(), sys.stderr)
    if options.json:
        print_json(content)
    else:
        print_wrapped(f"{text}.")
        costs = Plan(best.executor, best.workers, None, "auto", "").a_crash_costs
        print(f"Measured with actions of {options.algorithm}, collected {measure.collected}.")
        print(f"A crash of an env costs {costs}.")
        if options.num_envs is None and options.algorithm != RANDOM:
            print_wrapped(
                f"The number of envs also affects what a run learns; {best.num_envs} is only the fastest. Compare the "
                "returns, or fix the number with --num-envs."
            )
        if busy:
            print_wrapped(BUSY_MACHINE)
        print(f"To use the plan: multiverse train {shlex.quote(options.env)} --plan {shlex.quote(options.out)}")
    return 0


# -- the search ---------------------------------------------------------------------------------------------------
MIN_GAIN = 1.05  # speed-up that a doubling must reach
MAX_FAILED_DOUBLINGS = 2  # number of doublings in a row below MIN_GAIN, after which the envs are not doubled again
MIN_SHARE = 0.25  # share of the best executor's rate, below which an executor is not measured further
CLOSE = 0.75  # share of the fastest rate, above which a way is measured again, in turn with the fastest
TURNS = 3
MAX_ENVS = 1024
STEPS = 32  # rows of a rollout: enough to be collected as in training, but few enough for slow envs
RANDOM = "random"


@dataclass(frozen=True, order=True)
class Way:
    """One way to run the envs."""

    executor: PlannedExecutor
    workers: int
    num_envs: int

    def __str__(self) -> str:
        workers = f", {pluralize(self.workers, 'worker')}" if self.workers else ""
        return f"{self.executor}{workers}, {pluralize(self.num_envs, 'env')}"


Measure = Callable[[Way], float]
"""Env steps per second."""


class Search:
    """Measures ways to run an env. `rates` holds the first measurement of each, 0 of a way that fails; for those that
    were measured again in turn, `shares` holds how they compare, and `medians` their rates."""

    def __init__(self, measure: Measure, cores: int, report: Callable[[str], None]) -> None:
        self._measure, self._cores, self._report = measure, cores, report
        self.fewest = max(4, 2 * cores)  # policies act in blocks of four rows
        self.rates: dict[Way, float] = {}
        self.shares: dict[Way, float] = {}
        self.medians: dict[Way, float] = {}
        self.failures: dict[Way, MultiverseError] = {}

    def rate(self, way: Way) -> float:
        if way not in self.rates:
            try:
                self.rates[way] = self._measure(way)
                self._report(f"{way}: {self.rates[way]:,.0f} env steps/s")
            except MultiverseError as error:
                self.rates[way], self.failures[way] = 0.0, error
                self._report(f"{way}: {str(error).partition(chr(10))[0]}")
        return self.rates[way]

    def best(self, executors: Sequence[PlannedExecutor], num_envs: int | None, workers: int | None) -> Way:
        """Return the best way; a number of envs or workers that is given stays fixed."""
        first = num_envs or self.fewest
        starts = [self.way(name, first, workers) for name in executors]
        fastest = max(map(self.rate, starts))
        if not fastest:
            raise next(iter(self.failures.values()))
        for start in starts:
            if num_envs is None and self.rate(start) >= MIN_SHARE * fastest:
                self._climb(start, workers)
        fastest_way = self._fastest()
        if workers is None and fastest_way.workers:
            self._other_workers(fastest_way)
            if num_envs is None:
                self._climb(self._fastest(), self._fastest().workers)
        return self._smallest()

    def way(self, executor: PlannedExecutor, num_envs: int, workers: int | None) -> Way:
        """Return a way with the executor's default number of workers, or as many of these as it can use."""
        backend = BACKENDS[executor]
        wanted = backend.default_workers(self._cores, num_envs) if workers is None else workers
        return Way(executor, min(wanted, backend.most_workers(num_envs)), num_envs)

    def _climb(self, way: Way, workers: int | None) -> None:
        """Double the envs until a doubling fails, or gains too little twice in a row: a single slow measurement may be
        due to another program."""
        best, failed_doublings = self.rate(way), 0
        while way.num_envs < MAX_ENVS and failed_doublings < MAX_FAILED_DOUBLINGS:
            way = self.way(way.executor, 2 * way.num_envs, workers)
            if not self.rate(way):
                return
            failed_doublings = 0 if self.rate(way) >= MIN_GAIN * best else failed_doublings + 1
            best = max(best, self.rate(way))

    def _other_workers(self, way: Way) -> None:
        """Double, then halve, the workers as long as that makes the run faster."""
        most = min(BACKENDS[way.executor].most_workers(way.num_envs), 4 * self._cores)
        for factor in (2.0, 0.5):
            current = way
            while 1 <= (count := int(current.workers * factor)) <= most:
                other = dataclasses.replace(current, workers=count)
                if self.rate(other) < MIN_GAIN * self.rate(current):
                    break
                current = other

    def _fastest(self) -> Way:
        return max(self.rates, key=lambda way: self.rates[way])

    def _smallest(self) -> Way:
        """Return the smallest way that is as fast as the best: the executor with the fewest workers, and of its ways
        the one with the fewest envs. They are measured in turn, since a single measurement of each may be wrong."""
        tops = [max(ways, key=lambda way: self.rates[way]) for ways in self._by_executor().values()]
        top = min(self._as_good(tops), key=lambda way: way.workers)
        good = self._as_good(self._by_executor()[top.executor])
        return min(good, key=lambda way: (way.num_envs, way.workers, -self.rates[way]))

    def _as_good(self, ways: Sequence[Way]) -> list[Way]:
        """Return the ways that are slower than the best one by less than `MIN_GAIN`."""
        near = [way for way in ways if self.rates[way] >= CLOSE * max(self.rates[other] for other in ways)]
        shares = self.in_turn(near)
        both = [way for way in near if way in self.shares]  # the best way of its executor is in both comparisons
        scale = self.shares[both[0]] / shares[both[0]] if both else 1.0
        self.shares |= {way: scale * share for way, share in shares.items()}
        return [way for way in near if shares[way] * MIN_GAIN > max(shares.values())]

    def _by_executor(self) -> dict[PlannedExecutor, list[Way]]:
        return {name: ways for name in BACKENDS if (ways := [way for way in self.rates if way.executor == name])}

    def in_turn(self, ways: Sequence[Way]) -> dict[Way, float]:
        """Measure ways again in turn, round after round, so that other programs disturb all of them equally; return for
        each way the median of its share of the fastest in its round."""
        if len(ways) == 1:
            return {ways[0]: 1.0}
        turns = [{way: self._measure(way) for way in ways} for _ in range(TURNS)]
        shares = {way: statistics.median(turn[way] / max(turn.values()) for turn in turns) for way in ways}
        self.medians |= {way: statistics.median(turn[way] for turn in turns) for way in ways}
        self._report(f"measured in turn: {'; '.join(f'{way}: {percent(share)}' for way, share in shares.items())}")
        return shares

    def times(self, way: Way, other: Way) -> float:
        """Return how many times as fast as `other` a way is, by the measurements in turn if there are any."""
        known = self.shares if {way, other} <= self.shares.keys() else self.rates
        return known[way] / known[other]

    def everything(self, executors: Sequence[PlannedExecutor], best: Way, given: int | None = None) -> Iterator[Way]:
        """Yield every combination of executor, number of workers (doubled), and number of envs (doubled, up to four
        times that of the best way, or the one given)."""
        num_envs, powers = given or self.fewest, range((4 * self._cores).bit_length())
        while num_envs <= (given or min(4 * best.num_envs, MAX_ENVS)):
            for name in executors:
                counts = {
                    self.way(name, num_envs, wanted).workers for wanted in (None, *(2**power for power in powers))
                }
                yield from (Way(name, count, num_envs) for count in sorted(counts))
            num_envs *= 2


def sentence(search: Search, best: Way) -> str:
    """Describe the best way, its rate, and what more envs would gain, without a full stop."""
    text = f"{best}: {_rate(search, best):,.0f} env steps/s"
    others = [way for way, rate in search.rates.items() if way.executor != best.executor and rate]
    if others:
        second = max(others, key=lambda way: (way in search.shares, search.shares.get(way, search.rates[way])))
        text += f", {search.times(best, second):.2f} × as fast as the best other executor ({second})"
    twice = best.executor, 2 * best.num_envs
    if more := [search.times(way, best) for way in search.rates if (way.executor, way.num_envs) == twice]:
        gain = max(more) - 1
        text += f"; twice as many envs are {percent(abs(gain))} {'faster' if gain >= 0 else 'slower'}"
    return text


def _rate(search: Search, way: Way) -> float:
    """Return the rate measured in turn, which decides between ways, or else the first measurement."""
    return search.medians.get(way, search.rates[way])


def plan_file(search: Search, best: Way, about: Mapping[str, Any]) -> dict[str, Any]:
    """Return what `make_vec(plan=…)` and `train --plan` read, and the measurements behind it."""
    chosen = decide(best.executor, [None] * best.num_envs, WorkerOptions(count=best.workers or None))  # type: ignore[list-item]
    plan = dataclasses.asdict(dataclasses.replace(chosen, why=f"tune: {sentence(search, best)}"))
    tried = [
        {**dataclasses.asdict(way), "env_steps_per_s": rate}
        | ({"in_turn": search.shares[way]} if way in search.shares else {})
        for way, rate in search.rates.items()
    ]
    return {**plan, "num_envs": best.num_envs, **about, "env_steps_per_s": _rate(search, best), "tried": tried}


# -- how fast one way is -------------------------------------------------------------------------------------------
@dataclass
class Measuring:
    """Measures env steps per second with this algorithm's policy acting as in training, or with random actions in
    lock-step (`random`). The best of `rounds` counts, since other programs can only make a measurement slower."""

    env: str
    env_kwargs: Mapping[str, Any]
    algorithm: str
    seconds: float
    rounds: int
    collected: str = "in lock-step"  # or where the rollouts are collected

    def __call__(self, way: Way) -> float:
        return self._stepped(way) if self.algorithm == RANDOM else self._collected(way)

    def _stepped(self, way: Way) -> float:
        import multiverse as mv

        workers, kwargs = way.workers or None, dict(self.env_kwargs) or None
        with mv.make_vec(self.env, way.num_envs, way.executor, workers=workers, env_kwargs=kwargs) as envs:
            return max(step_rate(envs, self.seconds) for _ in range(self.rounds))

    def _collected(self, way: Way) -> float:
        from multiverse.rollouts.rollout_arrays import collected_in_workers
        from multiverse.training.learners import algorithm_maker
        from multiverse.training.session import Session

        config = config_of_way(self.env, self.env_kwargs, self.algorithm, way)
        session = Session(config, config.env, algorithm_maker(config))
        try:
            portable = all(
                collected_in_workers(learner.policy(), learner.steps_per_env) for learner in session.learners
            )
            self.collected = "where the envs run" if portable else "in the caller"
            session.begin()
            self._rollouts(session, 0.0)
            return max(self._rollouts(session, self.seconds) for _ in range(self.rounds))
        finally:
            session.close()

    def _rollouts(self, session: Session, seconds: float) -> float:
        """Collect rollouts for this many seconds, at least one; return the env steps per second."""
        steps, began_at = 0, time.perf_counter()
        while steps == 0 or time.perf_counter() - began_at < seconds:
            session.collect(lambda: False)
            steps += session.env_steps
        return steps / (time.perf_counter() - began_at)


def config_of_way(env: str, env_kwargs: Mapping[str, Any], algorithm: str, way: Way) -> Any:
    """Return the config of the env's preset, run in this way, with short rollouts that are collected as in training."""
    from multiverse.training.config.resolve import config_for

    given: dict[str, Any] = {"num_envs": way.num_envs, "executor": way.executor, "workers": way.workers or None}
    given |= {"env_kwargs": dict(env_kwargs), "evaluation_envs": 1}
    config = config_for(env, algorithm, given)
    longest = getattr(config.settings, "steps_per_env", STEPS)
    if longest <= STEPS:
        return config
    return config_for(env, algorithm, {**given, "steps_per_env": STEPS})


def checked_executors(names: Sequence[str]) -> list[PlannedExecutor]:
    if not names or any(name not in BACKENDS for name in names):
        raise InvalidRequest(f"--executors {' '.join(names)}: expected some of {', '.join(BACKENDS)}")
    return [name for name in BACKENDS if name in names]

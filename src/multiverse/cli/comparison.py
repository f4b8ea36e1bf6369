"""Contenders measured in turn beside the plain loop and the machine's limit, round after round, and summed up."""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import psutil

from multiverse.adapters.env_source import Recipe
from multiverse.cli.output import Progress
from multiverse.core.errors import MultiverseError, counted
from multiverse.core.plan import Plan
from multiverse.measure import AnyVectorEnv, BareLoops, descendants, private_memory_mb, step_rate

BUSY_ABOVE = 0.1
"""Of a bare loop's time, spent waiting for a core: loops that have the cores to themselves hardly wait."""

Make = Callable[[], AnyVectorEnv]


@dataclass(frozen=True, slots=True)
class Reading:
    """What one contender showed in one round."""

    steps_per_s: float
    start_up_s: float
    processes: int  # that it started
    mb_per_process: float | None  # private; None without processes, or where it cannot be read
    plan: Plan | None  # ours have one


@dataclass(frozen=True, slots=True)
class Round:
    """One turn of everything."""

    limit_steps_per_s: float
    plain_steps_per_s: float
    waited_share: float | None = None  # of the limit's loops
    readings: dict[str, Reading] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Result:
    """One contender over all rounds: medians, the ratios of what was measured in the same round."""

    steps_per_s: float
    of_the_limit: float
    times_plain_loop: float
    start_up_s: float
    processes: int
    mb_per_process: float | None
    plans: tuple[Plan, ...]  # ours, of each round: `auto` may decide anew
    steps_per_s_by_round: tuple[float, ...]


class Comparison:
    """Contenders beside the plain loop and the machine's limit, everything in turn, round after round."""

    def __init__(self, loops: BareLoops, contenders: Mapping[str, Make]) -> None:
        self.rounds: list[Round] = []
        self.failures: dict[str, MultiverseError] = {}
        self.cores = loops.cores
        self._loops, self._contenders = loops, contenders

    def run_round(self, seconds: float, report: Callable[[str], None]) -> None:
        """Measure everything once, each contender made anew; `report` is told what comes next.

        A contender that fails does not keep the others from their turn, and is not asked again.
        """
        report("the machine's limit")
        limit, waited_share = self._loops.machine_limit(seconds), self._loops.waited_share
        report("plain loop")
        found = Round(limit, self._loops.bare_rate(seconds), waited_share)
        for name, make in self._contenders.items():
            report(name)
            try:
                if name not in self.failures:
                    found.readings[name] = read_contender(make, seconds)
            except MultiverseError as error:
                self.failures[name] = error
        self.rounds.append(found)

    def median(self, value: Callable[[Round], float]) -> float:
        """The median of what `value` makes of each round."""
        return statistics.median(value(one) for one in self.rounds)

    @property
    def machine_is_busy(self) -> bool:
        """Whether others were using the cores too: then the figures say more about them than about the envs."""
        return max(one.waited_share or 0.0 for one in self.rounds) > BUSY_ABOVE

    def result(self, name: str) -> Result | MultiverseError:
        """What a contender showed, or how it failed."""
        if name in self.failures:
            return self.failures[name]
        readings = [one.readings[name] for one in self.rounds]
        memory = [r.mb_per_process for r in readings if r.mb_per_process is not None]
        return Result(
            steps_per_s=self.median(lambda one: one.readings[name].steps_per_s),
            of_the_limit=self.median(lambda one: one.readings[name].steps_per_s / one.limit_steps_per_s),
            times_plain_loop=self.median(lambda one: one.readings[name].steps_per_s / one.plain_steps_per_s),
            start_up_s=self.median(lambda one: one.readings[name].start_up_s),
            processes=readings[-1].processes,
            mb_per_process=statistics.median(memory) if memory else None,
            plans=tuple(r.plan for r in readings if r.plan is not None),
            steps_per_s_by_round=tuple(r.steps_per_s for r in readings),
        )


def compared(recipe: Recipe, contenders: Mapping[str, Make], rounds: int, seconds: float) -> Comparison:
    """Every contender beside the bare loops of `recipe`, in every round, with progress on standard error."""
    others = counted(len(contenders), "contender")
    with Progress(rounds * (2 + len(contenders))) as progress, BareLoops(recipe) as loops:
        comparison = Comparison(loops, contenders)
        for number in range(1, rounds + 1):
            name = f"round {number} of {rounds}"
            progress.begin(f"{name}: the machine's limit, the plain loop and {others}, {seconds:g} s each")
            comparison.run_round(seconds, functools.partial(progress.next, during=f"{name}: "))
        return comparison


def machine_is_busy(recipe: Recipe, seconds: float) -> bool:
    """A look before something is measured: whether bare loops of this env, one on each core, have to wait for one."""
    try:
        with BareLoops(recipe) as loops:
            loops.machine_limit(seconds)
            return (loops.waited_share or 0.0) > BUSY_ABOVE
    except MultiverseError:  # it does not run in processes: that is said where it is measured
        return False


def read_contender(make: Make, seconds: float) -> Reading:
    """Make it, step it, look at its processes, close it."""
    before = descendants()
    begun = time.perf_counter()
    envs = make()
    start_up_s = time.perf_counter() - begun
    try:
        pids = descendants() - before
        steps_per_s = step_rate(envs, seconds)
        return Reading(steps_per_s, start_up_s, len(pids), _mean_private_mb(pids), getattr(envs, "plan", None))
    finally:
        envs.close()


def _mean_private_mb(pids: Iterable[int]) -> float | None:
    try:
        return statistics.mean([private_memory_mb(pid) for pid in pids])
    except (statistics.StatisticsError, psutil.Error):
        return None

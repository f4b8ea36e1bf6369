"""The best way to run an env on this machine, found by measuring: executors, then how many envs, then how many workers,
doubled as long as that gains something."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from multiverse.cli.output import percent
from multiverse.core.errors import InvalidRequest, MultiverseError, counted
from multiverse.core.plan import PlannedExecutor, WorkerOptions
from multiverse.executors.backends import BACKENDS
from multiverse.executors.choose import decide
from multiverse.measure import step_rate

if TYPE_CHECKING:
    from multiverse.training.session import Session

WORTH_IT = 1.05  # a doubling must gain this much
IN_VAIN = 2  # so many doublings in a row that gain less end the search for envs
HOPELESS = 0.25  # of the best executor with as many envs: it is not followed any further
CLOSE = 0.75  # of the fastest: measured again, in turn with it
TURNS = 3
MOST_ENVS = 1024
STEPS = 32  # of a rollout: enough to be collected as in training, and short for slow envs too
RANDOM = "random"


@dataclass(frozen=True, order=True)
class Way:
    """One way to run the envs."""

    executor: PlannedExecutor
    workers: int
    num_envs: int

    def __str__(self) -> str:
        workers = f", {counted(self.workers, 'worker')}" if self.workers else ""
        return f"{self.executor}{workers}, {counted(self.num_envs, 'env')}"


Measure = Callable[[Way], float]
"""Env steps per second."""


class Search:
    """Measures ways to run an env; `rates` is what a first look at each found, 0 of a way that fails. Of those that
    were then measured in turn `shares` says how they compare, and `medians` what they had."""

    def __init__(self, measure: Measure, cores: int, tell: Callable[[str], None]) -> None:
        self._measure, self._cores, self._tell = measure, cores, tell
        self.fewest = max(4, 2 * cores)  # policies act in blocks of four rows
        self.rates: dict[Way, float] = {}
        self.shares: dict[Way, float] = {}
        self.medians: dict[Way, float] = {}
        self.failures: dict[Way, MultiverseError] = {}

    def rate(self, way: Way) -> float:
        if way not in self.rates:
            try:
                self.rates[way] = self._measure(way)
                self._tell(f"{way}: {self.rates[way]:,.0f} env steps/s")
            except MultiverseError as error:
                self.rates[way], self.failures[way] = 0.0, error
                self._tell(f"{way}: {str(error).partition(chr(10))[0]}")
        return self.rates[way]

    def best(self, executors: Sequence[PlannedExecutor], num_envs: int | None, workers: int | None) -> Way:
        """What is given stays as it is."""
        first = num_envs or self.fewest
        starts = [self.way(name, first, workers) for name in executors]
        fastest = max(map(self.rate, starts))
        if not fastest:
            raise next(iter(self.failures.values()))
        for start in starts:
            if num_envs is None and self.rate(start) >= HOPELESS * fastest:
                self._climb(start, workers)
        found = self._fastest()
        if workers is None and found.workers:
            self._other_workers(found)
            if num_envs is None:
                self._climb(self._fastest(), self._fastest().workers)
        return self._smallest()

    def way(self, executor: PlannedExecutor, num_envs: int, workers: int | None) -> Way:
        """With as many workers as the executor takes by itself, or as many of these as it has use for."""
        backend = BACKENDS[executor]
        wanted = backend.default_workers(self._cores, num_envs) if workers is None else workers
        return Way(executor, min(wanted, backend.most_workers(num_envs)), num_envs)

    def _climb(self, way: Way, workers: int | None) -> None:
        """Twice as many envs, again and again, until that gains too little twice in a row, or fails: once may be the
        doing of whoever else uses the machine."""
        best, in_vain = self.rate(way), 0
        while way.num_envs < MOST_ENVS and in_vain < IN_VAIN:
            way = self.way(way.executor, 2 * way.num_envs, workers)
            if not self.rate(way):
                return
            in_vain = 0 if self.rate(way) >= WORTH_IT * best else in_vain + 1
            best = max(best, self.rate(way))

    def _other_workers(self, way: Way) -> None:
        """Twice, or half as many, while that pays."""
        most = min(BACKENDS[way.executor].most_workers(way.num_envs), 4 * self._cores)
        for factor in (2.0, 0.5):
            now = way
            while 1 <= (count := int(now.workers * factor)) <= most:
                other = dataclasses.replace(now, workers=count)
                if self.rate(other) < WORTH_IT * self.rate(now):
                    break
                now = other

    def _fastest(self) -> Way:
        return max(self.rates, key=lambda way: self.rates[way])

    def _smallest(self) -> Way:
        """Of the executors as good as the best, the one with the fewest workers; and of its ways that with the fewest
        envs: more would gain less than a doubling must. Who is as good is found in turn: one look at each may err."""
        tops = [max(ways, key=lambda way: self.rates[way]) for ways in self._by_executor().values()]
        top = min(self._as_good(tops), key=lambda way: way.workers)
        good = self._as_good(self._by_executor()[top.executor])
        return min(good, key=lambda way: (way.num_envs, way.workers, -self.rates[way]))

    def _as_good(self, ways: Sequence[Way]) -> list[Way]:
        """Those that the best of them has not a doubling's gain over."""
        near = [way for way in ways if self.rates[way] >= CLOSE * max(self.rates[one] for one in ways)]
        shares = self.in_turn(near)
        both = [way for way in near if way in self.shares]  # the best of its executor stands for it in both comparisons
        scale = self.shares[both[0]] / shares[both[0]] if both else 1.0
        self.shares |= {way: scale * share for way, share in shares.items()}
        return [way for way in near if shares[way] * WORTH_IT > max(shares.values())]

    def _by_executor(self) -> dict[PlannedExecutor, list[Way]]:
        return {name: ways for name in BACKENDS if (ways := [way for way in self.rates if way.executor == name])}

    def in_turn(self, ways: Sequence[Way]) -> dict[Way, float]:
        """Measured again, one after the other, round after round: each one's share of the fastest in its round, in the
        median. What others do to the machine meanwhile is done to all of them."""
        if len(ways) == 1:
            return {ways[0]: 1.0}
        turns = [{way: self._measure(way) for way in ways} for _ in range(TURNS)]
        shares = {way: statistics.median(turn[way] / max(turn.values()) for turn in turns) for way in ways}
        self.medians |= {way: statistics.median(turn[way] for turn in turns) for way in ways}
        self._tell(f"in turn: {', '.join(f'{way} {percent(share)}' for way, share in shares.items())}")
        return shares

    def times(self, way: Way, other: Way) -> float:
        """How many times as fast as another it is: in turn where both were measured so, or else at first look."""
        known = self.shares if {way, other} <= self.shares.keys() else self.rates
        return known[way] / known[other]

    def everything(self, executors: Sequence[PlannedExecutor], found: Way, given: int | None = None) -> Iterator[Way]:
        """Every combination, workers doubled; up to four times as many envs as were found, unless they are given."""
        num_envs, powers = given or self.fewest, range((4 * self._cores).bit_length())
        while num_envs <= (given or min(4 * found.num_envs, MOST_ENVS)):
            for name in executors:
                counts = {self.way(name, num_envs, wanted).workers for wanted in (None, *(2**one for one in powers))}
                yield from (Way(name, count, num_envs) for count in sorted(counts))
            num_envs *= 2


def sentence(search: Search, found: Way) -> str:
    """What is best, how much that is, and what more would bring."""
    told = f"{found}: {_rate(search, found):,.0f} env steps/s"
    others = [way for way, rate in search.rates.items() if way.executor != found.executor and rate]
    if others:
        second = max(others, key=lambda way: (way in search.shares, search.shares.get(way, search.rates[way])))
        told += f", {search.times(found, second):.2f} × the best of the others ({second})"
    twice = found.executor, 2 * found.num_envs
    if more := [search.times(way, found) for way in search.rates if (way.executor, way.num_envs) == twice]:
        gain = max(more) - 1
        told += f"; twice as many envs {'gain' if gain >= 0 else 'lose'} {percent(abs(gain))}"
    return f"{told}."


def _rate(search: Search, way: Way) -> float:
    """In turn, where it was measured so: by that it was chosen."""
    return search.medians.get(way, search.rates[way])


def plan_file(search: Search, found: Way, about: Mapping[str, Any]) -> dict[str, Any]:
    """What `make_vec(plan=…)` and `train --plan` read, and what it was chosen from."""
    chosen = decide(found.executor, [None] * found.num_envs, WorkerOptions(count=found.workers or None))  # type: ignore[list-item]
    plan = dataclasses.asdict(dataclasses.replace(chosen, why=f"tune: {sentence(search, found)}"))
    tried = [
        {**dataclasses.asdict(way), "env_steps_per_s": rate}
        | ({"in_turn": search.shares[way]} if way in search.shares else {})
        for way, rate in search.rates.items()
    ]
    return {**plan, "num_envs": found.num_envs, **about, "env_steps_per_s": _rate(search, found), "tried": tried}


# -- how fast one way is -------------------------------------------------------------------------------------------
@dataclass
class Measuring:
    """Env steps per second with the acting of this algorithm's policy, as its training collects them; `random`: of
    random actions in lock-step. The best of some rounds: what others do to the machine only ever takes."""

    env: str
    env_kwargs: Mapping[str, Any]
    algorithm: str
    seconds: float
    rounds: int
    collected: str = "in lock-step"  # or by whom rollouts are filled

    def __call__(self, way: Way) -> float:
        return self._stepped(way) if self.algorithm == RANDOM else self._collected(way)

    def _stepped(self, way: Way) -> float:
        import multiverse as mv

        how: dict[str, Any] = {"workers": way.workers or None, "env_kwargs": dict(self.env_kwargs) or None}
        with mv.make_vec(self.env, way.num_envs, way.executor, **how) as envs:
            return max(step_rate(envs, self.seconds) for _ in range(self.rounds))

    def _collected(self, way: Way) -> float:
        from multiverse.rollouts.collector import collected_in_workers
        from multiverse.training.algorithm_maker import algorithm_maker
        from multiverse.training.session import Session

        config = config_of_way(self.env, self.env_kwargs, self.algorithm, way)
        session = Session(config, config.env, algorithm_maker(config))
        try:
            portable = all(collected_in_workers(one.policy(), one.steps_per_env) for one in session.learners)
            self.collected = "where the envs run" if portable else "in the caller"
            session.begin()
            self._rollouts(session, 0.0)
            return max(self._rollouts(session, self.seconds) for _ in range(self.rounds))
        finally:
            session.close()

    def _rollouts(self, session: Session, seconds: float) -> float:
        """Env steps per second of rollouts for so long; at least one."""
        steps, began_at = 0, time.perf_counter()
        while steps == 0 or time.perf_counter() - began_at < seconds:
            session.collect(lambda: False)
            steps += session.env_steps
        return steps / (time.perf_counter() - began_at)


def config_of_way(env: str, env_kwargs: Mapping[str, Any], algorithm: str, way: Way) -> Any:
    """The env's preset, run in this way; with short rollouts, but long enough to be collected as those of training."""
    from multiverse.training.config.train_config import config_for

    given: dict[str, Any] = {"num_envs": way.num_envs, "executor": way.executor, "workers": way.workers or None}
    given |= {"env_kwargs": dict(env_kwargs), "evaluation_envs": 1}
    config = config_for(env, algorithm, given)
    longest = getattr(config.settings, "steps_per_env", STEPS)
    if longest <= STEPS:
        return config
    return config_for(env, algorithm, {**given, "steps_per_env": STEPS})


def checked_executors(names: Sequence[str]) -> list[PlannedExecutor]:
    if not names or any(name not in BACKENDS for name in names):
        raise InvalidRequest(f"--executors {' '.join(names)}: some of {', '.join(BACKENDS)}")
    return [name for name in BACKENDS if name in names]

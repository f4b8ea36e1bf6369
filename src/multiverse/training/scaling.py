"""`num_envs="auto"`: choosing the number of parallel envs while a run trains.

Between two rollouts the number of envs is doubled, as long as that makes the run faster and memory allows it. If the
first doubling does not, it is halved as long as that makes the run faster. Every decision is a line of the run's
`num_envs.jsonl`, with its env steps, on the disk before it takes effect. A resumed run repeats these decisions at the
same env steps: nothing is measured twice, and the run is bit-exact.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from multiverse.core.errors import InvalidConfig
from multiverse.executors.machine import memory_available
from multiverse.training.config.budget import Clock
from multiverse.training.config.build import build
from multiverse.training.runs.files import append_line, cut, read_lines
from multiverse.training.runs.find_runs import NUM_ENVS

log = logging.getLogger("multiverse")

FILE = NUM_ENVS
FIRST_NUM_ENVS = 8
"""Number of envs with which a run begins: the default of `num_envs`."""
GAIN = 1.05
"""Factor by which another number of envs must be faster."""
MEASURED_ROLLOUTS, MEASURED_S = 2, 3.0
"""Minimum of a measurement, after the first rollout, in which workers and caches warm up."""
MIN_FREE_MEMORY = 0.1
"""Memory that must be free on the machine, as a share of what the run uses; with less, half the envs are closed."""
MEMORY_CHECK_S = 10.0


@dataclass(frozen=True)
class Decision:
    """A line of the file: at these env steps, after measuring `tried` envs, the run continues with `num_envs`."""

    env_steps: int
    tried: int
    env_steps_per_s: float | None  # None: memory decided
    num_envs: int
    settled: bool  # no other number will be tried
    why: str

    def __post_init__(self) -> None:
        if self.num_envs < 1 or self.tried < 1 or self.env_steps < 0:
            values = f"num_envs={self.num_envs}, tried={self.tried}, env_steps={self.env_steps}"
            raise InvalidConfig("num_envs.jsonl", f"a line is invalid ({values}): expected at least 1, 1 and 0")


class Throughput:
    """Measures env steps per second of collecting and learning, over several rollouts with the same number of envs."""

    def __init__(self) -> None:
        self._num_envs, self._rollouts, self._from = 0, 0, (0, 0.0)

    def __call__(self, clock: Clock, num_envs: int) -> float | None:
        """Return env steps per second, or None while there are too few rollouts; called before every rollout."""
        spent_s = clock.act_s + clock.step_s + clock.learn_s
        self._rollouts = self._rollouts + 1 if num_envs == self._num_envs else 0
        self._num_envs = num_envs
        if self._rollouts <= 1:
            self._from = clock.env_steps, spent_s
        took_s = spent_s - self._from[1]
        if self._rollouts <= MEASURED_ROLLOUTS or took_s < MEASURED_S:
            return None
        return (clock.env_steps - self._from[0]) / took_s


class Scaling:
    """The decisions of one run: repeats those of its file, then makes new ones."""

    def __init__(self, run: Path, decided_at: int = -1) -> None:
        """`decided_at`: env steps of the last decision that has taken effect in the run's present state; -1: none."""
        self._path, self.decided_at = run / FILE, decided_at
        self.throughput: Callable[[Clock, int], float | None] = Throughput()
        self.memory: Callable[[], tuple[int, int]] = held_and_available
        if self._path.exists():
            cut(self._path, self._path.stat().st_size)  # remove a line that was not written completely
        lines = [build(Decision, line, str(self._path)) for line in read_lines(self._path)]
        self._to_come = [line for line in lines if line.env_steps > decided_at]
        self.last: Decision | None = None
        self._rates: dict[int, float] = {}
        self._memory_checked_at = 0.0  # seconds of the run
        for line in lines:
            if line.env_steps <= decided_at:
                self._take(line)

    def next(self, clock: Clock, num_envs: int) -> int:
        """Return the number of envs for the next rollout; called before each one."""
        while self._to_come and self._to_come[0].env_steps < clock.env_steps:
            log.warning("%s: skipped a decision that was due before %s env steps", self._path, f"{clock.env_steps:,}")
            self._to_come.pop(0)
        if self._to_come:  # guard: decisions-are-replayed
            decided = self._to_come.pop(0) if self._to_come[0].env_steps == clock.env_steps else None
        elif (decided := self._decision(clock, num_envs)) is not None:
            append_line(self._path, asdict(decided))
        if decided is None:
            return num_envs
        self._take(decided)
        if decided.num_envs != num_envs:
            log.info("from %s env steps on: %d envs (%s)", f"{decided.env_steps:,}", decided.num_envs, decided.why)
        return decided.num_envs

    def _decision(self, clock: Clock, num_envs: int) -> Decision | None:
        if num_envs > 1 and clock.seconds - self._memory_checked_at >= MEMORY_CHECK_S:
            self._memory_checked_at = clock.seconds
            used, free = self.memory()
            if free < MIN_FREE_MEMORY * used:
                why = f"{free / 2**20:,.0f} MiB of memory are free, and the run uses {used / 2**20:,.0f}"
                return Decision(clock.env_steps, num_envs, None, num_envs // 2, True, why)
        if self.last is not None and self.last.settled:
            return None
        if (rate := self.throughput(clock, num_envs)) is None:
            return None
        used, free = self.memory()
        rates = {**self._rates, num_envs: rate}
        chosen, settled = next_to_try(rates, may_grow=free >= used)
        measured = ", ".join(f"{count}: {each:,.0f}" for count, each in sorted(rates.items()))
        short = "" if free >= used else "; too little memory for more"
        return Decision(clock.env_steps, num_envs, rate, chosen, settled, f"env steps/s by envs: {measured}{short}")

    def _take(self, decision: Decision) -> None:
        self.last, self.decided_at = decision, decision.env_steps
        if decision.env_steps_per_s is not None:
            self._rates[decision.tried] = decision.env_steps_per_s


def next_to_try(rates: Mapping[int, float], may_grow: bool) -> tuple[int, bool]:
    """Return (number of envs to continue with, whether it is final), from the env steps per second measured so far."""
    best = FIRST_NUM_ENVS
    while rates.get(2 * best, 0.0) > GAIN * rates[best]:
        best *= 2
    if may_grow and 2 * best not in rates:
        return 2 * best, False
    if best == FIRST_NUM_ENVS:
        while rates.get(best // 2, 0.0) > GAIN * rates[best]:
            best //= 2
        if best > 1 and best // 2 not in rates:
            return best // 2, False
    return best, True


def held_and_available() -> tuple[int, int]:
    """Return the bytes that this process and its children use (doubling envs doubles them at most), and free bytes."""
    this, used = psutil.Process(), 0
    for process in [this, *this.children(recursive=True)]:
        try:
            used += process.memory_full_info().uss
        except (psutil.Error, OSError, AttributeError):  # it has just ended, or belongs to another user
            continue
    return used, memory_available()

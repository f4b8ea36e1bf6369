"""`num_envs="auto"`: how many envs a run steps side by side is tried out while it trains.

Between two rollouts the number of envs is doubled, as long as that makes the run faster and memory allows it; where not
even the first doubling does, it is halved as long as that does. Every decision is a line of the run's
`num_envs.jsonl`, with its env step, on the disk before it takes effect. Where a resumed run comes to those env steps
again the line is followed: nothing is measured twice, and the run stays the one that it was.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import psutil

from multiverse.core.errors import InvalidConfig
from multiverse.executors.machine import memory_available
from multiverse.training.config.budget import Clock
from multiverse.training.config.build import build
from multiverse.training.runs.files import LineFile, cut, read_lines
from multiverse.training.runs.find_runs import NUM_ENVS

log = logging.getLogger("multiverse")

FILE = NUM_ENVS
FIRST = 8
"""Envs that a run begins with: the default of `num_envs`."""
GAIN = 1.05
"""Another number of envs must be so much faster."""
MEASURED_ROLLOUTS, MEASURED_S = 2, 3.0
"""At least, after the first, in which workers and caches warm up."""
LEAST_LEFT = 0.1
"""Of the memory that the run holds, what must be left on the machine; else it goes on with half as many envs."""
LOOKED_EVERY_S = 10.0


def first_num_envs(setting: int | Literal["auto"]) -> int:
    """Number of envs with which a run begins."""
    return FIRST if setting == "auto" else setting


@dataclass(frozen=True)
class Decision:
    """A line of the file: at these env steps, after trying one number of envs, to go on with another, or the same."""

    env_steps: int
    tried: int
    env_steps_per_s: float | None  # None: memory decided
    num_envs: int
    settled: bool  # nothing more is tried
    why: str

    def __post_init__(self) -> None:
        if self.num_envs < 1 or self.tried < 1 or self.env_steps < 0:
            raise InvalidConfig("num_envs", f"{self.num_envs} after {self.tried} at {self.env_steps} env steps")


class Throughput:
    """Env steps a second of collecting and learning, once so many rollouts with these envs are known."""

    def __init__(self) -> None:
        self._num_envs, self._rollouts, self._from = 0, 0, (0, 0.0)

    def __call__(self, clock: Clock, num_envs: int) -> float | None:
        """Asked before every rollout; None: not known yet."""
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
    """The decisions of one run: those that it has written, and the next one."""

    def __init__(self, run: Path, decided_at: int = -1) -> None:
        """`decided_at`: env steps of the last decision that the run as it is now has taken; -1: none."""
        self._path, self.decided_at = run / FILE, decided_at
        self.throughput: Callable[[Clock, int], float | None] = Throughput()
        self.memory: Callable[[], tuple[int, int]] = held_and_available
        if self._path.exists():
            cut(self._path, self._path.stat().st_size)  # half a line is none
        lines = [build(Decision, line, str(self._path)) for line in read_lines(self._path)]
        self._to_come = [line for line in lines if line.env_steps > decided_at]
        self.last: Decision | None = None
        self._rates: dict[int, float] = {}
        self._looked_at = 0.0  # seconds of the run
        for line in lines:
            if line.env_steps <= decided_at:
                self._take(line)

    def next(self, clock: Clock, num_envs: int) -> int:
        """How many envs the next rollout is collected with; asked before each."""
        while self._to_come and self._to_come[0].env_steps < clock.env_steps:
            log.warning("%s: at %s env steps there is no decision to take", self._path, f"{clock.env_steps:,}")
            self._to_come.pop(0)
        if self._to_come:  # guard: decisions-are-replayed
            decided = self._to_come.pop(0) if self._to_come[0].env_steps == clock.env_steps else None
        elif (decided := self._decision(clock, num_envs)) is not None:
            self._write(decided)
        if decided is None:
            return num_envs
        self._take(decided)
        if decided.num_envs != num_envs:
            log.info("from %s env steps on: %d envs (%s)", f"{decided.env_steps:,}", decided.num_envs, decided.why)
        return decided.num_envs

    def _decision(self, clock: Clock, num_envs: int) -> Decision | None:
        if num_envs > 1 and clock.seconds - self._looked_at >= LOOKED_EVERY_S:
            self._looked_at = clock.seconds
            held, left = self.memory()
            if left < LEAST_LEFT * held:
                why = f"{left / 2**20:,.0f} MiB of memory are left, and the run holds {held / 2**20:,.0f}"
                return Decision(clock.env_steps, num_envs, None, num_envs // 2, True, why)
        if self.last is not None and self.last.settled:
            return None
        if (rate := self.throughput(clock, num_envs)) is None:
            return None
        held, left = self.memory()
        chosen, settled = next_to_try({**self._rates, num_envs: rate}, may_grow=left >= held)
        told = ", ".join(f"{n}: {one:,.0f}" for n, one in sorted({**self._rates, num_envs: rate}.items()))
        short = "" if left >= held else "; no more, for want of memory"
        return Decision(clock.env_steps, num_envs, rate, chosen, settled, f"env steps/s by envs: {told}{short}")

    def _write(self, decision: Decision) -> None:
        file = LineFile(self._path)
        try:
            file.append([asdict(decision)])
            file.sync()
        finally:
            file.close()

    def _take(self, decision: Decision) -> None:
        self.last, self.decided_at = decision, decision.env_steps
        if decision.env_steps_per_s is not None:
            self._rates[decision.tried] = decision.env_steps_per_s


def next_to_try(rates: Mapping[int, float], may_grow: bool) -> tuple[int, bool]:
    """(how many envs to go on with, whether that is the end of it), by the env steps a second of those tried so far."""
    best = FIRST
    while rates.get(2 * best, 0.0) > GAIN * rates[best]:
        best *= 2
    if may_grow and 2 * best not in rates:
        return 2 * best, False
    if best == FIRST:
        while rates.get(best // 2, 0.0) > GAIN * rates[best]:
            best //= 2
        if best > 1 and best // 2 not in rates:
            return best // 2, False
    return best, True


def held_and_available() -> tuple[int, int]:
    """Bytes that this process and its children have for themselves, and that can still be had. As many envs again take
    at most as much again."""
    mine, held = psutil.Process(), 0
    for process in [mine, *mine.children(recursive=True)]:
        try:
            held += process.memory_full_info().uss
        except (psutil.Error, OSError, AttributeError):  # it has just ended, or is not ours to look at
            continue
    return held, memory_available()

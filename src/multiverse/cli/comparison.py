"""Measurements that are compared: vector envs beside a plain loop and the limit of the machine, and envs in one process
beside envs in several.

What is compared is measured in turn, round after round; the results are medians over the rounds.
"""

from __future__ import annotations

import contextlib
import functools
import os
import statistics
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import psutil
from gymnasium.spaces.utils import flatdim

import multiverse as mv
from multiverse.adapters.env_source import Recipe
from multiverse.cli.doctor_checks import answer_of
from multiverse.cli.output import Progress
from multiverse.core.errors import MultiverseError
from multiverse.core.plan import IN_CALLER, IN_PROCESSES, Plan
from multiverse.core.wording import counted
from multiverse.measure import AnyVectorEnv, BareLoops, descendants, private_memory_mb, step_rate

BUSY_ABOVE = 0.1
"""Share of its time that a bare loop waits for a core on a busy machine; on an idle one it hardly waits."""
SIMULATED, TRUE = IN_CALLER, IN_PROCESSES
WORTH_IT = 1.1
"""Speed-up from which on more processes are worth having."""
RGB_ARRAY = "rgb_array"

Make = Callable[[], AnyVectorEnv]


@contextlib.contextmanager
def started(make: Make) -> Iterator[tuple[Any, float, set[int]]]:
    """Yield a vector env, the seconds that it took to start, and the processes that it started; then close it."""
    before = descendants()
    begun = time.perf_counter()
    envs = make()
    start_up_s = time.perf_counter() - begun
    with contextlib.closing(envs):
        yield envs, start_up_s, descendants() - before


# -- any vector envs -----------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Reading:
    """Measurements of one contender in one round."""

    steps_per_s: float
    start_up_s: float
    processes: int  # that it started
    mb_per_process: float | None  # private; None without processes, or where it cannot be read
    plan: Plan | None  # of our own vector envs


@dataclass(frozen=True, slots=True)
class Round:
    """Measurements of one round."""

    limit_steps_per_s: float
    plain_steps_per_s: float
    waited_share: float | None = None  # of the loops that measure the limit
    readings: dict[str, Reading] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Result:
    """One contender over all rounds: medians, where ratios are those of measurements of the same round."""

    steps_per_s: float
    of_the_limit: float
    times_plain_loop: float
    start_up_s: float
    processes: int
    mb_per_process: float | None
    plans: tuple[Plan, ...]  # of each round, if the vector env is ours: `auto` may decide differently
    steps_per_s_by_round: tuple[float, ...]


class Comparison:
    """Contenders beside the plain loop and the limit of the machine, measured in turn, round after round."""

    def __init__(self, loops: BareLoops, contenders: Mapping[str, Make]) -> None:
        self.rounds: list[Round] = []
        self.failures: dict[str, MultiverseError] = {}
        self.cores = loops.cores
        self._loops, self._contenders = loops, contenders

    def run_round(self, seconds: float, report: Callable[[str], None]) -> None:
        """Measure everything once, with each contender made anew; `report` is told what comes next.

        A contender that fails does not stop the others, and is left out of later rounds.
        """
        report("the machine's limit")
        limit, waited_share = self._loops.machine_limit(seconds), self._loops.waited_share
        report("plain loop")
        measured = Round(limit, self._loops.bare_rate(seconds), waited_share)
        for name, make in self._contenders.items():
            report(name)
            try:
                if name not in self.failures:
                    measured.readings[name] = _reading(make, seconds)
            except MultiverseError as error:
                self.failures[name] = error
        self.rounds.append(measured)

    def median(self, value: Callable[[Round], float]) -> float:
        """Return the median over the rounds of what `value` makes of each."""
        return statistics.median(value(one) for one in self.rounds)

    @property
    def machine_is_busy(self) -> bool:
        """Whether other programs used the cores too, so that the figures say little about the envs."""
        return max(one.waited_share or 0.0 for one in self.rounds) > BUSY_ABOVE

    def result(self, name: str) -> Result | MultiverseError:
        """Return the result of a contender, or the error with which it failed."""
        if name in self.failures:
            return self.failures[name]
        readings = [one.readings[name] for one in self.rounds]
        memory = [r.mb_per_process for r in readings if r.mb_per_process is not None]
        return Result(
            steps_per_s=statistics.median(r.steps_per_s for r in readings),
            of_the_limit=self.median(lambda one: one.readings[name].steps_per_s / one.limit_steps_per_s),
            times_plain_loop=self.median(lambda one: one.readings[name].steps_per_s / one.plain_steps_per_s),
            start_up_s=statistics.median(r.start_up_s for r in readings),
            processes=readings[-1].processes,
            mb_per_process=statistics.median(memory) if memory else None,
            plans=tuple(r.plan for r in readings if r.plan is not None),
            steps_per_s_by_round=tuple(r.steps_per_s for r in readings),
        )


def compared(recipe: Recipe, contenders: Mapping[str, Make], rounds: int, seconds: float) -> Comparison:
    """Measure every contender beside the bare loops of `recipe`, with progress on standard error."""
    others = counted(len(contenders), "contender")
    with Progress(rounds * (2 + len(contenders))) as progress, BareLoops(recipe) as loops:
        comparison = Comparison(loops, contenders)
        for number in range(1, rounds + 1):
            name = f"round {number} of {rounds}"
            progress.begin(f"{name}: the machine's limit, the plain loop and {others}, {seconds:g} s each")
            comparison.run_round(seconds, functools.partial(progress.next, during=f"{name}: "))
        return comparison


def machine_is_busy(recipe: Recipe, seconds: float) -> bool:
    """Return whether bare loops of this env, one on each core, have to wait for a core."""
    try:
        with BareLoops(recipe) as loops:
            loops.machine_limit(seconds)
            return (loops.waited_share or 0.0) > BUSY_ABOVE
    except MultiverseError:  # the env does not run in processes, which is reported where it is measured
        return False


def _reading(make: Make, seconds: float) -> Reading:
    with started(make) as (envs, start_up_s, pids):
        rate = step_rate(envs, seconds)
        return Reading(rate, start_up_s, len(pids), _mean_private_mb(pids), getattr(envs, "plan", None))


def _mean_private_mb(pids: Iterable[int]) -> float | None:
    try:
        return statistics.mean([private_memory_mb(pid) for pid in pids])
    except (statistics.StatisticsError, psutil.Error):
        return None


# -- one process, or several ---------------------------------------------------------------------------------------
_TORCH_ACTS = """
import json, sys, time, torch
size, repeats, *rows = map(int, sys.argv[1:])
gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
device = torch.device("cuda:0" if gpus else "cpu")
torch.set_num_threads(1)
net = torch.nn.Sequential(torch.nn.Linear(size, 64), torch.nn.Tanh(), torch.nn.Linear(64, 64), torch.nn.Tanh(),
                          torch.nn.Linear(64, 4)).to(device)
def act(observations):
    with torch.no_grad():
        return net(observations.to(device)).cpu()
took = []
for count in rows:
    observations = torch.zeros(count, size)
    for _ in range(repeats):
        act(observations)
    began = time.perf_counter()
    for _ in range(repeats):
        act(observations)
    took.append(1e6 * (time.perf_counter() - began) / repeats)
name = torch.cuda.get_device_name(0) if gpus else "CPU"
print(json.dumps({"gpus": gpus, "device": name, "act_us": took}))
"""
"""Measures how long torch takes to act for so many rows, with the way to the device and back."""
ACT_REPEATS = 50


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two sides over all rounds: medians."""

    steps_per_s: float
    cores_busy: float
    memory_mb: float  # private memory of the workers, and what the caller needs in addition
    processes: int  # beside the caller
    start_up_s: float
    frames_per_s: float | None  # None: the env draws no pictures
    rows: int  # for which a process acts at once


@dataclass(frozen=True, slots=True)
class Parallelism:
    """Envs one after the other in one process (simulated parallelism), and in a process for each core (true)."""

    simulated: Side
    true: Side
    gpu: dict[str, Any] | None  # gpus, device, act_us of the two sides; None: torch is not installed or does not work

    def as_plain(self) -> dict[str, Any]:
        return asdict(self) | {"advice": self.advice()}

    def rows(self) -> list[tuple[str, str, str]]:
        """Return the six rows of the table: feature, simulated, true."""
        texts: dict[str, Callable[[Side], str]] = {
            "CPU usage": lambda side: f"{side.cores_busy:.1f} cores",
            "Memory usage": lambda side: f"{side.memory_mb:,.1f} MB",
            "Speed": lambda side: f"{side.steps_per_s:,.0f} steps/s",
            "Complexity": lambda side: f"{_processes(side)}, {side.start_up_s:.2f} s to start",
            "Rendering": _frames,
        }
        rows = [(feature, text(self.simulated), text(self.true)) for feature, text in texts.items()]
        return [*rows[:-1], ("GPU usage", *self._gpu()), rows[-1]]

    def _gpu(self) -> tuple[str, str]:
        if self.gpu is None:
            return ("torch is not installed",) * 2
        gpus, texts = self.gpu["gpus"], []
        for side, us in zip((self.simulated, self.true), self.gpu["act_us"]):
            used = f"{min(gpus, max(1, side.processes))} of {gpus} GPUs" if gpus else "no GPU here, CPU"
            texts.append(f"{used}: {side.rows} rows act in {us:.0f} µs")
        return texts[0], texts[1]

    def advice(self) -> str:
        """Return which of the two to use, and why."""
        times = self.true.steps_per_s / self.simulated.steps_per_s
        if times >= WORTH_IT:
            more_mb = self.true.memory_mb - self.simulated.memory_mb
            return (
                f"Use true parallelism (executor='{TRUE}'): {times:.1f} times as fast here, for {more_mb:,.0f} MB "
                "more; in a window, watch simulated parallelism."
            )
        us = 1e6 / self.simulated.steps_per_s
        return (
            f"Use simulated parallelism (executor='{SIMULATED}'): true parallelism is {times:.1f} times as fast here, "
            f"where a step takes {us:,.0f} µs."
        )


def _processes(side: Side) -> str:
    return "1 process" if not side.processes else f"1 + {side.processes} processes"


def _frames(side: Side) -> str:
    if side.frames_per_s is None:
        return "draws no pictures"
    window = "a window too" if not side.processes else "a window in one process only"
    return f"{side.frames_per_s:,.0f} frames/s, {window}"


def measured_parallelism(
    env: str, num_envs: int, workers: int | None, kwargs: Mapping[str, Any], rounds: int, seconds: float
) -> Parallelism:
    """Measure both sides in turn, round after round."""
    sides: dict[Any, list[Side]] = {SIMULATED: [], TRUE: []}
    size = 0

    def make(executor: Any, **more: Any) -> Any:
        count = workers if executor == TRUE else None
        return mv.make_vec(env, num_envs, executor, env_kwargs={**kwargs, **more} or None, workers=count)

    with Progress(2 * rounds + 1) as progress:
        for number in range(1, rounds + 1):
            for executor, found in sides.items():
                progress.next(f"parallelism, round {number} of {rounds}: {executor}")
                side, size = _side(functools.partial(make, executor), seconds)
                found.append(side)
        progress.next("parallelism: acting")
        simulated, true = (_median(found) for found in sides.values())
        try:
            gpu = answer_of(_TORCH_ACTS, size, ACT_REPEATS, simulated.rows, true.rows)
        except (OSError, ValueError, subprocess.SubprocessError):
            gpu = None
        return Parallelism(simulated, true, gpu)


def _side(make: Callable[..., Any], seconds: float) -> tuple[Side, int]:
    """Return the measurements of one round, and the size of an agent's observation."""
    here = os.getpid()
    had_mb = private_memory_mb(here)
    with started(make) as (envs, start_up_s, pids):
        cpu_s, began = _cpu_s([here, *pids]), time.perf_counter()
        rate = step_rate(envs, seconds)
        busy = (_cpu_s([here, *pids]) - cpu_s) / (time.perf_counter() - began)
        memory_mb = max(0.0, private_memory_mb(here) - had_mb) + sum(private_memory_mb(pid) for pid in pids)
        group = envs.views.layout.groups[0]
        rows = -(-envs.num_envs // (envs.plan.workers if pids else 1)) * len(group.agents)
        size = flatdim(group.observation_space)
    return Side(rate, busy, memory_mb, len(pids), start_up_s, _frame_rate(make, seconds), rows), size


def _cpu_s(pids: Iterable[int]) -> float:
    return sum(sum(psutil.Process(pid).cpu_times()[:2]) for pid in pids)


def _frame_rate(make: Callable[..., Any], seconds: float) -> float | None:
    """Return the pictures per second of all envs together, drawn after one reset; None if they draw none."""
    try:
        with contextlib.closing(make(render_mode=RGB_ARRAY)) as envs:
            envs.reset(seed=0)
            if any(picture is None for picture in envs.call("render")):
                return None
            frames, began = 0, time.perf_counter()
            while (took_s := time.perf_counter() - began) < seconds:
                frames += len(envs.call("render"))
            return float(frames / took_s)
    except MultiverseError:
        return None


def _median(sides: list[Side]) -> Side:
    each = {name: [getattr(side, name) for side in sides] for name in Side.__slots__}
    middle = {name: None if None in values else statistics.median(values) for name, values in each.items()}
    return Side(**{**middle, "processes": sides[-1].processes, "rows": sides[-1].rows})  # type: ignore[arg-type]

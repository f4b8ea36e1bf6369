"""Comparisons of speed: vector envs with a plain loop and the machine's limit, and one process with several processes.

All contenders are measured in turn, round after round; the results are medians over the rounds.
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
from multiverse.core.wording import pluralize
from multiverse.measure import AnyVectorEnv, BareLoops, descendants, private_memory_mb, step_rate

BUSY_ABOVE = 0.1
"""Share of its time that a bare loop waits for a core, above which the machine is busy; it is near 0 if it is idle."""
SIMULATED, TRUE = IN_CALLER, IN_PROCESSES
MIN_SPEED_UP = 1.1
"""Speed-up from which several processes are recommended."""
RGB_ARRAY = "rgb_array"

Make = Callable[[], AnyVectorEnv]


@contextlib.contextmanager
def started(make: Make) -> Iterator[tuple[Any, float, set[int]]]:
    """Yield a vector env, the seconds that its start took, and the processes that it started; then close it."""
    before = descendants()
    started_at = time.perf_counter()
    envs = make()
    start_up_s = time.perf_counter() - started_at
    with contextlib.closing(envs):
        yield envs, start_up_s, descendants() - before


# -- vector envs ---------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Reading:
    """Measurements of one contender in one round."""

    steps_per_s: float
    start_up_s: float
    processes: int  # number of processes that it started
    mb_per_process: float | None  # private memory; None without processes, or if it cannot be read
    plan: Plan | None  # only for vector envs of multiverse


@dataclass(frozen=True, slots=True)
class Round:
    """Measurements of one round."""

    limit_steps_per_s: float
    plain_steps_per_s: float
    waited_share: float | None = None  # share of their time that the loops of the limit waited for a core
    readings: dict[str, Reading] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Result:
    """One contender over all rounds: medians; ratios are computed within a round."""

    steps_per_s: float
    of_the_limit: float
    times_plain_loop: float
    start_up_s: float
    processes: int
    mb_per_process: float | None
    plans: tuple[Plan, ...]  # of each round (`auto` may decide differently); empty for other libraries
    steps_per_s_by_round: tuple[float, ...]


class Comparison:
    """Contenders, the plain loop and the machine's limit, measured in turn, round after round."""

    def __init__(self, loops: BareLoops, contenders: Mapping[str, Make]) -> None:
        self.rounds: list[Round] = []
        self.failures: dict[str, MultiverseError] = {}
        self.cores = loops.cores
        self._loops, self._contenders = loops, contenders

    def run_round(self, seconds: float, report: Callable[[str], None]) -> None:
        """Measure everything once, with a new vector env of each contender; `report` gets the name of each measurement
        before it begins.

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
        """Return the median of `value(round)` over the rounds."""
        return statistics.median(map(value, self.rounds))

    @property
    def machine_is_busy(self) -> bool:
        """Whether other programs used the cores, which makes the figures unreliable."""
        return max(measured.waited_share or 0.0 for measured in self.rounds) > BUSY_ABOVE

    def result(self, name: str) -> Result | MultiverseError:
        """Return the result of a contender, or the error with which it failed."""
        if name in self.failures:
            return self.failures[name]
        readings = [measured.readings[name] for measured in self.rounds]
        memory = [r.mb_per_process for r in readings if r.mb_per_process is not None]
        return Result(
            steps_per_s=statistics.median(r.steps_per_s for r in readings),
            of_the_limit=self.median(lambda r: r.readings[name].steps_per_s / r.limit_steps_per_s),
            times_plain_loop=self.median(lambda r: r.readings[name].steps_per_s / r.plain_steps_per_s),
            start_up_s=statistics.median(r.start_up_s for r in readings),
            processes=readings[-1].processes,
            mb_per_process=statistics.median(memory) if memory else None,
            plans=tuple(r.plan for r in readings if r.plan is not None),
            steps_per_s_by_round=tuple(r.steps_per_s for r in readings),
        )


def compared(recipe: Recipe, contenders: Mapping[str, Make], rounds: int, seconds: float) -> Comparison:
    """Measure all contenders and the bare loops of `recipe`, with progress on standard error."""
    others = pluralize(len(contenders), "contender")
    with Progress(rounds * (2 + len(contenders))) as progress, BareLoops(recipe) as loops:
        comparison = Comparison(loops, contenders)
        for number in range(1, rounds + 1):
            name = f"round {number} of {rounds}"
            progress.begin(f"{name}: the machine's limit, the plain loop and {others}, {seconds:g} s each")
            comparison.run_round(seconds, functools.partial(progress.next, during=f"{name}: "))
        return comparison


def machine_is_busy(recipe: Recipe, seconds: float) -> bool:
    """Return whether bare loops of this env, one for each core, have to wait for a core."""
    try:
        with BareLoops(recipe) as loops:
            loops.machine_limit(seconds)
            return (loops.waited_share or 0.0) > BUSY_ABOVE
    except MultiverseError:  # the env does not run in processes; its measurement reports that
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


# -- one process and several --------------------------------------------------------------------------------------
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
"""Program that measures how long torch takes to compute actions for each number of rows, with all transfers."""
ACT_REPEATS = 50


@dataclass(frozen=True, slots=True)
class Side:
    """Measurements of one of the two sides; over all rounds, medians."""

    steps_per_s: float
    cores_busy: float
    memory_mb: float  # private memory of the workers, and the additional memory of the caller
    processes: int  # number of worker processes
    start_up_s: float
    frames_per_s: float | None  # None: the env renders no images
    rows: int  # number of rows for which a process computes actions at once


@dataclass(frozen=True, slots=True)
class Parallelism:
    """Simulated parallelism (one process steps all envs in turn) and true parallelism (a process for each core)."""

    simulated: Side
    true: Side
    gpu: dict[str, Any] | None  # gpus, device, act_us of both sides; None: torch is not installed or does not work

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
            device = f"{min(gpus, max(1, side.processes))} of {gpus} GPUs" if gpus else "no GPU"
            texts.append(f"{pluralize(side.rows, 'row')} in {us:.0f} µs ({device})")
        return texts[0], texts[1]

    def advice(self) -> str:
        """Return which of the two to use, and why."""
        times = self.true.steps_per_s / self.simulated.steps_per_s
        if times >= MIN_SPEED_UP:
            more_mb = self.true.memory_mb - self.simulated.memory_mb
            return (
                f"Use true parallelism (executor='{TRUE}'): it is {times:.1f} times as fast here and needs "
                f"{more_mb:,.0f} MB more memory. To watch the envs in a window, use simulated parallelism."
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
        return "not supported by the env"
    window = "or a window" if not side.processes else "no window"
    return f"{side.frames_per_s:,.0f} frames/s, {window}"


def measured_parallelism(
    env: str, num_envs: int, workers: int | None, kwargs: Mapping[str, Any], rounds: int, seconds: float
) -> Parallelism:
    """Measure both sides in turn, round after round."""
    sides: dict[Any, list[Side]] = {SIMULATED: [], TRUE: []}
    size = 0

    def make(executor: Any, **env_kwargs: Any) -> Any:
        count = workers if executor == TRUE else None
        return mv.make_vec(env, num_envs, executor, env_kwargs={**kwargs, **env_kwargs} or None, workers=count)

    with Progress(2 * rounds + 1) as progress:
        for number in range(1, rounds + 1):
            for executor, readings in sides.items():
                progress.next(f"parallelism, round {number} of {rounds}: {executor}")
                side, size = _side(functools.partial(make, executor), seconds)
                readings.append(side)
        progress.next("parallelism: computing actions")
        simulated, true = (_median(readings) for readings in sides.values())
        try:
            gpu = answer_of(_TORCH_ACTS, size, ACT_REPEATS, simulated.rows, true.rows)
        except (OSError, ValueError, subprocess.SubprocessError):
            gpu = None
        return Parallelism(simulated, true, gpu)


def _side(make: Callable[..., Any], seconds: float) -> tuple[Side, int]:
    """Return the measurements of one round, and the size of an agent's observation."""
    caller = os.getpid()
    caller_mb = private_memory_mb(caller)
    with started(make) as (envs, start_up_s, pids):
        cpu_s, started_at = _cpu_s([caller, *pids]), time.perf_counter()
        rate = step_rate(envs, seconds)
        cores_busy = (_cpu_s([caller, *pids]) - cpu_s) / (time.perf_counter() - started_at)
        memory_mb = max(0.0, private_memory_mb(caller) - caller_mb) + sum(map(private_memory_mb, pids))
        group = envs.views.layout.groups[0]
        rows = -(-envs.num_envs // (envs.plan.workers if pids else 1)) * len(group.agents)
        size = flatdim(group.observation_space)
    side = Side(
        steps_per_s=rate,
        cores_busy=cores_busy,
        memory_mb=memory_mb,
        processes=len(pids),
        start_up_s=start_up_s,
        frames_per_s=_frame_rate(make, seconds),
        rows=rows,
    )
    return side, size


def _cpu_s(pids: Iterable[int]) -> float:
    return sum(sum(psutil.Process(pid).cpu_times()[:2]) for pid in pids)


def _frame_rate(make: Callable[..., Any], seconds: float) -> float | None:
    """Return the frames per second that all envs together render after a reset; None if they render none."""
    try:
        with contextlib.closing(make(render_mode=RGB_ARRAY)) as envs:
            envs.reset(seed=0)
            if any(frame is None for frame in envs.call("render")):
                return None
            frames, started_at = 0, time.perf_counter()
            while (elapsed_s := time.perf_counter() - started_at) < seconds:
                frames += len(envs.call("render"))
            return float(frames / elapsed_s)
    except MultiverseError:
        return None


def _median(sides: list[Side]) -> Side:
    fields = {name: [getattr(side, name) for side in sides] for name in Side.__slots__}
    medians = {name: None if None in values else statistics.median(values) for name, values in fields.items()}
    return Side(**{**medians, "processes": sides[-1].processes, "rows": sides[-1].rows})  # type: ignore[arg-type]

"""Document 003's table, measured: envs one after the other in one process, and in a process for each core."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import psutil
from gymnasium.spaces.utils import flatdim

import multiverse as mv
from multiverse.cli.doctor_checks import ASK_TIMEOUT_S
from multiverse.cli.output import Progress
from multiverse.core.errors import MultiverseError
from multiverse.core.plan import IN_CALLER, IN_PROCESSES
from multiverse.measure import AnyVectorEnv, descendants, private_memory_mb, step_rate

SIMULATED, TRUE = IN_CALLER, IN_PROCESSES
WORTH_IT = 1.1
"""So many times as fast is what more processes must be, for somebody to want them."""
RGB_ARRAY = "rgb_array"

_TORCH_ACTS = """
import json, sys, time, torch
size, repeats, *rows = map(int, sys.argv[1:])
gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
device = torch.device("cuda:0" if gpus else "cpu")
torch.set_num_threads(1)
net = torch.nn.Sequential(torch.nn.Linear(size, 64), torch.nn.Tanh(), torch.nn.Linear(64, 64), torch.nn.Tanh(),
                          torch.nn.Linear(64, 4)).to(device)
def act(seen):
    with torch.no_grad():
        return net(seen.to(device)).cpu()
took = []
for count in rows:
    seen = torch.zeros(count, size)
    for _ in range(repeats):
        act(seen)
    began = time.perf_counter()
    for _ in range(repeats):
        act(seen)
    took.append(1e6 * (time.perf_counter() - began) / repeats)
name = torch.cuda.get_device_name(0) if gpus else "CPU"
print(json.dumps({"gpus": gpus, "device": name, "act_us": took}))
"""
"""What torch takes to act for so many rows, there and back. Asked in a process of its own, as `doctor` asks it."""
ACT_REPEATS = 50


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two, over all rounds: medians."""

    steps_per_s: float
    cores_busy: float
    memory_mb: float  # private, of workers and what the caller has more with them
    processes: int  # beside the caller
    start_up_s: float
    frames_per_s: float | None  # None: the env draws no pictures
    rows: int  # that a process acts for at once


@dataclass(frozen=True, slots=True)
class Parallelism:
    """Both, and what is there to act with."""

    simulated: Side
    true: Side
    gpu: dict[str, Any] | None  # gpus, device, act_us of the two; None: torch is not installed, or does not work

    def as_plain(self) -> dict[str, Any]:
        return asdict(self) | {"advice": self.advice()}

    def rows(self) -> list[tuple[str, str, str]]:
        """The document's six: what it is about, simulated, true."""

        def of_both(feature: str, told: Callable[[Side], str]) -> tuple[str, str, str]:
            return feature, told(self.simulated), told(self.true)

        return [
            of_both("CPU usage", lambda side: f"{side.cores_busy:.1f} cores"),
            of_both("Memory usage", lambda side: f"{side.memory_mb:,.1f} MB"),
            of_both("Speed", lambda side: f"{side.steps_per_s:,.0f} steps/s"),
            of_both("Complexity", lambda side: f"{_processes(side)}, {side.start_up_s:.2f} s to start"),
            ("GPU usage", *self._gpu()),
            of_both("Rendering", _frames),
        ]

    def _gpu(self) -> tuple[str, str]:
        if self.gpu is None:
            return ("torch is not installed",) * 2
        gpus = self.gpu["gpus"]
        used = min(gpus, self.true.processes)
        told = [f"{min(gpus, 1)} of {gpus} GPUs", f"{used} of {gpus} GPUs"] if gpus else ["no GPU here, CPU"] * 2
        rows = self.simulated.rows, self.true.rows
        each = (f"{one}: {count} rows act in {us:.0f} µs" for one, count, us in zip(told, rows, self.gpu["act_us"]))
        first, second = each
        return first, second

    def advice(self) -> str:
        """Which to use."""
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


# -- measuring -----------------------------------------------------------------------------------------------------
def measured(
    env: str, num_envs: int, workers: int | None, kwargs: Mapping[str, Any], rounds: int, seconds: float
) -> Parallelism:
    """Both in turn, round after round."""
    found: dict[str, list[Side]] = {SIMULATED: [], TRUE: []}
    size = 0

    def make(executor: Any, more: Mapping[str, Any]) -> Any:
        how: dict[str, Any] = {"workers": workers} if executor == TRUE else {}
        return mv.make_vec(env, num_envs, executor, env_kwargs={**kwargs, **more} or None, **how)

    with Progress(2 * rounds + 1) as progress:
        for number in range(1, rounds + 1):
            for executor, sides in found.items():
                progress.next(f"parallelism, round {number} of {rounds}: {executor}")
                side, size = _read(lambda more, executor=executor: make(executor, more), seconds)
                sides.append(side)
        progress.next("parallelism: acting")
        one, many = (_median(sides) for sides in found.values())
        return Parallelism(one, many, _acting(size, [one.rows, many.rows]))


def _read(make: Any, seconds: float) -> tuple[Side, int]:
    """One reading, and how many numbers an agent sees."""
    here, before = os.getpid(), descendants()
    had_mb = private_memory_mb(here)
    began = time.perf_counter()
    envs: AnyVectorEnv = make({})
    start_up_s = time.perf_counter() - began
    try:
        pids = descendants() - before
        cpu_s, began = _cpu_s([here, *pids]), time.perf_counter()
        rate = step_rate(envs, seconds)
        busy = (_cpu_s([here, *pids]) - cpu_s) / (time.perf_counter() - began)
        memory_mb = max(0.0, private_memory_mb(here) - had_mb) + sum(private_memory_mb(pid) for pid in pids)
        group = envs.views.layout.groups[0]  # type: ignore[union-attr]
        workers = envs.plan.workers if pids else 1  # type: ignore[union-attr]
        rows = -(-envs.num_envs // workers) * len(group.agents)
        size = flatdim(group.observation_space)
    finally:
        envs.close()
    return Side(rate, busy, memory_mb, len(pids), start_up_s, _frame_rate(make, seconds), rows), size


def _cpu_s(pids: Iterable[int]) -> float:
    return sum(sum(psutil.Process(pid).cpu_times()[:2]) for pid in pids)


def _frame_rate(make: Any, seconds: float) -> float | None:
    """Pictures per second of all envs together, one after each reset."""
    try:
        envs = make({"render_mode": RGB_ARRAY})
    except MultiverseError:
        return None
    try:
        envs.reset(seed=0)
        if any(picture is None for picture in envs.call("render")):
            return None
        frames, began = 0, time.perf_counter()
        while (took_s := time.perf_counter() - began) < seconds:
            frames += len(envs.call("render"))
        return float(frames / took_s)
    except MultiverseError:
        return None
    finally:
        envs.close()


def _acting(size: int, rows: list[int]) -> dict[str, Any] | None:
    command = [sys.executable, "-c", _TORCH_ACTS, *map(str, (size, ACT_REPEATS, *rows))]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=ASK_TIMEOUT_S, check=True)
        said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (OSError, ValueError, IndexError, subprocess.SubprocessError):
        return None
    return said


def _median(sides: list[Side]) -> Side:
    each = {name: [getattr(side, name) for side in sides] for name in Side.__slots__}
    middle = {name: None if None in values else statistics.median(values) for name, values in each.items()}
    return Side(**{**middle, "processes": sides[-1].processes, "rows": sides[-1].rows})  # type: ignore[arg-type]

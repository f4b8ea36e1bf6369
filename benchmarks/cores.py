"""Scaling on one machine: env steps/s by number of workers, in processes and in Ray actors.

    python benchmarks/cores.py --workers 1 2 4 8 16 --devices cuda cpu --json benchmarks/results/cores.json

Every worker has 8 envs that compute for 50 µs per step, or are HalfCheetah-v5. Only the collection of rollouts is
measured, as in the trainer with PPO:

`in workers`: the workers fill the rollouts themselves, with a 64 × 64 policy (128 or 256 steps per env).
`lock-step`: every step goes through the caller, with precomputed actions: the cost of stepping alone.
`lock-step, cuda` and `cpu`: likewise, with a 512 × 512 torch policy in the caller, on the GPU or on one core.
(The policy of PPO acts in the workers even if it is trained on a GPU, unless it uses images.)
`limit`: as many parallel bare loops as workers, without a policy.

Contenders are measured in turn in every round. A rate is the median over the rounds. Its efficiency is the rate per
worker relative to that with the fewest workers; `of the limit` is the median of the ratios within a round. Set
OMP_NUM_THREADS=1 for one thread per process.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import logging
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import multiverse as mv
from benchmarks.provenance import provenance, write_results
from benchmarks.training import BESIDE_SB3, Settings, collect_us, session_of
from multiverse.adapters.env_source import recipes
from multiverse.algorithms.ppo import PPO
from multiverse.algorithms.torch_policy import TorchPolicy
from multiverse.core.policy import Policy
from multiverse.executors.machine import usable_cores
from multiverse.learning.loss import as_numpy
from multiverse.measure import BareLoops, step_rate
from multiverse.policies.heads import head_for

EACH = 8
"""Number of envs per worker."""
BURN = dataclasses.replace(BESIDE_SB3["cartpole"], env="benchmarks.envs:Burn")
ENVS: dict[str, tuple[Settings, dict[str, Any]]] = {
    "50 µs": (BURN, {"microseconds": 50.0, "clock": "cpu"}),
    "HalfCheetah-v5": (BESIDE_SB3["halfcheetah"], {}),
}
EXECUTORS = ("process", "ray")
LARGE, STEPS = 512, 32
"""For policies in the caller: units of both layers, and steps per env of a rollout."""
LIMIT = "limit"

Measure = Callable[[float], float]
"""Maps a duration in seconds to the env steps/s measured in that time."""


class CallerPPO(PPO):
    """PPO whose policy is the torch network on its device, so that it acts in the caller."""

    def policy(self) -> Policy:
        networks = self._networks
        log_std = networks.distribution.log_std
        head = head_for(self.action_space, None if log_std is None else np.exp(as_numpy(log_std)), self.config.squash)
        return TorchPolicy(self.features, networks.actor, head, self._updates)


def collecting(
    stack: contextlib.ExitStack, settings: Settings, options: dict[str, Any], algorithm: type[PPO] | None = None
) -> Measure:
    session = stack.enter_context(session_of(settings, options, algorithm))
    return lambda seconds: 1e6 / collect_us(session, seconds)


def contenders(stack: contextlib.ExitStack, env: str, workers: int, devices: list[str]) -> dict[str, Measure]:
    settings, kwargs = ENVS[env]
    settings = dataclasses.replace(settings, num_envs=EACH * workers)
    caller_settings = dataclasses.replace(settings, steps_per_env=STEPS)
    (recipe,) = recipes(settings.env, 1, kwargs, None)
    measures: dict[str, Measure] = {LIMIT: stack.enter_context(BareLoops(recipe, workers)).machine_limit}
    for executor in EXECUTORS:
        options: dict[str, Any] = {"executor": executor, "workers": workers}
        measures[f"{executor}, in workers"] = collecting(stack, settings, {**options, "env_kwargs": kwargs})
        envs = mv.make_vec(settings.env, settings.num_envs, **options, env_kwargs=kwargs, infos=False)
        stack.enter_context(contextlib.closing(envs))
        measures[f"{executor}, lock-step"] = functools.partial(step_rate, envs)
        for device in devices:
            caller_options = {**options, "env_kwargs": kwargs, "hidden_sizes": [LARGE, LARGE], "device": device}
            measures[f"{executor}, lock-step, {device}"] = collecting(stack, caller_settings, caller_options, CallerPPO)
    return measures


def measure(env: str, workers: int, devices: list[str], rounds: int, seconds: float) -> dict[str, Any]:
    began = time.perf_counter()
    with contextlib.ExitStack() as stack:
        measures = contenders(stack, env, workers, devices)
        started_s = time.perf_counter() - began
        rates = {name: list[float]() for name in measures}
        for _ in range(rounds):
            for name, rate in measures.items():
                rates[name].append(rate(seconds))
    took_s = round(time.perf_counter() - began, 1)
    return {"env": env, "workers": workers, "env_steps_per_s": rates, "start_s": round(started_s, 1), "took_s": took_s}


def report_last(rows: list[dict[str, Any]]) -> None:
    """Add the efficiencies to the last row, and print it."""
    row, first = rows[-1], next(one for one in rows if one["env"] == rows[-1]["env"])
    rates, more = row["env_steps_per_s"], row["workers"] / first["workers"]
    print(f"\n{row['env']}, {row['workers']} workers (started in {row['start_s']} s, measured in {row['took_s']} s)")
    row["efficiency"], row["of_the_limit"] = {}, {}
    for name, values in rates.items():
        rate = statistics.median(values)
        row["efficiency"][name] = rate / statistics.median(first["env_steps_per_s"][name]) / more
        row["of_the_limit"][name] = statistics.median(one / limit for one, limit in zip(values, rates[LIMIT]))
        beside = f"efficiency {row['efficiency'][name]:.2f}   {row['of_the_limit'][name]:.2f} of the limit"
        print(f"  {name:26s}{rate:12,.0f} env steps/s   {beside}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", nargs="+", type=int, default=[1, usable_cores()])
    parser.add_argument("--envs", nargs="+", choices=ENVS, default=list(ENVS))
    parser.add_argument(
        "--devices", nargs="*", choices=["cuda", "cpu"], default=[], help="devices of the 512 × 512 policies"
    )
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=0.5, help="seconds per contender and round")
    parser.add_argument(
        "--limit-s", type=float, default=float("inf"), help="time limit, after which no measurement is started"
    )
    parser.add_argument("--json", type=Path, help="also write the figures to this file, after each measurement")
    options = parser.parse_args()
    began, origin, rows = time.perf_counter(), provenance(), list[dict[str, Any]]()
    torch.set_num_threads(1)
    logging.getLogger("multiverse").setLevel(logging.ERROR)
    if "cuda" in options.devices and not torch.cuda.is_available():
        print("no GPU available: policies run on the CPU only")
    devices = [one for one in options.devices if one == "cpu" or torch.cuda.is_available()]
    gpu = torch.cuda.get_device_name() if "cuda" in devices else None
    print(f"{usable_cores()} usable cores, GPU: {gpu}, Python {sys.version.split()[0]}, torch {torch.__version__}")
    left_out = [(workers, env) for workers in options.workers for env in options.envs]
    while left_out and time.perf_counter() - began < options.limit_s:
        workers, env = left_out.pop(0)
        rows.append(measure(env, workers, devices, options.rounds, options.seconds))
        report_last(rows)
        if options.json:
            write_results(options.json, origin, {"gpu": gpu, "rows": rows, "left_out": left_out})
    for workers, env in left_out:
        print(f"{env} with {workers} workers: skipped, the time limit is reached")


if __name__ == "__main__":
    main()

"""What the cores of one machine give: env steps/s with more and more workers, in processes and in Ray actors.

    python benchmarks/cores.py --workers 1 2 4 8 16 --devices cuda cpu --json benchmarks/results/cores.json

Every worker has 8 envs: such as burn 50 µs of their core a step, or HalfCheetah-v5. Collecting alone, as the trainer
does it with PPO:

`in workers`: the workers fill the rollouts themselves, with a 64 × 64 policy (128 and 256 steps an env).
`lock-step`: every step goes through the caller, with actions drawn beforehand: what stepping alone costs.
`lock-step, cuda` and `cpu`: likewise, with the actions of a 512 × 512 policy that the caller asks, in torch, on the GPU
or on one core. (PPO's own acts in the workers also where it learns on a GPU, unless it sees images.)
`limit`: as many bare loops side by side as there are workers, without any policy.

Contenders take turns, round after round. A rate is the median over the rounds; its efficiency is the rate by worker,
over that of the fewest workers; `of the limit` is the median of ratios within a round. For one thread each:
OMP_NUM_THREADS=1.
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
"""Envs of a worker."""
BURN = dataclasses.replace(BESIDE_SB3["cartpole"], env="benchmarks.envs:Burn")
ENVS: dict[str, tuple[Settings, dict[str, Any]]] = {
    "50 µs": (BURN, {"microseconds": 50.0, "clock": "cpu"}),
    "HalfCheetah-v5": (BESIDE_SB3["halfcheetah"], {}),
}
EXECUTORS = ("process", "ray")
LARGE, STEPS = 512, 32
"""Of policies that the caller asks: units of both layers; steps an env of their rollouts."""
LIMIT = "limit"

Measure = Callable[[float], float]
"""Seconds → env steps/s in so long."""


class Asked(PPO):
    """Its policy is the network itself, where that is; so the caller asks it at every step."""

    def policy(self) -> Policy:
        networks = self._networks
        log_std = networks.distribution.log_std
        head = head_for(self.action_space, None if log_std is None else np.exp(as_numpy(log_std)), self.config.squash)
        return TorchPolicy(self.features, networks.actor, head, self._updates)


def collecting(
    opened: contextlib.ExitStack, settings: Settings, how: dict[str, Any], own: type[PPO] | None = None
) -> Measure:
    session = opened.enter_context(session_of(settings, how, own))
    return lambda seconds: 1e6 / collect_us(session, seconds)


def contenders(opened: contextlib.ExitStack, env: str, workers: int, devices: list[str]) -> dict[str, Measure]:
    settings, kwargs = ENVS[env]
    settings = dataclasses.replace(settings, num_envs=EACH * workers)
    asked = dataclasses.replace(settings, steps_per_env=STEPS)
    (recipe,) = recipes(settings.env, 1, kwargs, None)
    found: dict[str, Measure] = {LIMIT: opened.enter_context(BareLoops(recipe, workers)).machine_limit}
    for executor in EXECUTORS:
        how: dict[str, Any] = {"executor": executor, "workers": workers}
        found[f"{executor}, in workers"] = collecting(opened, settings, {**how, "env_kwargs": kwargs})
        envs = mv.make_vec(settings.env, settings.num_envs, **how, env_kwargs=kwargs, infos=False)
        opened.enter_context(contextlib.closing(envs))
        found[f"{executor}, lock-step"] = functools.partial(step_rate, envs)
        for device in devices:
            large = {**how, "env_kwargs": kwargs, "hidden_sizes": [LARGE, LARGE], "device": device}
            found[f"{executor}, lock-step, {device}"] = collecting(opened, asked, large, Asked)
    return found


def measure(env: str, workers: int, devices: list[str], rounds: int, seconds: float) -> dict[str, Any]:
    began = time.perf_counter()
    with contextlib.ExitStack() as opened:
        found = contenders(opened, env, workers, devices)
        started_s = time.perf_counter() - began
        rates = {name: list[float]() for name in found}
        for _ in range(rounds):
            for name, rate in found.items():
                rates[name].append(rate(seconds))
    took_s = round(time.perf_counter() - began, 1)
    return {"env": env, "workers": workers, "env_steps_per_s": rates, "start_s": round(started_s, 1), "took_s": took_s}


def told(rows: list[dict[str, Any]]) -> None:
    """The efficiencies of the last row, put into it and shown."""
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
    parser.add_argument("--devices", nargs="*", choices=["cuda", "cpu"], default=[], help="of 512 × 512 policies")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=0.5, help="of each contender, in each round")
    parser.add_argument("--limit-s", type=float, default=float("inf"), help="what has not begun by then is left out")
    parser.add_argument("--json", type=Path, help="write the figures here too, as they come")
    asked = parser.parse_args()
    began, origin, rows = time.perf_counter(), provenance(), list[dict[str, Any]]()
    torch.set_num_threads(1)
    logging.getLogger("multiverse").setLevel(logging.ERROR)
    if "cuda" in asked.devices and not torch.cuda.is_available():
        print("no GPU here: the policies on the CPU alone")
    devices = [one for one in asked.devices if one == "cpu" or torch.cuda.is_available()]
    gpu = torch.cuda.get_device_name() if "cuda" in devices else None
    print(f"{usable_cores()} usable cores, GPU: {gpu}, Python {sys.version.split()[0]}, torch {torch.__version__}")
    left_out = [(workers, env) for workers in asked.workers for env in asked.envs]
    while left_out and time.perf_counter() - began < asked.limit_s:
        workers, env = left_out.pop(0)
        rows.append(measure(env, workers, devices, asked.rounds, asked.seconds))
        told(rows)
        if asked.json:
            write_results(asked.json, origin, {"gpu": gpu, "rows": rows, "left_out": left_out})
    for workers, env in left_out:
        print(f"{env} with {workers} workers: left out, the time is over")


if __name__ == "__main__":
    main()

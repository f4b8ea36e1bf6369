"""Cost of Ray on one node: envs in Ray actors and in processes, with two workers each.

    python benchmarks/ray_rollouts.py                     every row; pin it to 2 cores with taskset where there are more
    python benchmarks/ray_rollouts.py --rows cartpole halfcheetah --rounds 5 --json results.json

Contenders are measured in turn in every round; a ratio is the median of the ratios within a round.

`cartpole`, `halfcheetah`: env steps/s of rollouts as the trainer collects them, PPO with a 64 × 64 policy, 8 envs.
`lock_step_2ms`, `lock_step_1us`: `step` of 8 envs that compute for 2 ms or 1 µs. Actions and observations are sent in
every step, which rollouts in the actors avoid.
`cost`: cost of one rollout beyond its steps, from rollouts of 16 and 128 steps, with policies of 64 × 64 and 512 × 512:
with the next row, the constants of docs/scaling.md.
`empty_call`: time of calls of actors that do nothing, with the number and interval of the calls of CartPole rollouts:
the overhead of Ray itself.
`learn`: cost of the learner per env step, in CPU time, which depends little on other programs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import multiverse as mv
from benchmarks.envs import Burn
from benchmarks.training import BESIDE_SB3, collect_us, collected_s, measure, session_of, verdict
from multiverse.core.plan import RayOptions
from multiverse.executors import ray_cluster
from multiverse.measure import step_rate

BAR = 0.8
WORKERS = 2
OPTIONS = {name: {"executor": name, "workers": WORKERS} for name in ("process", "ray")}
LOCK_STEP_S = 1.0
"""Seconds per contender and round."""
SHORT, LONG, ROLLOUTS = 16, 128, 20
ROLLOUT_S = 0.01
"""Duration of one rollout of CartPole."""
SIZES = (64, 512)
LEARN_STEPS = 10_240

Rates = dict[str, list[float]]
"""Env steps per second of each contender, one value per round."""


def ratio_of(rates: Rates) -> float:
    return statistics.median(ray / process for ray, process in zip(rates["ray"], rates["process"]))


def show(name: str, what: str, rates: Rates, bar: float) -> dict[str, Any]:
    print(f"\n{name}: {what}")
    for executor, values in rates.items():
        print(f"  {executor:8s}" + "  ".join(f"{value:10,.0f}" for value in values) + "  env steps/s")
    ratio = ratio_of(rates)
    print(f"  ray {ratio:.2f} of processes   {verdict(ratio, bar)}", flush=True)
    return {"row": name, "ratio": ratio, "bar": bar, "env_steps_per_s": rates}


def rollouts(name: str, rounds: int) -> dict[str, Any]:
    """Measure rollouts, without the session's work between them."""
    settings, rates = BESIDE_SB3[name], {executor: list[float]() for executor in OPTIONS}
    with contextlib.ExitStack() as opened:
        sessions = {executor: opened.enter_context(session_of(settings, given)) for executor, given in OPTIONS.items()}
        for _ in range(rounds):
            for executor, session in sessions.items():
                rates[executor].append(1e6 / collect_us(session))
    return show(name, f"rollouts alone, {settings.num_envs} envs × {settings.steps_per_env} steps", rates, BAR)


def lock_step(name: str, microseconds: float, rounds: int) -> dict[str, Any]:
    rates, envs = {executor: list[float]() for executor in OPTIONS}, 8
    with contextlib.ExitStack() as opened:
        vector_envs = {
            executor: opened.enter_context(
                contextlib.closing(mv.make_vec(Burn, envs, **given, env_kwargs={"microseconds": microseconds}))
            )
            for executor, given in OPTIONS.items()
        }
        for _ in range(rounds):
            for executor, env in vector_envs.items():
                rates[executor].append(step_rate(env, LOCK_STEP_S))
    a_round = {executor: envs / statistics.median(values) * 1e3 for executor, values in rates.items()}
    times = ", ".join(f"{executor} {value:.2f} ms" for executor, value in a_round.items())
    result = show(
        name, f"lock-step, {envs} envs that compute for {microseconds:g} µs; time per step: {times}", rates, 0.0
    )
    return {**result, "ms_a_round": a_round}


def cost(name: str, rounds: int) -> dict[str, Any]:
    """Fit collected_s(T) = cost of a rollout + T · cost of a step to the fastest rollouts of two lengths."""
    result: dict[str, Any] = {"row": name}
    print(f"\n{name}: one rollout of CartPole-v1, 8 envs, beyond its steps")
    for size in SIZES:
        taken = {(executor, steps): list[float]() for executor in OPTIONS for steps in (SHORT, LONG)}
        with contextlib.ExitStack() as opened:
            sessions = {}
            for executor, steps in taken:
                settings = dataclasses.replace(BESIDE_SB3["cartpole"], steps_per_env=steps, batch_size=8 * SHORT)
                given = {**OPTIONS[executor], "hidden_sizes": [size, size]}
                sessions[executor, steps] = opened.enter_context(session_of(settings, given))
            for _ in range(rounds):
                for key, session in sessions.items():
                    taken[key] += [collected_s(session) * 1e6 for _ in range(ROLLOUTS)]
        for executor in OPTIONS:
            short_us, long_us = (min(taken[executor, steps]) for steps in (SHORT, LONG))
            step_us = (long_us - short_us) / (LONG - SHORT)
            figures = {
                "rollout_ms": round((short_us - SHORT * step_us) / 1e3, 3),
                "us_per_step_of_8": round(step_us, 2),
            }
            result[f"{executor}, {size} × {size}"] = figures
            print(f"  {executor:8s}{size} × {size}: {figures}", flush=True)
    return result


class Nothing:
    def nothing(self) -> None:
        pass


def empty_call(name: str, rounds: int) -> dict[str, Any]:
    ray_cluster.connect(RayOptions())
    ray, taken = ray_cluster.ray(), list[float]()
    actors = [ray.remote(Nothing).options(num_cpus=0).remote() for _ in range(WORKERS)]
    ray.get([actor.nothing.remote() for actor in actors])
    for _ in range(rounds * ROLLOUTS):
        time.sleep(ROLLOUT_S)
        start = time.perf_counter()
        ray.get([actor.nothing.remote() for actor in actors])
        taken.append((time.perf_counter() - start) * 1e3)
    for actor in actors:
        ray.kill(actor)
    figures = {"least_ms": round(min(taken), 3), "median_ms": round(statistics.median(taken), 3)}
    print(f"\n{name}: {WORKERS} actors that do nothing, asked every {ROLLOUT_S * 1e3:g} ms: {figures}", flush=True)
    return {"row": name, **figures}


class Learning(mv.Hook):
    """Hook that measures the CPU time of updates."""

    def __init__(self) -> None:
        self.cpu_s, self._begun = 0.0, 0.0

    def on_rollout(self, trainer: Any, collected: Any) -> None:
        self._begun = time.process_time()

    def on_update(self, trainer: Any, report: Any) -> None:
        self.cpu_s += time.process_time() - self._begun


def learn(name: str, rounds: int) -> dict[str, Any]:
    result: dict[str, Any] = {"row": name}
    print(f"\n{name}: µs of CPU time per env step, PPO")
    for env, size in itertools.product(("cartpole", "halfcheetah"), SIZES):
        settings = dataclasses.replace(BESIDE_SB3[env], env_steps=LEARN_STEPS)
        taken = []
        for seed in range(rounds):
            hook = Learning()
            with tempfile.TemporaryDirectory() as home:
                run = mv.train(
                    settings.env, executor="serial", hidden_sizes=[size, size], preset=False, evaluate_every=0,
                    evaluation_episodes=1, seed=seed, run_dir=Path(home) / "run", hooks=[hook], progress=False,
                    **settings.ours(),
                )  # fmt: skip
            taken.append(hook.cpu_s / run.summary["env_steps"] * 1e6)
        what = f"{settings.env}, {size} × {size}, {settings.epochs} epochs"
        result[what] = [round(one, 2) for one in taken]
        print(f"  {what}: {result[what]}", flush=True)
    return result


ROWS: dict[str, Callable[[int], dict[str, Any]]] = {
    **{name: functools.partial(rollouts, name) for name in ("cartpole", "halfcheetah")},
    "lock_step_2ms": functools.partial(lock_step, "lock_step_2ms", 2_000.0),
    "lock_step_1us": functools.partial(lock_step, "lock_step_1us", 1.0),
    "cost": functools.partial(cost, "cost"),
    "empty_call": functools.partial(empty_call, "empty_call"),
    "learn": functools.partial(learn, "learn"),
}


if __name__ == "__main__":
    measure(ROWS, __doc__, f"{WORKERS} workers")

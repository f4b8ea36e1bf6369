"""What Ray costs on one node: envs in Ray actors beside envs in processes, two workers each, in one run.

    python benchmarks/ray_rollouts.py                     every row; pin it to 2 cores with taskset where there are more
    python benchmarks/ray_rollouts.py --rows cartpole halfcheetah --rounds 5 --json results.json

Contenders take turns, round after round; ratios are taken within a round and the median over the rounds is shown.

`cartpole`, `halfcheetah`: rollouts alone as the trainer collects them, PPO with a 64 × 64 policy, 8 envs: env steps/s.
`lock_step_2ms`, `lock_step_1us`: one `step` of 8 envs after the other, for an env that burns so long. Actions and
observations go there and back in every round, which is what rollouts in the actors save.
`cost`: what one rollout costs beside its steps, from rollouts of 16 and 128 steps, policies of 64 × 64 and 512 × 512:
with the next row the constants of docs/scaling.md.
`empty_call`: what calls of actors that do nothing take, as many at once and as long after each other as rollouts of
CartPole: what Ray asks of a rollout by itself.
`learn`: what the learner costs an env step, in seconds of the processor, so that a busy machine changes little.
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
HOWS = {name: {"executor": name, "workers": WORKERS} for name in ("process", "ray")}
LOCK_STEP_S = 1.0
"""Of each contender, in each round."""
SHORT, LONG, ROLLOUTS = 16, 128, 20
ROLLOUT_S = 0.01
"""That one of CartPole takes."""
SIZES = (64, 512)
LEARN_STEPS = 10_240

Rates = dict[str, list[float]]
"""Env steps per second of each contender, a round each."""


def ratio_of(rates: Rates) -> float:
    return statistics.median(ray / process for ray, process in zip(rates["ray"], rates["process"]))


def show(name: str, what: str, rates: Rates, bar: float) -> dict[str, Any]:
    print(f"\n{name}: {what}")
    for how, values in rates.items():
        print(f"  {how:8s}" + "  ".join(f"{value:10,.0f}" for value in values) + "  env steps/s")
    ratio = ratio_of(rates)
    print(f"  ray {ratio:.2f} of processes   {verdict(ratio, bar)}", flush=True)
    return {"row": name, "ratio": ratio, "bar": bar, "env_steps_per_s": rates}


def rollouts(name: str, rounds: int) -> dict[str, Any]:
    """The session's own work between rollouts not counted."""
    settings, rates = BESIDE_SB3[name], {how: list[float]() for how in HOWS}
    with contextlib.ExitStack() as opened:
        sessions = {how: opened.enter_context(session_of(settings, given)) for how, given in HOWS.items()}
        for _ in range(rounds):
            for how, session in sessions.items():
                rates[how].append(1e6 / collect_us(session))
    return show(name, f"rollouts alone, {settings.num_envs} envs × {settings.steps_per_env} steps", rates, BAR)


def lock_step(name: str, microseconds: float, rounds: int) -> dict[str, Any]:
    rates, envs = {how: list[float]() for how in HOWS}, 8
    with contextlib.ExitStack() as opened:
        made = {
            how: opened.enter_context(
                contextlib.closing(mv.make_vec(Burn, envs, **given, env_kwargs={"microseconds": microseconds}))
            )
            for how, given in HOWS.items()
        }
        for _ in range(rounds):
            for how, one in made.items():
                rates[how].append(step_rate(one, LOCK_STEP_S))
    a_round = {how: envs / statistics.median(values) * 1e3 for how, values in rates.items()}
    told = ", ".join(f"{how} {value:.2f} ms" for how, value in a_round.items())
    found = show(name, f"lock-step, {envs} envs that burn {microseconds:g} µs; a round: {told}", rates, 0.0)
    return {**found, "ms_a_round": a_round}


def cost(name: str, rounds: int) -> dict[str, Any]:
    """collected_s(T) = a rollout's + T · a step's: from the fastest rollouts of two lengths."""
    found: dict[str, Any] = {"row": name}
    print(f"\n{name}: one rollout of CartPole-v1, 8 envs, beside its steps")
    for size in SIZES:
        taken = {(how, steps): list[float]() for how in HOWS for steps in (SHORT, LONG)}
        with contextlib.ExitStack() as opened:
            sessions = {}
            for how, steps in taken:
                settings = dataclasses.replace(BESIDE_SB3["cartpole"], steps_per_env=steps, batch_size=8 * SHORT)
                given = {**HOWS[how], "hidden_sizes": [size, size]}
                sessions[how, steps] = opened.enter_context(session_of(settings, given))
            for _ in range(rounds):
                for key, session in sessions.items():
                    taken[key] += [collected_s(session) * 1e6 for _ in range(ROLLOUTS)]
        for how in HOWS:
            short_us, long_us = (min(taken[how, steps]) for steps in (SHORT, LONG))
            step_us = (long_us - short_us) / (LONG - SHORT)
            told = {"rollout_ms": round((short_us - SHORT * step_us) / 1e3, 3), "us_per_step_of_8": round(step_us, 2)}
            found[f"{how}, {size} × {size}"] = told
            print(f"  {how:8s}{size} × {size}: {told}", flush=True)
    return found


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
        begun = time.perf_counter()
        ray.get([actor.nothing.remote() for actor in actors])
        taken.append((time.perf_counter() - begun) * 1e3)
    for actor in actors:
        ray.kill(actor)
    told = {"least_ms": round(min(taken), 3), "median_ms": round(statistics.median(taken), 3)}
    print(f"\n{name}: {WORKERS} actors that do nothing, asked every {ROLLOUT_S * 1e3:g} ms: {told}", flush=True)
    return {"row": name, **told}


class Learning(mv.Hook):
    """The processor's seconds between a rollout and what was learned from it."""

    def __init__(self) -> None:
        self.cpu_s, self._begun = 0.0, 0.0

    def on_rollout(self, trainer: Any, collected: Any) -> None:
        self._begun = time.process_time()

    def on_update(self, trainer: Any, report: Any) -> None:
        self.cpu_s += time.process_time() - self._begun


def learn(name: str, rounds: int) -> dict[str, Any]:
    found: dict[str, Any] = {"row": name}
    print(f"\n{name}: µs of the processor per env step, PPO")
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
        found[what] = [round(one, 2) for one in taken]
        print(f"  {what}: {found[what]}", flush=True)
    return found


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

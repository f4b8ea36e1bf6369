"""Collecting whole rollouts of tasks (document 002): what workers bring, and when they bring nothing.

    python benchmarks/meta.py                          about three minutes on 2 cores; pin it with taskset where more
    python benchmarks/meta.py --rounds 7 --parts bar
    python benchmarks/meta.py --parts advice --envs PointRobotSparse-v0 --rounds 1

**bar**: HalfCheetahVel, 8 rollouts × 2 episodes × 200 steps, 8 envs, a GRU of 128 with three layers of 128 acting in
numpy. Env steps per second of `EpisodeCollector` in each way to run the envs, × the same collector with the envs in the
caller (which acts in one batch too); "acting workers" is the collector with workers of its own. The bar is 1.6 on 2
cores, for the best way.
**advice**: the document's "when (not) to use" as a table: cheap and dear envs, one rollout and eight, a small policy
and a large one. × one env alone, one rollout after another; the phase is the caller's, where workers do not act.

Everything is measured in turn, round after round; ratios are taken within a round, and the median over the rounds is
shown. What is collected is the same in every cell, bit for bit, and checked.
"""

from __future__ import annotations

import argparse
import functools
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import gymnasium as gym
import numpy as np
from threadpoolctl import threadpool_limits

import multiverse as mv
from benchmarks.provenance import provenance, write_results
from benchmarks.stepping import _progress
from multiverse.executors.machine import usable_cores
from multiverse.policies.cells import Cells
from multiverse.policies.features import Features
from multiverse.policies.heads import head_for
from multiverse.policies.numpy_policies import NumpyPolicy

BAR = 1.6
TASKS = 20
ENVS = ("PointRobotSparse-v0", "HalfCheetahVel-v0", "AntDir-v0")
POLICIES = {"small": 128, "large": 1024}  # GRU and layers
RESULTS = Path(__file__).resolve().parent / "results" / "meta.json"
ACTING = "acting workers"
Way = tuple[str, int | None]
"""Executor of `make_vec`, or workers that act, of the collector; and number of workers."""


@dataclass(frozen=True, slots=True)
class Speed:
    """One collection, in one round."""

    round: int
    env: str
    policy: str
    rollouts: int
    envs: int
    way: str
    env_steps_per_s: float
    phases: dict[str, float]  # of the caller's time


def make(name: str) -> mv.MetaEpisode:
    return mv.MetaEpisode(gym.make(f"multiverse/{name}"), 2)


def acting(env: mv.MetaEpisode, size: int) -> NumpyPolicy:
    """A Memory agent's actor: a GRU over observation, previous action and reward, and three layers."""
    rng, space = np.random.default_rng(0), env.action_space
    features = Features(env.observation_space, space, True)

    def drawn(*shape: int) -> Any:
        return (rng.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)

    gates = [drawn(3 * size, features.size), drawn(3 * size, size), drawn(3 * size), drawn(3 * size)]
    out = int(np.prod(space.shape or ()))
    layers = [(drawn(size, size), drawn(size)), (drawn(size, size), drawn(size)), (drawn(size, out), drawn(out))]
    head = head_for(space, np.full(out, 0.3, np.float32))
    return NumpyPolicy(features, layers, "relu", head, 1, None, Cells("gru", [gates]))


class Cell:
    """One way to collect, ready to do it again and again."""

    def __init__(self, env: str, policy: str, rollouts: int, num_envs: int, way: Way) -> None:
        executor, workers = way
        self.env, self.policy, self.rollouts, self.num_envs = env, policy, rollouts, num_envs
        build, plan = functools.partial(make, env), mv.DrawnTasks(1, range(TASKS))
        train, held_out = mv.draw_tasks(build(), TASKS, 2, seed=1)
        tasks = [*train, *held_out]
        self._acting, self.way = acting(build(), POLICIES[policy]), f"{executor} {workers}" if workers else executor
        if executor == ACTING:
            self.collector: Any = mv.EpisodeCollector(build, plan, num_envs=num_envs, workers=workers, tasks=tasks)
            self.close = self.collector.close
        else:
            envs = mv.make_vec(build, num_envs, executor, workers=workers, tasks=tasks, autoreset="disabled")  # type: ignore[arg-type]
            self.collector, self.close = mv.EpisodeCollector(envs, plan), envs.close
        self.collector.collect(self._acting, min(rollouts, num_envs))  # warm

    def measure(self, number: int) -> tuple[Speed, bytes]:
        self.collector.collected = 0  # the same rollouts every time
        began_at = time.perf_counter()
        found = self.collector.collect(self._acting, self.rollouts)
        rate = found.env_steps / (time.perf_counter() - began_at)
        speed = Speed(
            number, self.env, self.policy, self.rollouts, self.num_envs, self.way, rate, found.seconds.share()
        )
        return speed, b"".join(episode.actions.tobytes() for episode in found.each())


def speeds(cells: list[Callable[[], Cell]], rounds: int, what: str) -> list[Speed]:
    """Every cell in every round; all of them must collect the same."""
    made = [build() for build in cells]
    found: list[Speed] = []
    try:
        for number in range(rounds):
            collected = set()
            for cell in made:
                _progress(f"{what}, round {number + 1} of {rounds}: {cell.env}, {cell.way}")
                speed, actions = cell.measure(number)
                found.append(speed)
                collected.add(actions)
            assert len(collected) == 1, "collections differ"
    finally:
        _progress("")
        for cell in made:
            cell.close()
    return found


def times(found: list[Speed], way: tuple[str, int], one: tuple[str, int]) -> float:
    """× another way (name, envs), the median over rounds."""
    by_round: dict[int, dict[tuple[str, int], float]] = {}
    for each in found:
        by_round.setdefault(each.round, {})[(each.way, each.envs)] = each.env_steps_per_s
    return statistics.median(rates[way] / rates[one] for rates in by_round.values())


def rate(found: list[Speed], way: tuple[str, int]) -> float:
    return statistics.median(each.env_steps_per_s for each in found if (each.way, each.envs) == way)


# -- the bar -----------------------------------------------------------------------------------------------------------
def bar_ways(cores: int) -> list[Way]:
    fewer = max(1, cores - 1)
    return [("serial", None), ("process", cores), ("process", fewer), ("hybrid", fewer), (ACTING, cores)]


def bar_table(found: list[Speed]) -> tuple[str, float]:
    """(markdown, the best of the ways with workers)."""
    lines = ["| envs run | env steps/s | × serial | act | step | receive | store |", "|---|---|---|---|---|---|---|"]
    ways = list(dict.fromkeys((each.way, each.envs) for each in found))
    for way in ways:
        phases = [each.phases for each in found if (each.way, each.envs) == way]
        shares = [f"{statistics.median(one[phase] for one in phases):.0%}" for phase in phases[0]]
        figures = f"{rate(found, way):,.0f} | {times(found, way, ways[0]):.2f}"
        lines.append(f"| {way[0]} | {figures} | {' | '.join(shares)} |")
    return "\n".join(lines), max(times(found, way, ways[0]) for way in ways[1:])


# -- the document's advice ---------------------------------------------------------------------------------------------
def advice_rows(envs: list[str]) -> list[tuple[str, str, int]]:
    """(env, policy, rollouts)"""
    return [(env, policy, rollouts) for env in envs for policy in POLICIES for rollouts in (1, 8)]


def advice_table(found: list[list[Speed]]) -> str:
    lines = [
        "| env | policy | rollouts | one env, steps/s | 8 in the caller | workers | acting workers | takes longest |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in found:
        ways = list(dict.fromkeys((each.way, each.envs) for each in row))
        first, central = row[0], next(each for each in row if (each.way, each.envs) == ways[2])
        longest = max(central.phases.items(), key=lambda item: item[1])
        figures = " | ".join(f"{times(row, way, ways[0]):.2f}×" for way in ways[1:])
        told = f"{longest[0]} {longest[1]:.0%}"
        name = f"{first.env} | {first.policy} | {first.rollouts}"
        lines.append(f"| {name} | {rate(row, ways[0]):,.0f} | {figures} | {told} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", default=["bar", "advice"], choices=["bar", "advice"])
    parser.add_argument("--envs", nargs="+", default=list(ENVS), choices=ENVS, help="of the advice part")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, default=RESULTS, help="where every figure goes")
    arguments = parser.parse_args()
    origin, cores = provenance(), usable_cores()
    print(f"{cores} usable cores, load average {os.getloadavg()[0]:.1f}\n", flush=True)
    bar: list[Speed] = []
    advice: list[list[Speed]] = []
    with threadpool_limits(1):
        if "bar" in arguments.parts:
            ways = list(dict.fromkeys(bar_ways(cores)))
            cells = [functools.partial(Cell, "HalfCheetahVel-v0", "small", 8, 8, way) for way in ways]
            bar = speeds(cells, arguments.rounds, "bar")
            table, best = bar_table(bar)
            verdict = "met" if best >= BAR else "missed"
            print(
                f"8 rollouts of HalfCheetahVel, a GRU acting\n\n{table}\n\nbar {BAR}: {best:.2f}, {verdict}\n",
                flush=True,
            )
        if "advice" in arguments.parts:
            for env, policy, rollouts in advice_rows(arguments.envs):
                rows = [(1, ("serial", None)), (8, ("serial", None)), (8, ("process", cores)), (8, (ACTING, cores))]
                cells = [functools.partial(Cell, env, policy, rollouts, count, way) for count, way in rows]
                advice.append(speeds(cells, arguments.rounds, f"advice, {policy} policy, {rollouts} rollouts"))
            print(f"When to use workers, × one env alone\n\n{advice_table(advice)}", flush=True)
    figures = {"bar": [asdict(one) for one in bar], "advice": [asdict(one) for row in advice for one in row]}
    write_results(arguments.json, origin, figures)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)

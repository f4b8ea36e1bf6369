"""Speed of collecting whole rollouts of tasks (document 002), with and without workers.

    python benchmarks/meta.py                          about three minutes on 2 cores; use taskset on larger machines
    python benchmarks/meta.py --rounds 7 --parts bar
    python benchmarks/meta.py --parts advice --envs PointRobotSparse-v0 --rounds 1

**bar**: HalfCheetahVel, 8 rollouts × 2 episodes × 200 steps, 8 envs, a GRU of 128 with three layers of 128 acting in
numpy. Env steps per second of `EpisodeCollector` with each executor, relative to the same collector with the envs in
the caller; "acting workers" is the collector with its own workers. The bar is 1.6 on 2 cores, for the best of them.
**advice**: the document's "when (not) to use" as a table: cheap and expensive envs, one rollout and eight, a small and
a large policy, relative to one env that plays one rollout after another. Phases are those of the caller, for workers
that do not act.

All cells are measured in turn in every round; a ratio is the median of the ratios within a round. The collected data
must be bit-identical in all cells.
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
"""(executor of `make_vec` or ACTING, number of workers)"""


@dataclass(frozen=True, slots=True)
class Speed:
    """Speed of one collection in one round."""

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
    """Return the actor of a Memory agent: a GRU over observation, previous action and reward, and three layers."""
    rng, space = np.random.default_rng(0), env.action_space
    features = Features(env.observation_space, space, True)

    def random_array(*shape: int) -> Any:
        return (rng.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)

    gates = [
        random_array(3 * size, features.size),
        random_array(3 * size, size),
        random_array(3 * size),
        random_array(3 * size),
    ]
    out = int(np.prod(space.shape or ()))
    layers = [
        (random_array(size, size), random_array(size)),
        (random_array(size, size), random_array(size)),
        (random_array(size, out), random_array(out)),
    ]
    head = head_for(space, np.full(out, 0.3, np.float32))
    return NumpyPolicy(features, layers, "relu", head, 1, None, Cells("gru", [gates]))


class Cell:
    """One way to collect rollouts, which can be measured repeatedly."""

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
        self.collector.collected = 0  # to collect the same rollouts every time
        began_at = time.perf_counter()
        collected = self.collector.collect(self._acting, self.rollouts)
        rate = collected.env_steps / (time.perf_counter() - began_at)
        speed = Speed(
            number, self.env, self.policy, self.rollouts, self.num_envs, self.way, rate, collected.seconds.share()
        )
        return speed, b"".join(episode.actions.tobytes() for episode in collected.each())


def speeds(cells: list[Callable[[], Cell]], rounds: int, label: str) -> list[Speed]:
    """Measure every cell in every round; all must collect the same data."""
    built = [build() for build in cells]
    results: list[Speed] = []
    try:
        for number in range(rounds):
            collected = set()
            for cell in built:
                _progress(f"{label}, round {number + 1} of {rounds}: {cell.env}, {cell.way}")
                speed, actions = cell.measure(number)
                results.append(speed)
                collected.add(actions)
            assert len(collected) == 1, "collections differ"
    finally:
        _progress("")
        for cell in built:
            cell.close()
    return results


def times(results: list[Speed], way: tuple[str, int], one: tuple[str, int]) -> float:
    """Return the median ratio to another way (name, envs) over the rounds."""
    by_round: dict[int, dict[tuple[str, int], float]] = {}
    for each in results:
        by_round.setdefault(each.round, {})[(each.way, each.envs)] = each.env_steps_per_s
    return statistics.median(rates[way] / rates[one] for rates in by_round.values())


def rate(results: list[Speed], way: tuple[str, int]) -> float:
    return statistics.median(each.env_steps_per_s for each in results if (each.way, each.envs) == way)


# -- the bar -----------------------------------------------------------------------------------------------------------
def bar_ways(cores: int) -> list[Way]:
    fewer = max(1, cores - 1)
    return [("serial", None), ("process", cores), ("process", fewer), ("hybrid", fewer), (ACTING, cores)]


def bar_table(results: list[Speed]) -> tuple[str, float]:
    """Return (Markdown table, best ratio with workers)."""
    lines = ["| envs run | env steps/s | × serial | act | step | receive | store |", "|---|---|---|---|---|---|---|"]
    ways = list(dict.fromkeys((each.way, each.envs) for each in results))
    for way in ways:
        phases = [each.phases for each in results if (each.way, each.envs) == way]
        shares = [f"{statistics.median(one[phase] for one in phases):.0%}" for phase in phases[0]]
        figures = f"{rate(results, way):,.0f} | {times(results, way, ways[0]):.2f}"
        lines.append(f"| {way[0]} | {figures} | {' | '.join(shares)} |")
    return "\n".join(lines), max(times(results, way, ways[0]) for way in ways[1:])


# -- the document's advice ---------------------------------------------------------------------------------------------
def advice_rows(envs: list[str]) -> list[tuple[str, str, int]]:
    """Return (env, policy, rollouts) of every row."""
    return [(env, policy, rollouts) for env in envs for policy in POLICIES for rollouts in (1, 8)]


def advice_table(results: list[list[Speed]]) -> str:
    lines = [
        "| env | policy | rollouts | one env, steps/s | 8 in the caller | workers | acting workers | takes longest |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in results:
        ways = list(dict.fromkeys((each.way, each.envs) for each in row))
        first, central = row[0], next(each for each in row if (each.way, each.envs) == ways[2])
        longest = max(central.phases.items(), key=lambda item: item[1])
        figures = " | ".join(f"{times(row, way, ways[0]):.2f}×" for way in ways[1:])
        phase = f"{longest[0]} {longest[1]:.0%}"
        name = f"{first.env} | {first.policy} | {first.rollouts}"
        lines.append(f"| {name} | {rate(row, ways[0]):,.0f} | {figures} | {phase} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", default=["bar", "advice"], choices=["bar", "advice"])
    parser.add_argument("--envs", nargs="+", default=list(ENVS), choices=ENVS, help="envs of the advice part")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, default=RESULTS, help="results file")
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

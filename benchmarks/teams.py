"""Speed of team environments: BoxJump in one process and in one process per core.

    python benchmarks/teams.py                              8 envs of 8 boxes: about half a minute
    python benchmarks/teams.py --boxes 4 16 --rounds 5 --seconds 2

Episodes: whole ones of the published env (401 steps), played by TAAC's policy, in this process or in workers that
carry it (`--whole-episodes`). Env steps: of all envs together, in lock-step with drawn actions, resets not counted;
"one process" is a bare loop over the same envs, with nothing of ours. Rates are taken in turn; ratios to one process
are taken within a round, and the median over the rounds is shown.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import multiverse as mv
from multiverse.envs.box_jump import published
from multiverse.executors.machine import usable_cores
from multiverse.training.config.resolve import config_for
from multiverse.training.learners import algorithm_maker
from multiverse.training.session import Session

NUM_ENVS, DRAWN, GOAL = 8, 64, 1.7
ONE = "one process"
EXECUTORS = ("serial", "hybrid", "process")
EPISODE_STEPS = 401


class OneProcess:
    """Plain loop over the envs in one process."""

    def __init__(self, boxes: int) -> None:
        self._envs = [published(num_boxes=boxes) for _ in range(NUM_ENVS)]
        self._actions = _drawn(boxes)
        for i, env in enumerate(self._envs):
            env.reset(seed=i)

    def step(self, t: int) -> None:
        actions = self._actions[t % DRAWN]
        for i, env in enumerate(self._envs):
            if not env.agents:
                env.reset()
            env.step(dict(zip(env.possible_agents, actions[:, i].tolist())))

    def close(self) -> None:
        pass


class Ours:
    """The same envs in a vector env."""

    def __init__(self, boxes: int, executor: Any) -> None:
        options: dict[str, Any] = {"env_kwargs": {"num_boxes": boxes}, "infos": False, "copy": False}
        self._envs = mv.make_vec(published, NUM_ENVS, executor, autoreset="same_step", **options)
        self._actions = [dict(zip(self._envs.agents, actions)) for actions in _drawn(boxes)]
        self._envs.reset(seed=0)

    def step(self, t: int) -> None:
        self._envs.step(self._actions[t % DRAWN])

    def close(self) -> None:
        self._envs.close()


class Collecting:
    """Collection of whole episodes with TAAC's policy, where the envs run."""

    def __init__(self, boxes: int, executor: str) -> None:
        options = {"executor": executor, "num_envs": NUM_ENVS, "steps_per_env": EPISODE_STEPS, "whole_episodes": True}
        env = "multiverse.envs.box_jump:published"
        config = config_for(env, "taac", {**options, "env_kwargs": {"num_boxes": boxes}}, preset=False)
        self._session = Session(config, env, algorithm_maker(config, None))
        self._session.begin()

    def rate(self, seconds: float) -> float:
        """Episodes per second, of one rollout at least."""
        episodes, began = 0, time.perf_counter()
        while not episodes or time.perf_counter() < began + seconds:
            collected = self._session.collect(lambda: False)
            assert collected is not None
            episodes += len(collected.episodes)
        return episodes / (time.perf_counter() - began)

    def close(self) -> None:
        self._session.close()


def _drawn(boxes: int) -> list[np.ndarray[Any, Any]]:
    """[boxes, envs] each."""
    rng = np.random.default_rng(0)
    return [rng.integers(0, 4, (boxes, NUM_ENVS)) for _ in range(DRAWN)]


def rate(contender: OneProcess | Ours, seconds: float) -> float:
    """Env steps per second."""
    t, until = 0, time.perf_counter() + seconds
    began = time.perf_counter()
    while time.perf_counter() < until:
        contender.step(t)
        t += 1
    return NUM_ENVS * t / (time.perf_counter() - began)


Rates = dict[str, list[float]]
"""Rates of every contender, one per round."""


def measure(boxes: int, rounds: int, seconds: float) -> tuple[Rates, Rates]:
    """(episodes per second, env steps per second)."""
    collecting = {name: Collecting(boxes, executor) for name, executor in ((ONE, "serial"), ("process", "process"))}
    stepping: dict[str, OneProcess | Ours] = {ONE: OneProcess(boxes)}
    stepping |= {name: Ours(boxes, name) for name in EXECUTORS}
    episodes: Rates = {name: [] for name in collecting}
    steps: Rates = {name: [] for name in stepping}
    try:
        for _ in range(rounds):
            for name, players in collecting.items():
                episodes[name].append(players.rate(seconds))
            for name, contender in stepping.items():
                steps[name].append(rate(contender, seconds))
    finally:
        for one in (*collecting.values(), *stepping.values()):
            one.close()
    return episodes, steps


def print_rates(boxes: int, episodes: Rates, steps: Rates) -> None:
    print(f"\nBoxJump, {NUM_ENVS} envs of {boxes} boxes, {usable_cores()} cores")
    for rates_by_name, unit, goal in ((episodes, "episodes/s", GOAL), (steps, "env steps/s", None)):
        for name, rates in rates_by_name.items():
            ratio = statistics.median(mine / one for mine, one in zip(rates, rates_by_name[ONE]))
            met = "" if goal is None or name == ONE else f"  (goal {goal}: {'met' if ratio >= goal else 'MISSED'})"
            print(f"  {name:<12} {statistics.median(rates):>10,.1f} {unit:<11}  {ratio:5.2f} × {ONE}{met}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--boxes", type=int, nargs="+", default=[8])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0)
    options = parser.parse_args()
    for boxes in options.boxes:
        print_rates(boxes, *measure(boxes, options.rounds, options.seconds))


if __name__ == "__main__":
    main()

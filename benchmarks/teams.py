"""How fast teams step: BoxJump in one process, and in as many as there are cores, round after round in one run.

    python benchmarks/teams.py                              8 envs of 8 boxes
    python benchmarks/teams.py --boxes 4 16 --rounds 5 --seconds 2

Rates are env steps per second of all envs together, drawn actions included, resets not counted. They are taken in
turn; the ratio to one process is taken within a round, and the median over the rounds is shown. "one process" is a bare
loop over the same envs, with nothing of ours.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import multiverse as mv
from multiverse.envs.box_jump import published
from multiverse.executors.machine import usable_cores

NUM_ENVS, DRAWN, GOAL = 8, 64, 1.7
ONE = "one process"
EXECUTORS = ("serial", "hybrid", "process")


class OneProcess:
    """A plain program: one env after the other."""

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
        how: dict[str, Any] = {"env_kwargs": {"num_boxes": boxes}, "infos": False, "copy": False}
        self._envs = mv.make_vec(published, NUM_ENVS, executor, autoreset="same_step", **how)
        self._actions = [dict(zip(self._envs.agents, actions)) for actions in _drawn(boxes)]
        self._envs.reset(seed=0)

    def step(self, t: int) -> None:
        self._envs.step(self._actions[t % DRAWN])

    def close(self) -> None:
        self._envs.close()


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


def measure(boxes: int, rounds: int, seconds: float) -> dict[str, list[float]]:
    """The rates of every contender, one for each round."""
    makers: dict[str, Callable[[], OneProcess | Ours]] = {ONE: lambda: OneProcess(boxes)}
    makers |= {name: lambda name=name: Ours(boxes, name) for name in EXECUTORS}  # type: ignore[misc]
    found: dict[str, list[float]] = {name: [] for name in makers}
    contenders = {name: make() for name, make in makers.items()}
    try:
        for _ in range(rounds):
            for name, contender in contenders.items():
                found[name].append(rate(contender, seconds))
    finally:
        for contender in contenders.values():
            contender.close()
    return found


def tell(boxes: int, found: dict[str, list[float]]) -> None:
    print(f"\nBoxJump, {NUM_ENVS} envs of {boxes} boxes, {usable_cores()} cores")
    for name, rates in found.items():
        ratio = statistics.median(mine / one for mine, one in zip(rates, found[ONE]))
        goal = f"  (goal {GOAL})" if name == EXECUTORS[-1] else ""
        print(f"  {name:<12} {statistics.median(rates):>10,.0f} env steps/s  {ratio:5.2f} × {ONE}{goal}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--boxes", type=int, nargs="+", default=[8])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0)
    options = parser.parse_args()
    for boxes in options.boxes:
        tell(boxes, measure(boxes, options.rounds, options.seconds))


if __name__ == "__main__":
    main()

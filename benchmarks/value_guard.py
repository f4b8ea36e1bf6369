"""Cost of checking every observation and reward: the same steps with and without the value guard.

    python benchmarks/value_guard.py                   CartPole, 8 and 64 envs, every executor
    python benchmarks/value_guard.py --env Acrobot-v1 --num-envs 8

Two vector envs that differ in `on_bad_value` only ("raise", the default, and "off") take short chunks of steps in
turn, each first in every second round; the cost is taken at the fastest tenth of the chunks, where other programs
disturb least, and at the median.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import multiverse as mv
from multiverse.measure import sample_actions

STEPS_PER_CHUNK = 20


def seconds_per_chunk(envs: mv.VectorEnv, batches: list[np.ndarray]) -> float:
    begun = time.perf_counter()
    for batch in batches:
        envs.step(batch)
    return time.perf_counter() - begun


def measure(env: str, num_envs: int, executor: str, chunks: int) -> tuple[float, float]:
    """The guard's share of a step's time: at the fastest tenth, and at the median."""
    both = [
        mv.make_vec(env, num_envs, executor, on_failure=mv.FailureOptions(on_bad_value=mode))
        for mode in ("raise", "off")
    ]  # type: ignore
    batches = [np.array(a) for a in sample_actions(both[0].action_space)][:STEPS_PER_CHUNK]
    taken: list[list[float]] = [[], []]
    for envs in both:
        envs.reset(seed=0)
        seconds_per_chunk(envs, batches * 10)
    for number in range(chunks):
        for which in (0, 1) if number % 2 else (1, 0):
            taken[which].append(seconds_per_chunk(both[which], batches))
    for envs in both:
        envs.close()
    with_guard, without = (np.quantile(t, [0.1, 0.5]) for t in taken)
    fastest, median = with_guard / without - 1
    return float(fastest), float(median)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--num-envs", type=int, nargs="+", default=[8, 64])
    parser.add_argument("--executors", nargs="+", default=["serial", "hybrid", "process"])
    parser.add_argument("--chunks", type=int, default=1500)
    options = parser.parse_args()
    print(f"{options.env}: share of a step's time that the value guard takes (bar: 3 % on CartPole)")
    for num_envs in options.num_envs:
        for executor in options.executors:
            fastest, median = measure(options.env, num_envs, executor, options.chunks)
            print(
                f"  {num_envs:3d} envs, {executor:8s} {fastest:6.1%} (fastest tenth)   {median:6.1%} (median)",
                flush=True,
            )


if __name__ == "__main__":
    main()

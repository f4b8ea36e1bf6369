"""Effect of parallel envs on training in the grid world: speed, start-up and memory, ours and the original.

    python benchmarks/grid_world_speedup.py                        three rounds: about ten minutes on 2 cores
    python benchmarks/grid_world_speedup.py --rounds 1 --env-steps 4096 --contenders "our 1" "our 8"

The document states that 8 envs collect about 8 times as fast as one. Every contender is a separate program, started in
every round and measured in turn; a ratio to one env is the median of the ratios within a round. Start-up: time from the
creation of the vector env to its first observations. Memory: private memory of a worker process (USS). Open files: file
descriptors that the vector env adds to the caller. Collecting covers PPO's rollouts only, training everything. The
programs import torch at the top, as training scripts do; workers of the original import the program again, ours do not.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from stable_baselines3.common.vec_env import SubprocVecEnv as TheirSubproc

from benchmarks.provenance import provenance, write_results
from benchmarks.stepping import _progress
from examples.grid_world.custom_env_main import config as script_config
from examples.grid_world.learner import DummyVecEnv, Learner, SubprocVecEnv
from examples.grid_world.worlds import make_env
from multiverse.executors.machine import usable_cores

Figures = dict[str, float]
"""start_s, worker_mb (0 without workers), open_files (of the caller, for it), collecting, training (env steps/s)."""

ONE_ENV = "our 1"
CONTENDERS: dict[str, Callable[[], Any]] = {
    ONE_ENV: lambda: DummyVecEnv(_env_fns(1)),
    "our 4": lambda: SubprocVecEnv(_env_fns(4)),
    "sb3 4": lambda: TheirSubproc(_env_fns(4)),
    "our 8": lambda: SubprocVecEnv(_env_fns(8)),
    "sb3 8": lambda: TheirSubproc(_env_fns(8)),
    "our 8, a process each": lambda: SubprocVecEnv(_env_fns(8), workers=8),
    "our 8, dummy": lambda: DummyVecEnv(_env_fns(8)),
}
TIME_LIMIT_S = 900


def _env_fns(num_envs: int) -> list[Callable[[], Any]]:
    return [functools.partial(make_env, "small", "reach") for _ in range(num_envs)]


# -- one contender, in a separate program -------------------------------------------------------------------------
def measure(contender: str, env_steps: int) -> Figures:
    caller = psutil.Process()
    files, start = caller.num_fds(), time.perf_counter()
    env = CONTENDERS[contender]()
    try:
        env.reset()
        start_s, open_files = time.perf_counter() - start, caller.num_fds() - files
        config = {**script_config, "total_timesteps": env_steps}
        summary = Learner(env, config, lambda figures, step: None).learn()
        worker_mb = _private_mb({process.pid for process in getattr(env, "processes", ())})
    finally:
        env.close()
    return {
        "start_s": start_s,
        "worker_mb": worker_mb,
        "open_files": open_files,
        "collecting": summary["collected_per_second"],
        "training": summary["env_steps_per_second"],
    }


def _private_mb(pids: set[int]) -> float:
    """Return the mean private memory of these processes."""
    return statistics.mean(psutil.Process(pid).memory_full_info().uss for pid in pids) / 1e6 if pids else 0.0


# -- all contenders, in turn ---------------------------------------------------------------------------------------
def measure_apart(contender: str, env_steps: int) -> Figures:
    command = [sys.executable, __file__, "--only", contender, "--env-steps", str(env_steps)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=TIME_LIMIT_S, check=True)
    figures: Figures = json.loads(done.stdout.splitlines()[-1])
    return figures


def in_turn(contenders: list[str], rounds: int, env_steps: int) -> dict[str, list[Figures]]:
    results: dict[str, list[Figures]] = {contender: [] for contender in contenders}
    for number in range(rounds):
        for contender in contenders:
            _progress(f"round {number + 1} of {rounds}: {contender}")
            results[contender].append(measure_apart(contender, env_steps))
    _progress("")
    return results


def table(results: dict[str, list[Figures]]) -> str:
    """Return the table in Markdown; × is the ratio to one env."""
    heads = ["contender", "start-up", "private MB a worker", "open files"]
    heads += ["collecting, env steps/s", "×", "training, env steps/s", "×"]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for contender, rounds in results.items():
        cells = [contender, f"{_median(rounds, 'start_s'):.2f} s", f"{_median(rounds, 'worker_mb'):.1f}"]
        cells.append(f"{_median(rounds, 'open_files'):.0f}")
        for rate in ("collecting", "training"):
            cells += [f"{_median(rounds, rate):,.0f}", _times(results, contender, rate)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _median(rounds: list[Figures], name: str) -> float:
    return statistics.median(figures[name] for figures in rounds)


def _times(results: dict[str, list[Figures]], contender: str, rate: str) -> str:
    if ONE_ENV not in results:
        return "–"
    rounds = zip(results[contender], results[ONE_ENV])
    return f"{statistics.median(figures[rate] / base[rate] for figures, base in rounds):.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--contenders", nargs="+", default=list(CONTENDERS), choices=CONTENDERS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--env-steps", type=int, default=20_480, help="env steps per training")
    parser.add_argument("--json", type=Path, help="results file with every round")
    parser.add_argument("--only", choices=CONTENDERS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.only:
        print(json.dumps(measure(arguments.only, arguments.env_steps)))
        return
    origin = provenance()
    results = in_turn(arguments.contenders, arguments.rounds, arguments.env_steps)
    cores = usable_cores()
    print(
        f"{cores} usable cores, {arguments.rounds} rounds, {arguments.env_steps:,} env steps each\n\n{table(results)}"
    )
    if arguments.json:
        write_results(arguments.json, origin, {"rounds": results})


if __name__ == "__main__":  # needed by the original's workers
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)

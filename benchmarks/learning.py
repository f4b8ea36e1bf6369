"""How well the presets learn, at the published budgets: every seed, their interquartile mean, and the published figure.

    python benchmarks/learning.py                                   all tasks whose packages are installed, 5 seeds
    python benchmarks/learning.py --tasks CartPole-v1 --seeds 10 --processes 2 --json benchmarks/results/learning.json

A run's figure is the mean return of its final weights, deterministic, over 100 episodes on seeds that no training
sees; never its best moment. Each run has one process and steps its envs in it (`executor="serial"`: the executor
changes no bit of a run). "inside" means that the published figure, itself one run, lies inside the bootstrap interval
of ours or below it.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from multiverse.cli.seeds import bootstrap_interval, interquartile_mean

EPISODES = 100


@dataclass(frozen=True)
class Task:
    """An env, what others reached there, and what ours must."""

    env: str
    published: float
    source: str
    needs: str | None = None
    seeds: int = 5


TASKS = (
    Task("CartPole-v1", 500.0, "rl-baselines3-zoo, 100 k steps"),
    Task("Acrobot-v1", -86.4, "CleanRL, 500 k steps"),
    Task("Pendulum-v1", -172.0, "rl-baselines3-zoo, 100 k steps, one run"),
    Task("LunarLander-v3", 242.0, "rl-baselines3-zoo, 1 M steps, one run", "Box2D"),
    Task("HalfCheetah-v5", 1443.0, "CleanRL (v4), 1 M steps", "mujoco", seeds=3),
)


def one_run(env: str, seed: int) -> dict[str, Any]:
    """Train once and look at the final weights. Runs in a process of its own."""
    import multiverse as mv

    with tempfile.TemporaryDirectory() as home:
        run = mv.train(
            env,
            seed=seed,
            executor="serial",
            evaluate_every=0,
            evaluation_episodes=EPISODES,
            checkpoint_every_s=1e9,
            run_dir=Path(home) / "run",
        )
    told = run.summary
    return {
        "env": env,
        "seed": seed,
        "mean_return": told["evaluation"]["mean_return"],
        "std_return": told["evaluation"]["std_return"],
        "env_steps": told["env_steps"],
        "seconds": told["seconds"] - told["evaluate_s"],
    }


def started(env: str, seed: int) -> dict[str, Any]:
    begun = time.monotonic()
    threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, __file__, "--one", env, str(seed)],
        capture_output=True,
        text=True,
        env={**os.environ, **threads},
    )
    if done.returncode:
        print(f"{env}, seed {seed}, failed:\n{done.stderr}", flush=True)
        raise SystemExit(1)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    print(f"{env:16s} seed {seed}: {found['mean_return']:9.1f}   ({time.monotonic() - begun:.0f} s)", flush=True)
    return found


def show(task: Task, runs: list[dict[str, Any]]) -> dict[str, Any]:
    returns = [run["mean_return"] for run in runs]
    low, high = bootstrap_interval(returns)
    iqm = interquartile_mean(returns)
    verdict = "reached" if iqm >= task.published else "inside" if high >= task.published else "MISSED"
    print(
        f"\n{task.env}: IQM {iqm:.1f} ({low:.1f} to {high:.1f}) of {len(runs)} seeds; published {task.published:g} "
        f"({task.source}): {verdict}"
    )
    print("  " + "  ".join(f"{value:.1f}" for value in returns), flush=True)
    return {"env": task.env, "published": task.published, "source": task.source, "iqm": iqm, "interval": [low, high],
            "verdict": verdict, "runs": runs}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=[task.env for task in TASKS], default=None)
    parser.add_argument("--seeds", type=int, default=None, help="of each task; default 5, HalfCheetah 3")
    parser.add_argument("--processes", type=int, default=2, help="runs side by side")
    parser.add_argument("--json", type=Path, help="write everything here too")
    parser.add_argument("--one", nargs=2, metavar=("ENV", "SEED"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(one_run(options.one[0], int(options.one[1]))))
        return
    wanted = [task for task in TASKS if options.tasks is None or task.env in options.tasks]
    there = [task for task in wanted if task.needs is None or importlib.util.find_spec(task.needs) is not None]
    for task in wanted:
        if task not in there:
            print(f"{task.env}: left out ({task.needs} is not installed)")
    # The longest first, so that the last process to end is a short one.
    jobs = [(task, seed) for task in reversed(there) for seed in range(1, 1 + (options.seeds or task.seeds))]
    with ThreadPoolExecutor(options.processes) as pool:
        runs = list(pool.map(lambda job: started(job[0].env, job[1]), jobs))
    found = [show(task, [run for run in runs if run["env"] == task.env]) for task in there]
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps({"episodes": EPISODES, "tasks": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()

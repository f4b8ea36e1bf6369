"""Asynchronous and synchronous learning: time to a target return, and the effect of policy lag with each correction.

    python benchmarks/asynchronous.py race                                   CartPole-v1 to 475, HalfCheetah-v5 to 1,500
    python benchmarks/asynchronous.py race --envs CartPole-v1 --seeds 5      about 5 minutes on 2 cores
    python benchmarks/asynchronous.py lag --seeds 5                          about 10 minutes on 2 cores
    python benchmarks/asynchronous.py lag --lags 0 2 8 --corrections vtrace none --seeds 3 --json lag.json
    python benchmarks/asynchronous.py race lag --cells 8 --limit-s 170      on 16 cores; long runs last

race: the presets, with workers in processes in all three modes. `rest` and `discard` state what a full queue causes. A
run ends with the first evaluation (10 unseen episodes, at equal intervals) that reaches the return, or with its
budget. Its time is that of training, without evaluations and saving.

lag: CartPole-v1 for 51,200 env steps, with `max_lag` and `queue_size` N and workers that rest. Collecting is faster
than twenty epochs, so the queue is full, and a rollout is N updates old when it is used (0: rollouts of earlier
policies are discarded). The measured mean lag is reported too. `curve` is the mean return of all evaluations during
training (every 5,120 env steps); `at env steps` is the first evaluation that reached 475, or the whole budget.

Runs are made one after another, with seeds in the outer loop, so that other load on the machine affects all modes
equally. With `--cells` N, N runs are made in parallel, each on its own 2 cores. Runs cut short by `--limit-s` are
reported separately and excluded from medians.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import multiverse as mv
from benchmarks.provenance import provenance, write_results


@dataclass(frozen=True)
class Goal:
    """Target return, budget of a run, evaluation interval, and whether the run ends at the target."""

    reached: float
    env_steps: int
    evaluate_every: int
    ends: bool = True


GOALS = {"CartPole-v1": Goal(475.0, 100_000, 4_096), "HalfCheetah-v5": Goal(1_500.0, 1_000_000, 40_960)}
LONG = Goal(475.0, 51_200, 5_120, ends=False)
MODES: dict[str, dict[str, Any]] = {
    "synchronous": {},
    "rest": {"asynchronous": True, "full_queue": "rest"},
    "discard": {"asynchronous": True, "full_queue": "discard"},
}
RETURN = "evaluation_mean_return"
CORRECTIONS = ("vtrace", "ratio", "none")


@dataclass(frozen=True)
class Job:
    """One training run: env, goal, seed and settings."""

    env: str
    goal: Goal
    seed: int
    settings: dict[str, Any]


class Limit(mv.Hook):
    """Hook that ends a run when the benchmark's time limit is reached."""

    def __init__(self, deadline: float) -> None:
        self._deadline, self.ended = deadline, False

    def on_update(self, trainer: Any, report: Any) -> None:
        if time.time() > self._deadline:
            self.ended = True
            trainer.stop("the time limit of the benchmark is reached")


def run(job: Job, deadline: float) -> dict[str, Any] | None:
    """Train until the goal or the end of the budget; return None if the time limit was reached before the start."""
    if time.time() > deadline:
        return None
    goal, limit = job.goal, Limit(deadline)
    settings: dict[str, Any] = {
        "env_steps": goal.env_steps,
        "evaluate_every": goal.evaluate_every,
        "executor": "process",
    }
    settings |= {
        "target_return": goal.reached if goal.ends else None,
        "seed": job.seed,
        "progress": False,
        **job.settings,
    }
    with tempfile.TemporaryDirectory() as folder:
        result = mv.train(job.env, run_dir=Path(folder, "run"), hooks=[limit], **settings)
        lines = [json.loads(line) for line in Path(result.path, "metrics.jsonl").read_text().splitlines()]
    lags = [line["policy_lag"] for line in lines if "policy_lag" in line]
    curve = {line["env_steps"]: line[RETURN] for line in lines if RETURN in line}
    summary, reached = result.summary, any(value >= goal.reached for value in curve.values())
    return {
        "seed": job.seed,
        "finished": not limit.ended or (reached and goal.ends),
        "reached": reached,
        "reached_at": next((at for at, value in curve.items() if value >= goal.reached), summary["env_steps"]),
        "seconds": summary["seconds"] - summary["evaluate_s"] - summary["save_s"],
        "curve": statistics.fmean(curve.values()) if curve else None,
        "return": summary["evaluation"]["mean_return"],
        "mean_lag": statistics.fmean(lags) if lags else 0.0,
        "account": summary.get("asynchronous"),
    }


Row = dict[str, Any]


def race(seeds: int, goals: dict[str, Goal]) -> list[tuple[Row, Job]]:
    rows: dict[tuple[str, str], Row] = {
        (env, mode): {"env": env, "mode": mode, "runs": []} for env in goals for mode in MODES
    }
    return [
        (row, Job(env, goals[env], seed, MODES[mode])) for seed in range(seeds) for (env, mode), row in rows.items()
    ]


def cost_of_lag(lags: Sequence[int], corrections: Sequence[str], seeds: int, goal: Goal) -> list[tuple[Row, Job]]:
    rows: dict[tuple[int, str], Row] = {
        (lag, correction): {"max_lag": lag, "correction": correction, "runs": []}
        for lag in lags
        for correction in (corrections if lag else corrections[:1])  # without lag, corrections have no effect
    }
    jobs = []
    for seed in range(seeds):
        for (lag, correction), row in rows.items():
            settings = {**MODES["rest"], "max_lag": lag, "queue_size": max(1, lag), "lag_correction": correction}
            jobs.append((row, Job("CartPole-v1", goal, seed, settings)))
    return jobs


CELL = 2
"""Number of cores of one run."""


def cells_of(count: int) -> Any:
    """Return a queue with the cores of each cell, from which every process takes its own."""
    cores = sorted(os.sched_getaffinity(0))
    if count > 1 and count * CELL > len(cores):
        raise SystemExit(f"--cells {count} needs {count * CELL} cores, but only {len(cores)} are usable")
    free = multiprocessing.get_context("spawn").SimpleQueue()
    for k in range(count):
        free.put(cores[k * CELL : (k + 1) * CELL])
    return free


def pin_to_cell(free: Any) -> None:
    """Pin this process of the pool, and all processes it starts, to the cores of a cell."""
    os.sched_setaffinity(0, free.get())


def run_jobs(jobs: Sequence[tuple[Row, Job]], count: int, limit_s: float, on_result: Any) -> None:
    """Run all jobs and append their results to their rows; call `on_result` after each."""
    deadline, spawn = time.time() + limit_s, multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(count, mp_context=spawn, initializer=pin_to_cell, initargs=(cells_of(count),)) as pool:
        rows: dict[Future[Any], tuple[Row, Job]] = {pool.submit(run, job, deadline): (row, job) for row, job in jobs}
        try:
            for future in as_completed(rows):
                row, job = rows[future]
                name = ", ".join(str(value) for name, value in row.items() if name != "runs")
                if (result := future.result()) is None:
                    print(
                        f"{name}, seed {job.seed}: not started, the time limit is reached", file=sys.stderr, flush=True
                    )
                    continue
                row["runs"].append(result)
                _print_result(name, result)
                on_result()
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise


COLUMNS = {"seconds": ".1f", "reached_at": ",.0f", "curve": ".0f", "return": ".0f"}


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the table: median, minimum and maximum over the seeds of finished runs."""
    names = [name for name in rows[0] if name != "runs"]
    lines = [f"| {' | '.join(names)} | reached | seconds | at env steps | curve | last return | mean lag | discarded |"]
    lines.append("|---" * (len(names) + 7) + "|")
    for row in rows:
        runs = [one for one in row["runs"] if one["finished"]]
        if not runs:
            lines.append(f"| {' | '.join(str(row[name]) for name in names)} | none finished |" + " |" * 6)
            continue
        accounts = [one["account"] for one in runs if one["account"]]
        discarded = sum(sum(count for name, count in one.items() if name.startswith("discarded")) for one in accounts)
        share = f"{discarded / sum(one['sent'] for one in accounts):.0%}" if accounts else "–"
        cells = [*(str(row[name]) for name in names), f"{sum(one['reached'] for one in runs)} of {len(runs)}"]
        if cut := len(row["runs"]) - len(runs):
            cells[-1] += f", {cut} cut short"
        cells += [_spread([one[name] for one in runs], form) for name, form in COLUMNS.items()]
        lines.append(f"| {' | '.join(cells)} | {statistics.fmean(one['mean_lag'] for one in runs):.2f} | {share} |")
    return "\n".join(lines)


def _spread(values: Sequence[float], form: str) -> str:
    return f"{statistics.median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


def _print_result(what: str, result: dict[str, Any]) -> None:
    curve = "" if result["curve"] is None else f", curve {result['curve']:.0f}"
    end = f"{result['seconds']:.1f} s, {result['reached_at']:,} env steps{curve}"
    end += "" if result["finished"] else ", cut short"
    print(f"{what}, seed {result['seed']}: {end}, mean lag {result['mean_lag']:.2f}", file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="+", choices=["race", "lag"])
    parser.add_argument("--envs", nargs="+", choices=GOALS, default=list(GOALS), help="environments of the race")
    parser.add_argument("--lags", nargs="+", type=int, default=[0, 1, 2, 4, 8])
    parser.add_argument("--corrections", nargs="+", choices=CORRECTIONS, default=list(CORRECTIONS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--env-steps", type=int, help="env steps of every run (default: those of the goal)")
    parser.add_argument("--cells", type=int, default=1, help="number of parallel runs, each on its own 2 cores")
    parser.add_argument(
        "--limit-s", type=float, default=float("inf"), help="time limit, after which runs are cut short"
    )
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    budget = {} if options.env_steps is None else {"env_steps": options.env_steps}
    origin, jobs = provenance(), dict[str, list[tuple[Row, Job]]]()
    if "race" in options.what:
        jobs["race"] = race(options.seeds, {env: replace(GOALS[env], **budget) for env in options.envs})
    if "lag" in options.what:
        jobs["lag"] = cost_of_lag(options.lags, options.corrections, options.seeds, replace(LONG, **budget))
    rows = {what: list({id(row): row for row, _ in entries}.values()) for what, entries in jobs.items()}

    def write() -> None:
        if options.json is not None:
            write_results(options.json, origin, rows)

    short_first = sorted(
        (one for entries in jobs.values() for one in entries), key=lambda one: list(GOALS).index(one[1].env)
    )
    run_jobs(short_first, options.cells, options.limit_s, write)
    for entries in rows.values():
        print(table(entries))


if __name__ == "__main__":
    main()

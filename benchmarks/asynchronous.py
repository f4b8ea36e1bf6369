"""Asynchronous learning beside synchronous: seconds until a return is reached; and what it costs to learn from older
policies, with each correction and without.

    python benchmarks/asynchronous.py race                                   CartPole-v1 to 475, HalfCheetah-v5 to 1,500
    python benchmarks/asynchronous.py race --envs CartPole-v1 --seeds 5      about 5 minutes on 2 cores
    python benchmarks/asynchronous.py lag --seeds 5                          about 10 minutes on 2 cores
    python benchmarks/asynchronous.py lag --lags 0 2 8 --corrections vtrace none --seeds 3 --json lag.json
    python benchmarks/asynchronous.py race lag --cells 8 --limit-s 170      on 16 cores; the long runs come last

race: the presets, workers in processes in all three. `rest` and `discard` are what becomes of a full queue. A run ends
with the first evaluation (10 unseen episodes, as often for all) that reaches the return; its seconds are those of
training, evaluations and saving not counted, and so are they if it never does.

lag: CartPole-v1 for 51,200 env steps, `max_lag` and `queue_size` N, and workers that rest: they are faster than twenty
epochs are, so the queue is full and a rollout N updates old when it is learned from (0: what is not of the present
policy is discarded). The mean lag that was measured stands beside it. `curve` is the mean return of all evaluations on
the way (every 5,120 env steps), `475 at` the env steps of the first that reached 475, or the whole budget.

Runs come one after another, seeds outermost, so that what else the machine does falls on all alike; with `--cells` so
many side by side, each on 2 cores of its own. Those that `--limit-s` has cut short are told apart, and no median has
them.
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
    """A return, how long a run may take for it, how often it is asked, and whether it ends there."""

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
    """One training: an env, a goal, a seed, and its settings."""

    env: str
    goal: Goal
    seed: int
    settings: dict[str, Any]


class Limit(mv.Hook):
    """Ends a run when the benchmark's time is over."""

    def __init__(self, deadline: float) -> None:
        self._deadline, self.ended = deadline, False

    def on_update(self, trainer: Any, report: Any) -> None:
        if time.time() > self._deadline:
            self.ended = True
            trainer.stop("the benchmark's time is over")


def run(job: Job, deadline: float) -> dict[str, Any] | None:
    """Until the goal or the end of its budget; None if its time is over before it begins."""
    if time.time() > deadline:
        return None
    goal, limit = job.goal, Limit(deadline)
    how: dict[str, Any] = {"env_steps": goal.env_steps, "evaluate_every": goal.evaluate_every, "executor": "process"}
    how |= {"target_return": goal.reached if goal.ends else None, "seed": job.seed, "progress": False, **job.settings}
    with tempfile.TemporaryDirectory() as folder:
        done = mv.train(job.env, run_dir=Path(folder, "run"), hooks=[limit], **how)
        lines = [json.loads(line) for line in Path(done.path, "metrics.jsonl").read_text().splitlines()]
    lags = [line["policy_lag"] for line in lines if "policy_lag" in line]
    curve = {line["env_steps"]: line[RETURN] for line in lines if RETURN in line}
    summary, reached = done.summary, any(found >= goal.reached for found in curve.values())
    return {
        "seed": job.seed,
        "finished": not limit.ended or (reached and goal.ends),
        "reached": reached,
        "reached_at": next((at for at, found in curve.items() if found >= goal.reached), summary["env_steps"]),
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
        (lag, how): {"max_lag": lag, "correction": how, "runs": []}
        for lag in lags
        for how in (corrections if lag else corrections[:1])  # without lag there is nothing to correct
    }
    jobs = []
    for seed in range(seeds):
        for (lag, how), row in rows.items():
            settings = {**MODES["rest"], "max_lag": lag, "queue_size": max(1, lag), "lag_correction": how}
            jobs.append((row, Job("CartPole-v1", goal, seed, settings)))
    return jobs


CELL = 2
"""Cores."""


def cells_of(count: int) -> Any:
    """The cores of each, to be taken by whoever runs there."""
    cores = sorted(os.sched_getaffinity(0))
    if count > 1 and count * CELL > len(cores):
        raise SystemExit(f"--cells {count}: each has {CELL} cores, and there are {len(cores)}")
    free = multiprocessing.get_context("spawn").SimpleQueue()
    for k in range(count):
        free.put(cores[k * CELL : (k + 1) * CELL])
    return free


def settle(free: Any) -> None:
    """In a process of the pool: all that it starts stays there too."""
    os.sched_setaffinity(0, free.get())


def all_of(jobs: Sequence[tuple[Row, Job]], count: int, limit_s: float, told: Any) -> None:
    """Every job's run into its row; `told` after each."""
    deadline, spawn = time.time() + limit_s, multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(count, mp_context=spawn, initializer=settle, initargs=(cells_of(count),)) as pool:
        asked: dict[Future[Any], tuple[Row, Job]] = {pool.submit(run, job, deadline): (row, job) for row, job in jobs}
        try:
            for done in as_completed(asked):
                row, job = asked[done]
                what = ", ".join(str(value) for name, value in row.items() if name != "runs")
                if (found := done.result()) is None:
                    print(f"{what}, seed {job.seed}: not begun, its time is over", file=sys.stderr, flush=True)
                    continue
                row["runs"].append(found)
                _tell(what, found)
                told()
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise


COLUMNS = {"seconds": ".1f", "reached_at": ",.0f", "curve": ".0f", "return": ".0f"}


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Medians over the seeds, with the least and the most, of runs that came to their end."""
    names = [name for name in rows[0] if name != "runs"]
    lines = [f"| {' | '.join(names)} | reached | seconds | at env steps | curve | last return | mean lag | discarded |"]
    lines.append("|---" * (len(names) + 7) + "|")
    for row in rows:
        runs = [one for one in row["runs"] if one["finished"]]
        if not runs:
            lines.append(f"| {' | '.join(str(row[name]) for name in names)} | none finished |" + " |" * 6)
            continue
        accounts = [one["account"] for one in runs if one["account"]]
        thrown = sum(sum(count for name, count in one.items() if name.startswith("discarded")) for one in accounts)
        share = f"{thrown / sum(one['sent'] for one in accounts):.0%}" if accounts else "–"
        cells = [*(str(row[name]) for name in names), f"{sum(one['reached'] for one in runs)} of {len(runs)}"]
        if cut := len(row["runs"]) - len(runs):
            cells[-1] += f", {cut} cut short"
        cells += [_spread([one[name] for one in runs], form) for name, form in COLUMNS.items()]
        lines.append(f"| {' | '.join(cells)} | {statistics.fmean(one['mean_lag'] for one in runs):.2f} | {share} |")
    return "\n".join(lines)


def _spread(values: Sequence[float], form: str) -> str:
    return f"{statistics.median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


def _tell(what: str, found: dict[str, Any]) -> None:
    curve = "" if found["curve"] is None else f", curve {found['curve']:.0f}"
    end = f"{found['seconds']:.1f} s, {found['reached_at']:,} env steps{curve}"
    end += "" if found["finished"] else ", cut short"
    print(f"{what}, seed {found['seed']}: {end}, mean lag {found['mean_lag']:.2f}", file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="+", choices=["race", "lag"])
    parser.add_argument("--envs", nargs="+", choices=GOALS, default=list(GOALS), help="of the race")
    parser.add_argument("--lags", nargs="+", type=int, default=[0, 1, 2, 4, 8])
    parser.add_argument("--corrections", nargs="+", choices=CORRECTIONS, default=list(CORRECTIONS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--env-steps", type=int, help="another budget than that of the goal")
    parser.add_argument("--cells", type=int, default=1, help="runs side by side, each on 2 cores of its own")
    parser.add_argument("--limit-s", type=float, default=float("inf"), help="runs that have not ended by then are cut")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    budget = {} if asked.env_steps is None else {"env_steps": asked.env_steps}
    known, jobs = provenance(), dict[str, list[tuple[Row, Job]]]()
    if "race" in asked.what:
        jobs["race"] = race(asked.seeds, {env: replace(GOALS[env], **budget) for env in asked.envs})
    if "lag" in asked.what:
        jobs["lag"] = cost_of_lag(asked.lags, asked.corrections, asked.seeds, replace(LONG, **budget))
    rows = {what: list({id(row): row for row, _ in some}.values()) for what, some in jobs.items()}

    def write() -> None:
        if asked.json is not None:
            write_results(asked.json, known, rows)

    short_first = sorted((one for some in jobs.values() for one in some), key=lambda one: list(GOALS).index(one[1].env))
    all_of(short_first, asked.cells, asked.limit_s, write)
    for some in rows.values():
        print(table(some))


if __name__ == "__main__":
    main()

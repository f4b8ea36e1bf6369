"""Asynchronous learning beside synchronous: seconds until a return is reached; and what it costs to learn from older
policies, with each correction and without.

    python benchmarks/asynchronous.py race                                   CartPole-v1 to 475, HalfCheetah-v5 to 1,500
    python benchmarks/asynchronous.py race --envs CartPole-v1 --seeds 5      about 5 minutes on 2 cores
    python benchmarks/asynchronous.py lag --seeds 5                          about 10 minutes on 2 cores
    python benchmarks/asynchronous.py lag --lags 0 2 8 --corrections vtrace none --seeds 3 --json lag.json

race: the presets, workers in processes in all three. `rest` and `discard` are what becomes of a full queue. A run ends
with the first evaluation (10 unseen episodes, as often for all) that reaches the return; its seconds are those of
training, evaluations and saving not counted, and so are they if it never does.

lag: CartPole-v1 for 51,200 env steps, `max_lag` and `queue_size` N, and workers that rest: they are faster than twenty
epochs are, so the queue is full and a rollout N updates old when it is learned from (0: what is not of the present
policy is discarded). The mean lag that was measured stands beside it. `curve` is the mean return of all evaluations on
the way (every 5,120 env steps), `475 at` the env steps of the first that reached 475, or the whole budget.

Runs come one after another, seeds outermost, so that what else the machine does falls on all alike.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
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


def run(env: str, seed: int, goal: Goal, settings: dict[str, Any]) -> dict[str, Any]:
    """One training, until the goal or the end of its budget."""
    how: dict[str, Any] = {"env_steps": goal.env_steps, "evaluate_every": goal.evaluate_every, "executor": "process"}
    how |= {"target_return": goal.reached if goal.ends else None, "seed": seed, "progress": False, **settings}
    with tempfile.TemporaryDirectory() as folder:
        done = mv.train(env, run_dir=Path(folder, "run"), **how)
        lines = [json.loads(line) for line in Path(done.path, "metrics.jsonl").read_text().splitlines()]
    lags = [line["policy_lag"] for line in lines if "policy_lag" in line]
    curve = {line["env_steps"]: line[RETURN] for line in lines if RETURN in line}
    summary = done.summary
    return {
        "seed": seed,
        "reached": any(found >= goal.reached for found in curve.values()),
        "reached_at": next((at for at, found in curve.items() if found >= goal.reached), summary["env_steps"]),
        "seconds": summary["seconds"] - summary["evaluate_s"] - summary["save_s"],
        "curve": statistics.fmean(curve.values()),
        "return": summary["evaluation"]["mean_return"],
        "mean_lag": statistics.fmean(lags) if lags else 0.0,
        "account": summary.get("asynchronous"),
    }


def race(seeds: int, goals: dict[str, Goal]) -> list[dict[str, Any]]:
    rows: dict[tuple[str, str], dict[str, Any]] = {
        (env, mode): {"env": env, "mode": mode, "runs": []} for env in goals for mode in MODES
    }
    for seed in range(seeds):
        for (env, mode), row in rows.items():
            row["runs"].append(run(env, seed, goals[env], MODES[mode]))
            _tell(f"{env} {mode}", row["runs"][-1])
    return list(rows.values())


def cost_of_lag(lags: Sequence[int], corrections: Sequence[str], seeds: int, goal: Goal) -> list[dict[str, Any]]:
    rows: dict[tuple[int, str], dict[str, Any]] = {
        (lag, how): {"max_lag": lag, "correction": how, "runs": []}
        for lag in lags
        for how in (corrections if lag else corrections[:1])  # without lag there is nothing to correct
    }
    for seed in range(seeds):
        for (lag, how), row in rows.items():
            settings = {**MODES["rest"], "max_lag": lag, "queue_size": max(1, lag), "lag_correction": how}
            row["runs"].append(run("CartPole-v1", seed, goal, settings))
            _tell(f"lag {lag} {how}", row["runs"][-1])
    return list(rows.values())


COLUMNS = {"seconds": ".1f", "reached_at": ",.0f", "curve": ".0f", "return": ".0f"}


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Medians over the seeds, with the least and the most."""
    names = [name for name in rows[0] if name != "runs"]
    lines = [f"| {' | '.join(names)} | reached | seconds | at env steps | curve | last return | mean lag | discarded |"]
    lines.append("|---" * (len(names) + 7) + "|")
    for row in rows:
        runs = row["runs"]
        accounts = [one["account"] for one in runs if one["account"]]
        thrown = sum(sum(count for name, count in one.items() if name.startswith("discarded")) for one in accounts)
        share = f"{thrown / sum(one['sent'] for one in accounts):.0%}" if accounts else "–"
        cells = [*(str(row[name]) for name in names), f"{sum(one['reached'] for one in runs)} of {len(runs)}"]
        cells += [_spread([one[name] for one in runs], form) for name, form in COLUMNS.items()]
        lines.append(f"| {' | '.join(cells)} | {statistics.fmean(one['mean_lag'] for one in runs):.2f} | {share} |")
    return "\n".join(lines)


def _spread(values: Sequence[float], form: str) -> str:
    return f"{statistics.median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


def _tell(what: str, found: dict[str, Any]) -> None:
    end = f"{found['seconds']:.1f} s, {found['reached_at']:,} env steps, curve {found['curve']:.0f}"
    print(f"{what}, seed {found['seed']}: {end}, mean lag {found['mean_lag']:.2f}", file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["race", "lag"])
    parser.add_argument("--envs", nargs="+", choices=GOALS, default=list(GOALS), help="of the race")
    parser.add_argument("--lags", nargs="+", type=int, default=[0, 1, 2, 4, 8])
    parser.add_argument("--corrections", nargs="+", choices=CORRECTIONS, default=list(CORRECTIONS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--env-steps", type=int, help="another budget than that of the goal")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    budget = {} if asked.env_steps is None else {"env_steps": asked.env_steps}
    known = provenance()
    if asked.what == "race":
        rows = race(asked.seeds, {env: replace(GOALS[env], **budget) for env in asked.envs})
    else:
        rows = cost_of_lag(asked.lags, asked.corrections, asked.seeds, replace(LONG, **budget))
    print(table(rows))
    if asked.json is not None:
        write_results(asked.json, known, {"rows": rows})


if __name__ == "__main__":
    main()

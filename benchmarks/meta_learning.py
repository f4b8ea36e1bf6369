"""Learning results of off-policy algorithms with and without memory: partially observed envs and meta-RL.

    python benchmarks/meta_learning.py                                          all rows, 5 seeds each
    python benchmarks/meta_learning.py --jobs 16 --out DIR --limit-s 580 --json benchmarks/results/meta_learning.json
    python benchmarks/meta_learning.py --tasks wind wind-markov --out DIR       some rows; run it again to resume

On 2 cores, in parts, on one commit (each stops after `--limit-s`; the same command resumes it). The last column is the
estimated time per seed in minutes of one core, from shorter runs on a shared machine:

    M="python benchmarks/meta_learning.py --jobs 2 --out DIR --limit-s 580"
    $M --tasks cart-pole-dqn cart-pole-discrete-sac                             1 and 1
    $M --tasks pendulum-sac pendulum-td3                                        3½ and 2½
    $M --tasks cart-pole-v                                                      4
    $M --tasks semi-circle-markov semi-circle-oracle semi-circle                1½, 1½ and 9
    $M --tasks pendulum-v                                                       30
    $M --tasks wind-markov wind                                                 1 and 12
    $M --tasks half-cheetah-vel ant-dir --seeds 3                               17 and 17
    $M --limit-s 0 --json benchmarks/results/meta_learning.json                 runs nothing; reports all finished runs

| rows | figure | target |
|---|---|---|
| pendulum-sac, pendulum-td3, cart-pole-dqn, cart-pole-discrete-sac | mean return | the published figure |
| cart-pole-v: discrete SAC with an LSTM, velocities only | mean return | 200 at 10 k env steps |
| pendulum-v: TD3 with an LSTM, velocities only | mean return | -197 at 31 k |
| semi-circle, -markov, -oracle | return of the second episode | ≥ 1.5 × Markov, above its first one, ≥ 0.6 × oracle |
| wind, wind-markov | mean return | above Markov, with separate intervals |
| half-cheetah-vel, ant-dir: 220 k env steps | return of the second episode | above random actions and zero actions |

Variants of a row have the same env steps and gradient steps, which are reported. Figures are those of the final
weights, deterministic, over 100 episodes on unseen seeds and tasks. Runs are processes with one thread each. Options
and the handling of interrupted runs are those of `learning.py`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import learning
from benchmarks.learning import EPISODES, Runs, parser_for, run_and_report, run_command_line
from multiverse.training.config.resolve import presets
from multiverse.training.runs.records import bootstrap_interval, interquartile_mean

MARKOV = {"memory": None, "batch_size": 256}
SEMI_CIRCLE, WIND = "multiverse/PointRobotSparse-v0", "multiverse/Wind-v0"


@dataclass(frozen=True, eq=False)
class Task:
    """One row: a preset with changed settings; `figure` is the measured value of its evaluation."""

    name: str
    env: str
    algorithm: str
    wanted: float | None = None
    figure: str = "mean_return"
    settings: Mapping[str, Any] = field(default_factory=dict)


SECOND = "mean_return/episode_2"
A_WHILE = {"env_steps": 220_000}
TASKS = (
    Task("pendulum-sac", "Pendulum-v1", "sac", -157.0),
    Task("pendulum-td3", "Pendulum-v1", "td3", -152.0),
    Task("cart-pole-dqn", "CartPole-v1", "dqn", 500.0),
    Task("cart-pole-discrete-sac", "CartPole-v1", "discrete_sac", 500.0),
    Task("wind-markov", WIND, "sac", settings=MARKOV),
    Task("semi-circle-markov", SEMI_CIRCLE, "sac", figure=SECOND, settings=MARKOV),
    Task("semi-circle-oracle", SEMI_CIRCLE, "sac", figure=SECOND, settings={**MARKOV, "oracle": True}),
    Task("wind", WIND, "sac"),
    Task("cart-pole-v", "multiverse/CartPole-V-v1", "discrete_sac", 200.0),
    Task("pendulum-v", "multiverse/Pendulum-V-v1", "td3", -197.0),
    Task("semi-circle", SEMI_CIRCLE, "sac", figure=SECOND),
    Task("half-cheetah-vel", "multiverse/HalfCheetahVel-v0", "sac", figure=SECOND, settings=A_WHILE),
    Task("ant-dir", "multiverse/AntDir-v0", "sac", figure=SECOND, settings=A_WHILE),
)
"""Ordered by duration, the shortest first."""
BESIDE = (
    ("semi-circle", "semi-circle-markov", 1.5),
    ("semi-circle", "semi-circle-oracle", 0.6),
    ("wind", "wind-markov", 1.0),
)
"""(row, reference row, target ratio)"""


def one_run(task: Task, seed: int, run: Path, env_steps: int | None) -> None:
    learning.one_run(
        learning.Task(task.env, None, "", "", algorithm=task.algorithm, settings=task.settings), seed, run, env_steps
    )


def load_result(run: Path) -> dict[str, Any] | None:
    """Return the result of `learning.load_result` and all values of the evaluation."""
    result = learning.load_result(run)
    if result is None:
        return None
    summary = json.loads((run / "summary.json").read_text())
    return {**result, **summary["evaluation"], "updates": summary["updates"]}


def untrained(env: str, episodes: int = 20) -> dict[str, float]:
    """Return the second episode's return of random and of zero actions: an ant is rewarded for standing still."""
    import gymnasium
    import numpy as np

    import multiverse as mv

    made, results = mv.MetaEpisode(gymnasium.make(env), 2), {}
    made.action_space.seed(0)
    for name, act in (("random", made.action_space.sample), ("nothing", lambda: np.zeros(made.action_space.shape))):
        returns = []
        for k in range(episodes):
            made.reset(seed=k)
            info: dict[str, Any] = {}
            while "returns_per_episode" not in info:
                info = made.step(act())[-1]
            returns.append(info["returns_per_episode"][1])
        results[name] = float(np.mean(returns))
    return results


# -- the table ---------------------------------------------------------------------------------------------------
def report_task(task: Task, runs: list[dict[str, Any]], seeds: int) -> dict[str, Any]:
    values = [float(run[task.figure]) for run in runs]
    (low, high), iqm = bootstrap_interval(values), interquartile_mean(values)
    verdict = "beside"
    if task.wanted is not None:
        verdict = "reached" if iqm >= task.wanted else "inside" if high >= task.wanted else "MISSED"
    count = f"{len(runs)} seeds" if len(runs) == seeds else f"{len(runs)} of {seeds} seeds SO FAR"
    wanted = "" if task.wanted is None else f", wanted {task.wanted:g}: {verdict}"
    print(f"\n{task.name} ({task.env}, {task.algorithm}), {count}")
    print(f"  {task.figure} IQM {iqm:.2f} ({low:.2f} to {high:.2f}){wanted}")
    parts = [name for name in runs[0] if name.startswith(("mean_return/", "success_rate/"))]
    for run in runs:
        details = "".join(f", {name} {run[name]:.2f}" for name in parts)
        cost = f"{run['env_steps']:,} env steps, {run['updates']:,} updates, {run['seconds']:.0f} s"
        print(f"    seed {run['seed']}: {run['mean_return']:.2f}{details} ({cost})", flush=True)
    if task.settings is A_WHILE:
        budget = presets()[task.env, task.algorithm]["env_steps"]
        hours = interquartile_mean([run["seconds"] * budget / run["env_steps"] / 3600 for run in runs])
        others = untrained(task.env)
        verdict = "reached" if low > max(others.values()) else "MISSED"
        details = ", ".join(f"{name} {value:.2f}" for name, value in others.items())
        print(f"    {details}; above these: {verdict}; {budget:,} env steps would take {hours:.1f} h")
    return {"task": task.name, "env": task.env, "algorithm": task.algorithm, "settings": dict(task.settings),
            "figure": task.figure, "iqm": iqm, "interval": [low, high], "wanted": task.wanted, "verdict": verdict,
            "runs": runs}  # fmt: skip


def compared(table: Mapping[str, dict[str, Any]]) -> list[str]:
    """Compare the rows that are present with their reference rows."""
    lines = []
    for name, other, times in BESIDE:
        if name in table and other in table:
            result, reference = table[name], table[other]
            wanted = times * reference["iqm"]
            separated = result["interval"][0] > reference["interval"][1] or times < 1
            verdict = "reached" if result["iqm"] >= wanted and separated else "MISSED"
            lines.append(f"{name} {result['iqm']:.2f}, {times:g} × {other} is {wanted:.2f}: {verdict}")
    for name, row in table.items():
        if row["figure"] == SECOND:
            first = interquartile_mean([run["mean_return/episode_1"] for run in row["runs"]])
            low, high = bootstrap_interval([run[SECOND] - run["mean_return/episode_1"] for run in row["runs"]])
            verdict = "above" if low > 0 else "below" if high < 0 else "not told apart"
            gain = f"by {low:+.2f} to {high:+.2f} a seed: {verdict}"
            lines.append(f"{name}: from its first episode to its second {first:.2f} → {row['iqm']:.2f}, {gain}")
    return lines


def measure_all(out: Path, options: argparse.Namespace) -> bool:
    """Run unfinished runs and print the results; return whether all are finished."""
    tasks = [task for task in TASKS if options.tasks is None or task.name in options.tasks]
    runs, table = Runs(out, options.env_steps, Path(__file__), load_result), {}

    def each(task: Task, found: list[dict[str, Any]]) -> dict[str, Any]:
        table[task.name] = report_task(task, found, options.seeds)
        return table[task.name]

    whole = run_and_report(out, options, tasks, runs, load_result, each)
    print("\n" + "\n".join(compared(table)))
    return whole


def main() -> int:
    return run_command_line(parser_for(__doc__, TASKS, EPISODES).parse_args(), TASKS, one_run, measure_all)


if __name__ == "__main__":
    sys.exit(main())

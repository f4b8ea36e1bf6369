"""How well off-policy algorithms learn with a memory, and without: partly observed envs, and many tasks (meta-RL).

    python benchmarks/meta_learning.py                                          all rows, 5 seeds each
    python benchmarks/meta_learning.py --jobs 16 --out DIR --limit-s 580 --json benchmarks/results/meta_learning.json
    python benchmarks/meta_learning.py --tasks wind wind-markov --out DIR       some; again: the rest

On 2 cores, piece by piece, on one commit (each stops after `--limit-s`; the same again goes on). Behind them minutes
of one core a seed, guessed from shorter looks on a machine that others used too:

    M="python benchmarks/meta_learning.py --jobs 2 --out DIR --limit-s 580"
    $M --tasks cart-pole-dqn cart-pole-discrete-sac                             1 and 1
    $M --tasks pendulum-sac pendulum-td3                                        3½ and 2½
    $M --tasks cart-pole-v                                                      4
    $M --tasks semi-circle-markov semi-circle-oracle semi-circle                1½, 1½ and 9
    $M --tasks pendulum-v                                                       30
    $M --tasks wind-markov wind                                                 1 and 12
    $M --tasks half-cheetah-vel ant-dir --seeds 3                               17 and 17
    $M --limit-s 0 --json benchmarks/results/meta_learning.json                 runs nothing: all that is finished

| rows | figure | wanted |
|---|---|---|
| pendulum-sac, pendulum-td3, cart-pole-dqn, cart-pole-discrete-sac | mean return | what is published |
| cart-pole-v: discrete SAC with an LSTM, velocities only | mean return | 200 at 10 k env steps |
| pendulum-v: TD3 with an LSTM, velocities only | mean return | -197 at 31 k |
| semi-circle, -markov, -oracle | of the second episode | ≥ 1.5 × Markov, above its own first, ≥ 0.6 × oracle |
| wind, wind-markov | mean return | above Markov, intervals apart |
| half-cheetah-vel, ant-dir: 220 k env steps | of the second episode | above doing anything, and nothing |

Variants of a row have the same env steps and gradient steps, which are told. Figures are of the final weights,
deterministic, over 100 episodes on seeds, and tasks, that no training sees. Runs are processes with one thread each,
stopped and resumed as those of `learning.py`, whose options these are.
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
from benchmarks.learning import EPISODES, Runs, answered, parser_for, tallied
from multiverse.training.config.resolve import presets
from multiverse.training.runs.records import bootstrap_interval, interquartile_mean

MARKOV = {"memory": None, "batch_size": 256}
SEMI_CIRCLE, WIND = "multiverse/PointRobotSparse-v0", "multiverse/Wind-v0"


@dataclass(frozen=True, eq=False)
class Task:
    """One row: a preset, with some settings changed; `figure`: of its evaluation."""

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
"""From the shortest run to the longest."""
BESIDE = (
    ("semi-circle", "semi-circle-markov", 1.5),
    ("semi-circle", "semi-circle-oracle", 0.6),
    ("wind", "wind-markov", 1.0),
)
"""(row, another, how many times its figure is wanted)"""


def one_run(task: Task, seed: int, run: Path, env_steps: int | None) -> None:
    learning.one_run(
        learning.Task(task.env, None, "", "", algorithm=task.algorithm, settings=task.settings), seed, run, env_steps
    )


def found_in(run: Path) -> dict[str, Any] | None:
    """As `learning.found_in`, with all that the evaluation tells."""
    found = learning.found_in(run)
    if found is None:
        return None
    summary = json.loads((run / "summary.json").read_text())
    return {**found, **summary["evaluation"], "updates": summary["updates"]}


def untrained(env: str, episodes: int = 20) -> dict[str, float]:
    """The return of the second episode of a task, of who does anything, and of who does nothing: an ant is paid for
    standing still."""
    import gymnasium
    import numpy as np

    import multiverse as mv

    made, found = mv.MetaEpisode(gymnasium.make(env), 2), {}
    made.action_space.seed(0)
    for name, act in (("random", made.action_space.sample), ("nothing", lambda: np.zeros(made.action_space.shape))):
        returns = []
        for k in range(episodes):
            made.reset(seed=k)
            info: dict[str, Any] = {}
            while "returns_per_episode" not in info:
                info = made.step(act())[-1]
            returns.append(info["returns_per_episode"][1])
        found[name] = float(np.mean(returns))
    return found


# -- the table ---------------------------------------------------------------------------------------------------
def shown(task: Task, runs: list[dict[str, Any]], seeds: int) -> dict[str, Any]:
    values = [float(run[task.figure]) for run in runs]
    (low, high), iqm = bootstrap_interval(values), interquartile_mean(values)
    verdict = "beside"
    if task.wanted is not None:
        verdict = "reached" if iqm >= task.wanted else "inside" if high >= task.wanted else "MISSED"
    of = f"{len(runs)} seeds" if len(runs) == seeds else f"{len(runs)} of {seeds} seeds SO FAR"
    wanted = "" if task.wanted is None else f", wanted {task.wanted:g}: {verdict}"
    print(f"\n{task.name} ({task.env}, {task.algorithm}), {of}")
    print(f"  {task.figure} IQM {iqm:.2f} ({low:.2f} to {high:.2f}){wanted}")
    parts = [name for name in runs[0] if name.startswith(("mean_return/", "success_rate/"))]
    for run in runs:
        told = "".join(f", {name} {run[name]:.2f}" for name in parts)
        cost = f"{run['env_steps']:,} env steps, {run['updates']:,} updates, {run['seconds']:.0f} s"
        print(f"    seed {run['seed']}: {run['mean_return']:.2f}{told} ({cost})", flush=True)
    if task.settings is A_WHILE:
        budget = presets()[task.env, task.algorithm]["env_steps"]
        hours = interquartile_mean([run["seconds"] * budget / run["env_steps"] / 3600 for run in runs])
        others = untrained(task.env)
        verdict = "reached" if low > max(others.values()) else "MISSED"
        told = ", ".join(f"{name} {value:.2f}" for name, value in others.items())
        print(f"    {told}; above these: {verdict}; {budget:,} env steps would take {hours:.1f} h")
    return {"task": task.name, "env": task.env, "algorithm": task.algorithm, "settings": dict(task.settings),
            "figure": task.figure, "iqm": iqm, "interval": [low, high], "wanted": task.wanted, "verdict": verdict,
            "runs": runs}  # fmt: skip


def compared(table: Mapping[str, dict[str, Any]]) -> list[str]:
    """What rows are to one another, as far as they are there."""
    lines = []
    for name, other, times in BESIDE:
        if name in table and other in table:
            one, beside = table[name], table[other]
            wanted = times * beside["iqm"]
            apart = one["interval"][0] > beside["interval"][1] or times < 1
            verdict = "reached" if one["iqm"] >= wanted and apart else "MISSED"
            lines.append(f"{name} {one['iqm']:.2f}, {times:g} × {other} is {wanted:.2f}: {verdict}")
    for name, row in table.items():
        if row["figure"] == SECOND:
            first = interquartile_mean([run["mean_return/episode_1"] for run in row["runs"]])
            low, high = bootstrap_interval([run[SECOND] - run["mean_return/episode_1"] for run in row["runs"]])
            verdict = "above" if low > 0 else "below" if high < 0 else "not told apart"
            gain = f"by {low:+.2f} to {high:+.2f} a seed: {verdict}"
            lines.append(f"{name}: from its first episode to its second {first:.2f} → {row['iqm']:.2f}, {gain}")
    return lines


def measured(out: Path, options: argparse.Namespace) -> bool:
    """Run what is not finished and show what is; whether that is everything."""
    tasks = [task for task in TASKS if options.tasks is None or task.name in options.tasks]
    runs, table = Runs(out, options.env_steps, Path(__file__), found_in), {}

    def each(task: Task, found: list[dict[str, Any]]) -> dict[str, Any]:
        table[task.name] = shown(task, found, options.seeds)
        return table[task.name]

    whole = tallied(out, options, tasks, runs, found_in, each)
    print("\n" + "\n".join(compared(table)))
    return whole


def main() -> int:
    return answered(parser_for(__doc__, TASKS, EPISODES).parse_args(), TASKS, one_run, measured)


if __name__ == "__main__":
    sys.exit(main())

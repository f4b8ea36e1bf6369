"""Learning results of the multi-agent presets, compared with scripted players: every seed, and the IQM.

    python benchmarks/team_learning.py                                       all tasks, 5 seeds each
    python benchmarks/team_learning.py --tasks push --seeds 5 --jobs 5 --json benchmarks/results/team_learning.json
    python benchmarks/team_learning.py --out teams --limit-s 580             for ten minutes; again: the rest
    python benchmarks/team_learning.py --boxes --seeds 3                     BoxJump: taac, MAPPO, independent PPO

| task | figure | is |
|---|---|---|
| spread | share | of the way from a random team's return to that of one whose agents are assigned landmarks |
| spread central | share | the same with a critic that sees the whole team (`critic="central"`) |
| spread state | share | the same with one that sees the env's state beside the agent's own (`critic="state"`) |
| spread taac | share | the same with attention over the team (`--algorithm taac`) |
| push | ratio | how far the trained agent ends from its goal, of how far a random one does, both with its adversary |
| four | wins, wins_random | against a one-ply player (takes a win, blocks a loss) and a random one, from both sides |
| four, pool | the same | of one that has played half of its games against past versions of itself (`opponents=100`) |
| boxes … | team_return | the height gained in BoxJump's published setting: 8 boxes, 401 steps, actions drawn |
| boxes taac 4 to 7 | | the same on 8 boxes, of a policy that was trained on 4 to 7 of them: 0.8 of unnamed is wanted |
| boxes taac unnamed | | of one that was trained on 8; neither sees which box it is |
| | likely | the same with the most likely actions |
| | tower, tallest | the tallest tower that stood for 10 steps: the mean over the episodes, and the most |

BoxJump's actions are held for 8 env steps, in training and in measuring, except "at every step"; budgets are in steps
of the published env: 640 k, or 45 k, where random teams have 2.20, VDN 3.18 and IQL, at its best, 3.38.

Figures are of the final weights, over episodes on seeds that no training sees, deterministic but for BoxJump's. Runs
are processes with one thread each, stopped and resumed as those of `learning.py`, whose options these are.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.learning import Runs, parser_for, run_and_report, run_command_line
from benchmarks.team_players import assigned
from multiverse.core.seeds import evaluation_seed
from multiverse.training.runs.records import bootstrap_interval, interquartile_mean

EPISODES, BOX_EPISODES, SEED = 300, 100, 0
FIGURES = "figures.json"
"""File in the directory of a measured run."""

Figures = dict[str, Any]
Act = Callable[[dict[str, Any]], dict[str, Any]]
"""Maps the observations of the present agents to their actions."""


# -- playing -----------------------------------------------------------------------------------------------------
def play(env: Any, act: Act) -> tuple[list[float], list[dict[str, Any]]]:
    """(returns, the mean over the agents; what the agents saw last), of a parallel env's episodes."""
    returns, last = [], []
    for k in range(EPISODES):
        observations, _ = env.reset(seed=evaluation_seed(0, k))
        earned: list[float] = []
        while env.agents:
            observations, rewards, _, _, _ = env.step(act(observations))
            earned.append(float(np.mean(list(rewards.values()))))
        returns.append(sum(earned))
        last.append(observations)
    return returns, last


def random_policy(seed: int = 0) -> Act:
    rng = np.random.default_rng(seed)
    return lambda observations: {agent: int(rng.integers(5)) for agent in observations}


def measure_spread(run: Path) -> Figures:
    from mpe2 import simple_spread_v3

    import multiverse as mv

    env, policies = simple_spread_v3.parallel_env(), mv.load(run)
    scripted: Act = lambda observations: {agent: assigned(seen) for agent, seen in observations.items()}  # noqa: E731
    trained, low, high = (float(np.mean(play(env, act)[0])) for act in (policies.act, random_policy(), scripted))
    return {"share": (trained - low) / (high - low), "trained": trained, "random": low, "scripted": high}


def measure_push(run: Path) -> Figures:
    from mpe2 import simple_push_v3

    import multiverse as mv

    env, policies, anything = simple_push_v3.parallel_env(), mv.load(run), random_policy()

    def against_a_random_agent(observations: dict[str, Any]) -> dict[str, Any]:
        return {**policies.act(observations), "agent_0": anything(observations)["agent_0"]}

    def ends_at(act: Act) -> float:
        """Return the mean final distance to the goal, whose relative position the agent observes."""
        return float(np.mean([np.linalg.norm(seen["agent_0"][2:4]) for seen in play(env, act)[1]]))

    trained, low = ends_at(policies.act), ends_at(against_a_random_agent)
    return {"ratio": trained / low, "trained": trained, "random": low}


def measure_boxes(run: Path) -> Figures:
    """Measure in the published env with 401 steps, with actions held as in training."""
    from benchmarks.held_boxes import HeldBoxes
    from multiverse.training.loading import evaluate

    def play(deterministic: bool) -> tuple[float, list[float]]:
        """(the mean of the teams' returns, the tallest tower of every episode)."""
        towers: list[float] = []
        options: dict[str, Any] = {"episodes": BOX_EPISODES, "seed": SEED, "deterministic": deterministic}
        options["watch"] = lambda env: env

        def eight(sizes: Any = None, **arguments: Any) -> HeldBoxes:
            return HeldBoxes(towers, **{"num_boxes": 8, **arguments})

        evaluation = evaluate(run, env=eight, **options)
        return sum(float(np.mean(one)) for one in (evaluation.by_agent or {}).values()), towers

    (drawn, towers), (likely, _) = play(False), play(True)
    return {"team_return": drawn, "likely": likely, "tower": float(np.mean(towers)), "tallest": max(towers)}


def measure_four(run: Path) -> Figures:
    from multiverse.training.loading import evaluate

    wins = {
        name: evaluate(run, episodes=EPISODES, seed=SEED, opponent=opponent).wins
        for name, opponent in (("wins", ONE_PLY), ("wins_random", "random"))
    }
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    curve = [(line["env_steps"], line["evaluation_wins"]) for line in lines if "evaluation_wins" in line]
    return {**wins, "curve": curve}


# -- the tasks ---------------------------------------------------------------------------------------------------
@dataclass(frozen=True, eq=False)
class Task:
    """A run, its measurement, and the targets of its figures."""

    name: str
    env: str
    measure: Callable[[Path], Figures]
    targets: Mapping[str, float]
    settings: Mapping[str, Any] = field(default_factory=dict)
    algorithm: str = "ppo"
    beside: str | None = None  # the task whose figures these are compared with

    @property
    def on_every_seed(self) -> bool:
        """Whether each run is to come to the target, and not only their IQM."""
        return self.name.startswith("boxes")

    def reached(self, name: str, value: float) -> bool:
        return value <= self.targets[name] if name == "ratio" else value >= self.targets[name]


SPREAD = "mpe2.simple_spread_v3:parallel_env"
FOUR = "pettingzoo.classic.connect_four_v3:env"
ONE_PLY = "benchmarks.team_players:one_ply"
UNNAMED = {"agent_one_hot": False}
"""The preset, without one-hot: a policy of one team fits every other."""
EVERY_STEP = {"physics_steps_per_action": 1, "max_timestep": 400}
"""The preset, with an action for every step, as published."""


def _unnamed(**arguments: Any) -> dict[str, Any]:
    return {"env_kwargs": {**UNNAMED, **arguments}}


POOL = {"opponents": 100, "opponent_share": 0.5, "opponent_every": 5}
CURVE = {"evaluation_opponent": ONE_PLY, "evaluate_every": 200_000, "evaluation_episodes": 100}
TASKS = (
    Task("push", "mpe2.simple_push_v3:parallel_env", measure_push, {"ratio": 0.5}),
    Task("spread", SPREAD, measure_spread, {"share": 0.6}),
    Task("spread central", SPREAD, measure_spread, {"share": 0.6}, {"critic": "central"}),
    Task("spread state", SPREAD, measure_spread, {"share": 0.6}, {"critic": "state"}),
    Task("spread taac", SPREAD, measure_spread, {"share": 0.6}, algorithm="taac"),
    *(
        Task(
            f"boxes {name}{suffix}", "BoxJump-v0", measure_boxes, {"team_return": wanted}, {**settings, **budget}, kind
        )
        for suffix, budget, wanted in ((" 45k", {"env_steps": 5_304}, 2.2), ("", {}, 3.4))
        for name, kind, settings in (("ppo", "ppo", {}), ("mappo", "ppo", {"critic": "central"}), ("taac", "taac", {}))
    ),
    Task("boxes taac unnamed", "BoxJump-v0", measure_boxes, {"team_return": 3.4}, _unnamed(num_boxes=8), "taac"),
    Task(
        "boxes taac 4 to 7",
        "benchmarks.held_boxes:TeamsOfSizes",
        measure_boxes,
        {"team_return": 2.7},
        {"preset": "BoxJump-v0", **_unnamed(sizes=[4, 5, 6, 7])},
        "taac",
        beside="boxes taac unnamed",
    ),
    Task(
        "boxes ppo at every step",
        "BoxJump-v0",
        measure_boxes,
        {"team_return": 2.2},
        {"env_kwargs": EVERY_STEP, "env_steps": 640_000, "steps_per_env": 401, "batch_size": 3208, "gamma": 0.998},
    ),
    Task("four", FOUR, measure_four, {"wins": 0.6, "wins_random": 0.95}, CURVE),
    Task("four, pool", FOUR, measure_four, {"wins": 0.6, "wins_random": 0.95}, {**CURVE, **POOL}),
)
"""Ordered by duration, the shortest first."""


def one_run(task: Task, seed: int, run: Path, env_steps: int | None) -> None:
    """Train or resume a run, and measure it. Runs in a separate process that ends with its parent."""
    import multiverse as mv
    from multiverse.executors.launch.orphan_guard import watch_process

    watch_process(os.getppid())
    if (run / "config.yaml").exists():
        mv.resume(run, progress=False)
    else:
        shutil.rmtree(run, ignore_errors=True)  # it was stopped before the first checkpoint
        settings: dict[str, Any] = {"executor": "serial", "evaluate_every": 0, **task.settings}
        settings |= {} if env_steps is None else {"env_steps": env_steps}
        mv.train(task.env, task.algorithm, seed=seed, run_dir=run, progress=False, **settings)
    aside = run / f"{FIGURES}.new"
    aside.write_text(json.dumps({"seed": seed, **task.measure(run)}))
    aside.rename(run / FIGURES)


def load_result(run: Path) -> Figures | None:
    """Return the figures of a run, or None if it is not finished."""
    try:
        figures: Figures = json.loads((run / FIGURES).read_text())
        return figures
    except FileNotFoundError:
        return None


# -- the table ---------------------------------------------------------------------------------------------------
def report_task(task: Any, runs: list[Figures], seeds: int, before: dict[str, Figures]) -> Figures:
    """`task`: a `Task`, or another benchmark's that has what is asked for here. `before`: the tasks that were shown, by
    their names; this one joins them."""
    count = f"{len(runs)} seeds" if len(runs) == seeds else f"{len(runs)} of {seeds} seeds SO FAR"
    print(f"\n{task.name} ({task.env}), {count}")
    summed = {}
    for name, target in task.targets.items():
        values = [float(run[name]) for run in runs]
        (low, high), iqm = bootstrap_interval(values), interquartile_mean(values)
        judged = values if task.on_every_seed else [iqm]
        verdict = "reached" if all(task.reached(name, value) for value in judged) else "MISSED"
        wanted = f"{target:g}{' on every seed' * task.on_every_seed}"
        print(f"  {name:11s} IQM {iqm:.2f} ({low:.2f} to {high:.2f}), wanted {wanted}: {verdict}")
        summed[name] = {"iqm": iqm, "interval": [low, high], "target": target, "verdict": verdict}
        if task.beside in before:
            share = iqm / before[task.beside]["figures"][name]["iqm"]
            print(f"  {name:11s} {share:.2f} of that of {task.beside}")
            summed[name]["share"] = share
    for run in runs:
        print("    " + ", ".join(f"{name} {_in_words(value)}" for name, value in run.items()), flush=True)
    result = {"task": task.name, "env": task.env, "settings": dict(task.settings), "figures": summed, "runs": runs}
    before[task.name] = result
    return result


def _in_words(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(f"{steps // 1000}k:{wins:.2f}" for steps, wins in value)
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def measure_all(out: Path, options: argparse.Namespace) -> bool:
    """Run unfinished runs and print the results; return whether all are finished."""
    tasks = [task for task in TASKS if options.tasks is None or task.name in options.tasks]
    runs, before = Runs(out, options.env_steps, Path(__file__), load_result), dict[str, Figures]()
    return run_and_report(
        out, options, tasks, runs, load_result, lambda task, found: report_task(task, found, options.seeds, before)
    )


def main() -> int:
    parser = parser_for(__doc__, TASKS, EPISODES)
    parser.add_argument("--boxes", action="store_true", help="all tasks of BoxJump")
    options = parser.parse_args()
    if options.boxes:
        options.tasks = [task.name for task in TASKS if task.name.startswith("boxes")]
    return run_command_line(options, TASKS, one_run, measure_all)


if __name__ == "__main__":
    sys.exit(main())

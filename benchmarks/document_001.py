"""Measurements for the table of document 001: the effect of parallel envs on the speed and the returns of PPO.

    python benchmarks/document_001.py                              about four minutes on 2 cores
    python benchmarks/document_001.py --parts speed --rounds 1 --envs CartPole-v1

Trains like examples/ml_pipeline/train_ppo.py, with its defaults. **Speed**: env steps per second of acting, stepping
and learning, without start-up and evaluation, for CartPole-v1 and an env that computes for 1 ms per step. `auto` is the
executor of the script; `serial` steps the same envs in one process, and shows the gain without a second core. All cells
are measured in turn in every round; × is the median of the ratios to 1 env within a round.
**Return** at equal env steps: final weights, deterministic, on unseen seeds, for every training seed. These trainings
use the serial executor, because every executor gives bit-identical weights.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from gymnasium.wrappers import TimeLimit

import multiverse as mv
from benchmarks.envs import Burn
from benchmarks.provenance import provenance, write_results
from benchmarks.stepping import _progress
from examples.ml_pipeline.models.rl.algorithms.ppo_trainer import DEFAULTS, multiverse_settings
from multiverse.executors.machine import usable_cores

CLAIMED = {1: 1.0, 4: 2.5, 8: 4.0, 16: 6.0}
"""Maps n-envs to the document's expected speed-up."""
ENVS: dict[str, Any] = {"CartPole-v1": "CartPole-v1", "1 ms": lambda: TimeLimit(Burn(1000.0), 100)}
SPEED_STEPS = {"CartPole-v1": 8192, "1 ms": 2048}  # one rollout of 16 envs has 2048 steps
RETURN_N_ENVS = (1, 2, 4, 8)
RESULTS = Path(__file__).resolve().parent / "results" / "document_001.json"


@dataclass(frozen=True, slots=True)
class Speed:
    """Speed of one training in one round."""

    round: int
    env: str
    executor: str  # as requested
    plan: str  # as chosen
    n_envs: int
    env_steps_per_s: float


@dataclass(frozen=True, slots=True)
class Return:
    """Returns of one training with its full budget."""

    n_envs: int
    seed: int
    env_steps: int
    mean_return: float  # of the evaluation
    std_return: float
    training_return: float  # of the last 100 training episodes


def train(env: Any, env_steps: int, executor: str, episodes: int, **settings: Any) -> dict[str, Any]:
    """Train like the script in a temporary directory, evaluate over `episodes` episodes, and return the summary."""
    arguments = {**multiverse_settings({**DEFAULTS, **settings}), "env_steps": env_steps}
    arguments |= {"evaluate_every": 0, "evaluation_episodes": episodes, "evaluation_envs": 1}
    if arguments["num_envs"] > 1:  # one env is always serial
        arguments["executor"] = executor
    with tempfile.TemporaryDirectory() as folder:
        return mv.train(env, root=folder, preset=False, progress=False, **arguments).summary


# -- speed ---------------------------------------------------------------------------------------------------------
def speeds(envs: list[str], executors: list[str], rounds: int) -> list[Speed]:
    train("CartPole-v1", 256, "serial", 1)  # the first training also loads torch
    results = []
    for number in range(rounds):
        for env in envs:
            for executor, n_envs in cells(executors):
                _progress(f"speed, round {number + 1} of {rounds}: {env}, {executor}, {n_envs} envs")
                summary = train(ENVS[env], SPEED_STEPS[env], executor, 1, n_envs=n_envs)
                rate = summary["env_steps"] / (summary["seconds"] - summary["evaluate_s"])
                results.append(Speed(number, env, executor, summary["plan"]["executor"], n_envs, rate))
    _progress("")
    return results


def cells(executors: list[str]) -> list[tuple[str, int]]:
    """Return the (executor, n-envs) cells of a round; one env is always serial."""
    return [(executors[0], 1), *((executor, n) for executor in executors for n in CLAIMED if n > 1)]


def times(results: list[Speed], env: str, executor: str, n_envs: int) -> float:
    """Return the median ratio to one env over the rounds."""
    one = {each.round: each.env_steps_per_s for each in results if each.env == env and each.n_envs == 1}
    selected = [each for each in results if (each.env, each.executor, each.n_envs) == (env, executor, n_envs)]
    return statistics.median(each.env_steps_per_s / one[each.round] for each in selected)


def speed_table(results: list[Speed]) -> str:
    """Return the speed table in Markdown: the document's claim, then each env and executor."""
    columns = list(dict.fromkeys((each.env, each.executor) for each in results))
    lines = [f"| n-envs | the document | {' | '.join(f'{env}, {executor}' for env, executor in columns)} |"]
    lines.append("|---" * (2 + len(columns)) + "|")
    for n_envs, claimed in CLAIMED.items():
        row_cells = [
            speed_cell(results, env, columns[0][1] if n_envs == 1 else executor, n_envs) for env, executor in columns
        ]
        lines.append(f"| {n_envs} | {claimed}× | {' | '.join(row_cells)} |")
    return "\n".join(lines)


def speed_cell(results: list[Speed], env: str, executor: str, n_envs: int) -> str:
    """Return a cell such as '2.31× (7,420/s)'."""
    selected = [each for each in results if (each.env, each.executor, each.n_envs) == (env, executor, n_envs)]
    rate = statistics.median(each.env_steps_per_s for each in selected)
    return f"{times(results, env, executor, n_envs):.2f}× ({rate:,.0f}/s)"


# -- return --------------------------------------------------------------------------------------------------------
def returns(seeds: list[int], env_steps: int) -> list[Return]:
    results = []
    for n_envs in RETURN_N_ENVS:
        for seed in seeds:
            _progress(f"return: {n_envs} envs, seed {seed}")
            summary = train("CartPole-v1", env_steps, "serial", 20, n_envs=n_envs, seed=seed)
            evaluation = summary["evaluation"]
            results.append(
                Return(
                    *(n_envs, seed, summary["env_steps"], evaluation["mean_return"], evaluation["std_return"]),
                    training_return=summary["mean_return"],
                )
            )
    _progress("")
    return results


def return_table(results: list[Return]) -> str:
    """Return the table of returns in Markdown, with one row per number of envs."""
    lines = ["| n-envs | env steps | evaluation, each seed | median | last 100 training episodes, each seed |"]
    lines.append("|---|---|---|---|---|")
    for n_envs in RETURN_N_ENVS:
        selected = [each for each in results if each.n_envs == n_envs]
        each_seed = ", ".join(f"{each.mean_return:.0f}" for each in selected)
        training = ", ".join(f"{each.training_return:.0f}" for each in selected)
        median = statistics.median(each.mean_return for each in selected)
        lines.append(f"| {n_envs} | {selected[0].env_steps:,} | {each_seed} | {median:.0f} | {training} |")
    return "\n".join(lines)


# -- command line -----------------------------------------------------------------------------------------------------
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", default=["speed", "return"], choices=["speed", "return"])
    parser.add_argument("--envs", nargs="+", default=list(ENVS), choices=ENVS, help="envs of the speed part")
    parser.add_argument("--executors", nargs="+", default=["auto", "serial"], help="executors of the speed part")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of the speed part")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], help="training seeds of the return part")
    parser.add_argument("--env-steps", type=int, default=32_768, help="env steps of each training of the return part")
    parser.add_argument("--json", type=Path, default=RESULTS, help="results file")
    arguments = parser.parse_args()
    origin = provenance()
    print(f"{usable_cores()} usable cores, load average {os.getloadavg()[0]:.1f}\n", flush=True)
    speed, learned = [], []
    if "speed" in arguments.parts:
        speed = speeds(arguments.envs, arguments.executors, arguments.rounds)
        print(f"Training speed, × 1 env (env steps/s), {arguments.rounds} rounds\n\n{speed_table(speed)}\n", flush=True)
    if "return" in arguments.parts:
        learned = returns(arguments.seeds, arguments.env_steps)
        print(f"Return at equal env steps, CartPole-v1\n\n{return_table(learned)}", flush=True)
    figures = {"speed": [asdict(one) for one in speed], "return": [asdict(one) for one in learned]}
    write_results(arguments.json, origin, {"settings": DEFAULTS, **figures})


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)

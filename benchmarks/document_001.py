"""The table of document 001, measured: what parallel envs bring to a PPO training, in speed and in learning.

    python benchmarks/document_001.py                              about four minutes on 2 cores
    python benchmarks/document_001.py --parts speed --rounds 1 --envs CartPole-v1

Trains as examples/ml_pipeline/train_ppo.py does, with its defaults. **Speed**: env steps per second of acting, stepping
and learning together, without start-up and evaluation; for CartPole-v1 and for an env whose step computes for 1 ms.
`auto` is what the script uses; `serial` steps the same envs in one process: what is gained without a second core.
Everything is measured in turn, round after round; × is the median of the rounds' own ratios to 1 env.
**Return** at equal env steps: final weights, deterministic, on unseen seeds; every training seed is shown. These
trainings run serial: every executor gives the same weights, bit for bit.
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
"""n-envs → the document's expected speed-up."""
ENVS: dict[str, Any] = {"CartPole-v1": "CartPole-v1", "1 ms": lambda: TimeLimit(Burn(1000.0), 100)}
SPEED_STEPS = {"CartPole-v1": 8192, "1 ms": 2048}  # a rollout of 16 envs has 2048
RETURN_N_ENVS = (1, 2, 4, 8)
RESULTS = Path(__file__).resolve().parent / "results" / "document_001.json"


@dataclass(frozen=True, slots=True)
class Speed:
    """One training, in one round."""

    round: int
    env: str
    executor: str  # as asked
    plan: str  # what it became
    n_envs: int
    env_steps_per_s: float


@dataclass(frozen=True, slots=True)
class Return:
    """One training to the end of its budget."""

    n_envs: int
    seed: int
    env_steps: int
    mean_return: float  # of the evaluation
    std_return: float
    training_return: float  # of the last 100 episodes, as they were explored


def train(env: Any, env_steps: int, executor: str, episodes: int, **settings: Any) -> dict[str, Any]:
    """The summary of a training as the script does it, evaluated over so many episodes; it leaves nothing behind."""
    asked = {**multiverse_settings({**DEFAULTS, **settings}), "env_steps": env_steps}
    asked |= {"evaluate_every": 0, "evaluation_episodes": episodes, "evaluation_envs": 1}
    if asked["num_envs"] > 1:  # one env is always serial
        asked["executor"] = executor
    with tempfile.TemporaryDirectory() as folder:
        return mv.train(env, root=folder, preset=False, progress=False, **asked).summary


# -- speed ---------------------------------------------------------------------------------------------------------
def speeds(envs: list[str], executors: list[str], rounds: int) -> list[Speed]:
    train("CartPole-v1", 256, "serial", 1)  # the first training also loads torch
    found = []
    for number in range(rounds):
        for env in envs:
            for executor, n_envs in cells(executors):
                _progress(f"speed, round {number + 1} of {rounds}: {env}, {executor}, {n_envs} envs")
                told = train(ENVS[env], SPEED_STEPS[env], executor, 1, n_envs=n_envs)
                rate = told["env_steps"] / (told["seconds"] - told["evaluate_s"])
                found.append(Speed(number, env, executor, told["plan"]["executor"], n_envs, rate))
    _progress("")
    return found


def cells(executors: list[str]) -> list[tuple[str, int]]:
    """What is measured in a round; one env is the same whatever was asked."""
    return [(executors[0], 1), *((executor, n) for executor in executors for n in CLAIMED if n > 1)]


def times(found: list[Speed], env: str, executor: str, n_envs: int) -> float:
    """× one env, the median over rounds."""
    one = {each.round: each.env_steps_per_s for each in found if each.env == env and each.n_envs == 1}
    these = [each for each in found if (each.env, each.executor, each.n_envs) == (env, executor, n_envs)]
    return statistics.median(each.env_steps_per_s / one[each.round] for each in these)


def speed_table(found: list[Speed]) -> str:
    """Markdown: the document's claim, then what each env and executor gave."""
    columns = list(dict.fromkeys((each.env, each.executor) for each in found))
    lines = [f"| n-envs | the document | {' | '.join(f'{env}, {executor}' for env, executor in columns)} |"]
    lines.append("|---" * (2 + len(columns)) + "|")
    for n_envs, claimed in CLAIMED.items():
        shown = [speed_cell(found, env, columns[0][1] if n_envs == 1 else how, n_envs) for env, how in columns]
        lines.append(f"| {n_envs} | {claimed}× | {' | '.join(shown)} |")
    return "\n".join(lines)


def speed_cell(found: list[Speed], env: str, executor: str, n_envs: int) -> str:
    """'2.31× (7,420/s)'."""
    these = [each for each in found if (each.env, each.executor, each.n_envs) == (env, executor, n_envs)]
    rate = statistics.median(each.env_steps_per_s for each in these)
    return f"{times(found, env, executor, n_envs):.2f}× ({rate:,.0f}/s)"


# -- return --------------------------------------------------------------------------------------------------------
def returns(seeds: list[int], env_steps: int) -> list[Return]:
    found = []
    for n_envs in RETURN_N_ENVS:
        for seed in seeds:
            _progress(f"return: {n_envs} envs, seed {seed}")
            told = train("CartPole-v1", env_steps, "serial", 20, n_envs=n_envs, seed=seed)
            evaluation = told["evaluation"]
            found.append(
                Return(
                    *(n_envs, seed, told["env_steps"], evaluation["mean_return"], evaluation["std_return"]),
                    training_return=told["mean_return"],
                )
            )
    _progress("")
    return found


def return_table(found: list[Return]) -> str:
    """Markdown: a row for each number of envs, every seed in it."""
    lines = ["| n-envs | env steps | evaluation, each seed | median | last 100 training episodes, each seed |"]
    lines.append("|---|---|---|---|---|")
    for n_envs in RETURN_N_ENVS:
        these = [each for each in found if each.n_envs == n_envs]
        each_seed = ", ".join(f"{each.mean_return:.0f}" for each in these)
        training = ", ".join(f"{each.training_return:.0f}" for each in these)
        median = statistics.median(each.mean_return for each in these)
        lines.append(f"| {n_envs} | {these[0].env_steps:,} | {each_seed} | {median:.0f} | {training} |")
    return "\n".join(lines)


# -- all of it -----------------------------------------------------------------------------------------------------
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", default=["speed", "return"], choices=["speed", "return"])
    parser.add_argument("--envs", nargs="+", default=list(ENVS), choices=ENVS, help="of the speed part")
    parser.add_argument("--executors", nargs="+", default=["auto", "serial"], help="of the speed part")
    parser.add_argument("--rounds", type=int, default=3, help="of the speed part")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], help="of the return part")
    parser.add_argument("--env-steps", type=int, default=32_768, help="of each training of the return part")
    parser.add_argument("--json", type=Path, default=RESULTS, help="where every figure goes")
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

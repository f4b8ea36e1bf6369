"""Learning results in the grid world: PPO on our SubprocVecEnv, compared with a random team.

    python benchmarks/grid_world_learning.py                              every row, three seeds: almost an hour
    python benchmarks/grid_world_learning.py --rows reach-small --seeds 0 --env-steps 50000

Trains like examples/grid_world/custom_env_main.py, and evaluates both teams on the same unseen seeds. Intervals are 95
% Wilson intervals, one per training seed. The bar for `reach` is three times the random team's success, with the
interval of every seed above that of the random team. Missed bars are reported as MISSED. `search` and `watch` have no
bar. All seeds of a row are reported.
"""

from __future__ import annotations

import argparse
import functools
import math
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.provenance import provenance, write_results
from benchmarks.stepping import _progress
from examples.grid_world.custom_env_main import config as script_config
from examples.grid_world.custom_env_main import make_vec_env
from examples.grid_world.evaluation import Evaluation, evaluate, random_team
from examples.grid_world.learner import Learner
from examples.grid_world.worlds import make_env
from multiverse.envs.grid_world import PRESETS

ROWS = ("reach-small", "reach-medium", "reach-large", "search-small", "watch-small", "watch-medium", "watch-large")
BAR = 3.0
Z_95 = 1.96


@dataclass(frozen=True, slots=True)
class Trained:
    """Result of one training, compared with a random team."""

    row: str
    seed: int
    env_steps: int
    seconds: float
    trained: Evaluation  # with sampled actions, as in training
    chance: Evaluation

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "trained_interval": interval(self.trained), "chance_interval": interval(self.chance)}


def interval(evaluation: Evaluation) -> tuple[float, float]:
    """Return the Wilson interval of the success rate: (p + z²/2n ± z √(p(1-p)/n + z²/4n²)) / (1 + z²/n)."""
    n, p, zz = evaluation.episodes, evaluation.success_rate, Z_95**2
    middle, half = p + zz / (2 * n), Z_95 * math.sqrt(p * (1 - p) / n + zz / (4 * n * n))
    return (middle - half) / (1 + zz / n), (middle + half) / (1 + zz / n)


def measure(row: str, seed: int, env_steps: int, episodes: int, num_envs: int) -> Trained:
    task, preset = row.split("-")
    config = {**script_config, "preset": preset, "task": task, "seed": seed, "num_envs": num_envs}
    config["total_timesteps"] = env_steps
    env = make_vec_env(config)
    try:
        learner = Learner(env, config, functools.partial(_show_progress, f"{row}, seed {seed}"))
        summary = learner.learn()
    finally:
        env.close()
    if summary["status"] == "interrupted":
        raise KeyboardInterrupt
    build = functools.partial(make_env, preset, task)
    _progress(f"{row}, seed {seed}: evaluating")
    trained = evaluate(learner.act, build, episodes)
    chance = evaluate(random_team(build().action_space.nvec, seed), build, episodes)
    return Trained(row, seed, summary["env_steps"], summary["seconds"], trained, chance)


def _show_progress(what: str, figures: dict[str, float], step: int) -> None:
    if sys.stderr.isatty() or step % 51_200 == 0:
        _progress(f"{what}: {step:,} env steps, success {figures.get('rollout/success_rate', 0):.2f}")


# -- report ------------------------------------------------------------------------------------------------------
def line(result: Trained) -> str:
    (low, high), (low_chance, high_chance) = interval(result.trained), interval(result.chance)
    trained, chance = result.trained, result.chance
    return (
        f"{result.row:13s} seed {result.seed}  trained {trained.success_rate:.3f} [{low:.3f}, {high:.3f}]  "
        f"random {chance.success_rate:.3f} [{low_chance:.3f}, {high_chance:.3f}]  "
        f"return {trained.mean_return:7.2f}, random {chance.mean_return:7.2f}  "
        f"length {trained.mean_length:5.1f}  {result.env_steps:,} env steps in {result.seconds:.0f} s"
    )


def verdict(row: str, results: list[Trained]) -> str:
    """Return the pooled result of all seeds of a row, and whether its bar is met."""
    trained = sum(f.trained.successes for f in results) / sum(f.trained.episodes for f in results)
    chance = sum(f.chance.successes for f in results) / sum(f.chance.episodes for f in results)
    times = trained / chance if chance else math.inf
    text = f"{row:13s} {len(results)} seeds  trained {trained:.3f}  random {chance:.3f}  {times:.2f}×"
    if not row.startswith("reach"):
        return f"{text}   (no bar)"
    separated = min(interval(f.trained)[0] for f in results) > max(interval(f.chance)[1] for f in results)
    return f"{text}   {BAR:.0f}×, intervals apart: {'met' if times >= BAR and separated else 'MISSED'}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", default=ROWS, choices=ROWS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--env-steps", type=int, default=250_000)
    parser.add_argument("--episodes", type=int, default=500, help="number of episodes per evaluation")
    parser.add_argument("--num-envs", type=int, default=8)
    parser.add_argument("--json", type=Path, help="results file, written after every training")
    arguments = parser.parse_args()
    origin, presets = provenance(), {name: dict(preset) for name, preset in PRESETS.items()}
    results: list[Trained] = []
    for row in arguments.rows:
        for seed in arguments.seeds:
            results.append(measure(row, seed, arguments.env_steps, arguments.episodes, arguments.num_envs))
            _progress("")
            print(line(results[-1]), flush=True)
            if arguments.json:
                trainings = [each.as_json() for each in results]
                figures = {"num_envs": arguments.num_envs, "presets": presets, "trainings": trainings}
                write_results(arguments.json, origin, figures)
        print(verdict(row, [each for each in results if each.row == row]) + "\n", flush=True)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)

"""TAAC with true parallelism and the document's flags. In multiverse:
`multiverse train BoxJump-v0 --algorithm taac --executor process`.

python scripts/parallel_env_example.py --config configs/boxjump.yaml --num_processes 8            # in examples/teams
python scripts/parallel_env_example.py --config configs/boxjump.yaml --render
python scripts/parallel_env_example.py --config configs/boxjump.yaml --model_path files/Models/boxjump/best_model.pth

Every process has its own environments and seeds, and a copy of the policy that plays whole episodes. This process
collects their experience, updates the policy, and sends the new weights to all processes before the next episodes.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

import multiverse as mv
from examples.teams.gpus import gpu_of, visible_gpus
from examples.teams.parallel_environments import ParallelEnvironmentManager
from examples.teams.settings import Settings, settings_from
from examples.teams.train_taac import (
    INTERRUPTED,
    REFUSED,
    configured,
    existing_model,
    print_evaluation,
    train,
    which_of,
)

Arguments = tuple[int, Mapping[str, Any] | Settings, str | None, int | None, bool]
"""(process_id, config, model_path, gpu_id, render)"""


def run_single_episode(args: Arguments) -> tuple[dict[str, Any], dict[str, Any]]:
    """Play one episode; return (statistics, experience by agent). The seed is the process id.

    Actions are sampled from the policy of the model or, without a model, uniformly. The policy acts on the CPU, in
    numpy; `gpu_id` is only reported.
    """
    process_id, config, model_path, gpu_id, render = args
    settings = config if isinstance(config, Settings) else settings_from(config)
    policies: Any = None
    if model_path is not None:
        policies = mv.load(model := existing_model(model_path), which=which_of(model))
    kwargs = {**settings.environment.env_kwargs, **({"render_mode": "human"} if render else {})}
    rng, steps = np.random.default_rng(process_id), 0
    if policies is not None:
        policies.reset(seed=process_id)
    with ParallelEnvironmentManager(settings.environment.name, kwargs, 1) as manager:
        (observations,) = manager.reset_all(seed=process_id)
        names = ("observations", "actions", "rewards", "dones")
        experience: dict[str, Any] = {agent: {name: [] for name in names} for agent in manager.agents}
        while acting := manager.acting(0):
            spaces = {agent: manager.engine.single_action_space(agent) for agent in acting}
            random_actions = {agent: int(rng.integers(space.n) + space.start) for agent, space in spaces.items()}
            actions = random_actions if policies is None else policies.act(observations, deterministic=False)
            (outcome,) = manager.step_all([actions])
            for agent in acting:
                done = outcome.terminations[agent] or outcome.truncations[agent]
                row = (observations[agent], actions[agent], outcome.rewards[agent], done)
                for name, value in zip(names, row):
                    experience[agent][name].append(value)
            observations, steps = {agent: outcome.observations[agent] for agent in manager.acting(0)}, steps + 1
    stacked = {agent: {name: np.array(rows) for name, rows in columns.items()} for agent, columns in experience.items()}
    returns = {agent: float(columns["rewards"].sum()) for agent, columns in stacked.items()}
    statistics = {"process_id": process_id, "gpu_id": gpu_id, "steps": steps, "returns": returns}
    return {**statistics, "team_return": sum(returns.values())}, stacked


def parser() -> argparse.ArgumentParser:
    flags = argparse.ArgumentParser(description="Train TAAC with true parallelism.", allow_abbrev=False)
    flags.add_argument("--config", type=Path, required=True)
    flags.add_argument(
        "--num_processes", type=int, default=4, metavar="N", help="number of worker processes (default: 4)"
    )
    flags.add_argument("--episodes", type=int, metavar="N", help="total number of episodes (default: from the config)")
    flags.add_argument("--render", action="store_true", help="show the environment, in one process")
    flags.add_argument("--model_path", help="model whose weights are the initial weights")
    flags.add_argument("--seed", type=int, default=0)
    flags.set_defaults(env=None, num_parallel=None)
    return flags


def train_in_parallel(flags: argparse.Namespace) -> mv.Run:
    settings, processes = configured(flags), flags.num_processes
    if processes < 1:
        raise mv.errors.InvalidRequest(f"--num_processes: expected at least 1, got {processes}")
    if flags.render:
        print("Rendering in one process")
        return train(replace(settings, training=replace(settings.training, num_parallel=1)), flags.seed, render=True)
    gpus = visible_gpus()
    print(f"{processes} processes; learning on {gpu_of(0, gpus)}")
    training = replace(settings.training, num_parallel=max(processes, settings.training.num_parallel))
    options = {"executor": "process", "workers": processes, "device": "cuda" if gpus else "cpu"}
    return train(replace(settings, training=training), flags.seed, **options)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the script; return the exit status: 0, 2 for an invalid argument, 130 for Ctrl-C."""
    flags = parser().parse_args(arguments)
    try:
        run = train_in_parallel(flags)
    except KeyboardInterrupt:
        print("Interrupted", flush=True)
        return INTERRUPTED
    except mv.MultiverseError as error:
        print(f"parallel_env_example.py: {error}", file=sys.stderr)
        return REFUSED
    print_evaluation(run)
    return 0


if __name__ == "__main__":
    sys.exit(main())

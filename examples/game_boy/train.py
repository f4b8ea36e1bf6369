"""Training of document 004: PPO on several Game Boys in parallel. `make train-20k` (train.mk) runs this script.

python examples/game_boy/train.py --steps 20000 --envs 2 --episode-length 750 --update-epochs 6
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import multiverse as mv
from examples.game_boy.parallel_environment import env_of
from examples.game_boy.training_lines import TrainingLines, final_block
from multiverse.training.config.resolve import config_for
from multiverse.training.run import start_run
from multiverse.training.validation import StartOptions

REFUSED, INTERRUPTED = 2, 130
SETTINGS: dict[str, Any] = {
    "evaluate_every": 0,
    "evaluation_episodes": 4,
    "normalize_rewards": True,
    "entropy_coef": 0.01,
}
WITH_SCREENS = {"share_features": True}
SMALL_SCREENS = {"downscale": 4, "stack": 2}
"""Settings of `multiverse/QuestScreen-v0`: 36 × 40 pixels need a tenth of the convolutions of 72 × 80."""


def parser() -> argparse.ArgumentParser:
    flags = argparse.ArgumentParser(description="Trains PPO on Game Boys.", allow_abbrev=False)
    for name, default, text in [
        ("steps", 100_000, "total number of env steps"),
        ("envs", 1, "number of parallel environments"),
        ("episode-length", 500, "maximum number of steps of an episode"),
        ("update-epochs", 4, "number of optimization passes over a batch of episodes"),
        ("batch-size", 128, "number of rows in a minibatch"),
    ]:
        flags.add_argument(f"--{name}", type=_positive, default=default, metavar="N", help=f"{text} ({default})")
    flags.add_argument(
        "--output-dir", default="training_runs", help="directory that contains one directory per run (training_runs)"
    )
    flags.add_argument("--rom", help="ROM of a cartridge that you own (default: the built-in quest)")
    flags.add_argument("--game", help="game file of the cartridge (default: zelda.yaml)")
    flags.add_argument("--observation", choices=("ram", "screen", "both"), default="ram")
    flags.add_argument("--seed", type=int, default=0)
    return flags


def _positive(text: str) -> int:
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected at least 1, got {text}")
    return int(text)


def steps_per_env(steps: int, envs: int, episode_length: int) -> int:
    """Return the number of steps of each env in a rollout.

    As in the document, every env plays about one episode before an update, and at least one if the budget allows it. If
    possible, the budget is a whole number of rollouts.
    """
    env_budget = -(-steps // envs)
    max_rollouts = max(1, env_budget // episode_length)
    rollouts = next(
        (count for count in range(max_rollouts, max_rollouts // 2, -1) if env_budget % count == 0), max_rollouts
    )
    return -(-env_budget // rollouts)


def train(flags: argparse.Namespace) -> mv.Run:
    screens = flags.observation != "ram"
    observation = {"observation": flags.observation, "episode_length": flags.episode_length}
    env, arguments = env_of(flags.rom, flags.game, **observation, **(SMALL_SCREENS if screens else {}))
    settings = {
        "env_kwargs": arguments,
        "env_steps": flags.steps,
        "num_envs": flags.envs,
        "epochs": flags.update_epochs,
        "batch_size": flags.batch_size,
        "steps_per_env": steps_per_env(flags.steps, flags.envs, flags.episode_length),
        "seed": flags.seed,
    }
    config = config_for(env, "ppo", {**SETTINGS, **(WITH_SCREENS if screens else {}), **settings}, preset=False)
    lines = TrainingLines()
    print(f"Initializing {flags.envs} parallel environments...", flush=True)
    run = start_run(config, StartOptions(root=flags.output_dir), hooks=[lines])
    print(f"Cleaning up {flags.envs} environments...")
    for number in range(1, flags.envs + 1):  # `start_run` has closed them, and raises if it cannot
        print(f"Environment {number} closed")
    print(final_block(run.summary, lines.average, flags.envs))
    print(f"Memory usage: {lines.peak_mb:.1f} MB at most\nRun: {run.path}", flush=True)
    return run


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the script; return the exit status: 0, 1 for a missing package, 2 for an invalid argument, 130 for Ctrl-C."""
    flags = parser().parse_args(arguments)
    try:
        train(flags)
    except KeyboardInterrupt:
        print(f"Interrupted; the run is saved. To resume: multiverse resume {flags.output_dir}", flush=True)
        return INTERRUPTED
    except ImportError as error:
        print(f"train.py: {error}", file=sys.stderr)
        return 1
    except mv.MultiverseError as error:
        print(f"train.py: {error.headline}", file=sys.stderr)
        return REFUSED
    return 0


# Workers do not need this guard, because they do not import the script. Tests and notebooks do.
if __name__ == "__main__":
    sys.exit(main())

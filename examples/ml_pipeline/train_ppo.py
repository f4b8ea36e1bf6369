"""PPO with the document's flags and progress lines. In multiverse: `multiverse train CartPole-v1 --num-episodes 1000`.

python examples/ml_pipeline/train_ppo.py                       # one env, 1000 episodes
python examples/ml_pipeline/train_ppo.py --n-envs 8 --checkpoint-dir checkpoints/parallel_v1
python examples/ml_pipeline/train_ppo.py --resume-from checkpoints/parallel_v1 --num-episodes 2000
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import multiverse as mv
from examples.ml_pipeline.episode_lines import EpisodeLines
from examples.ml_pipeline.models.rl.algorithms.ppo_trainer import DEFAULTS, PPOTrainer

HELP = {
    "n_envs": "number of environments stepped in parallel; 1: in this process",
    "parallel_start_method": "start method of worker processes (default: forkserver)",
    "device": "device on which the networks are trained",
    "learning_rate": "learning rate of Adam",
    "gamma": "discount factor",
    "gae_lambda": "λ of generalized advantage estimation",
    "clip_range": "clip range of the probability ratio",
    "value_coef": "weight of the value loss",
    "entropy_coef": "weight of the entropy bonus",
    "n_epochs": "number of passes over a rollout per update",
    "batch_size": "number of rows in a minibatch",
    "n_steps": "number of steps of every env in a rollout (not in the document)",
    "seed": "seed for initial weights, exploration noise and every episode of every env",
}
CHOICES = {"parallel_start_method": ("spawn", "fork", "forkserver"), "device": ("cpu", "cuda", "mps")}
REFUSED, INTERRUPTED = 2, 130


def parser() -> argparse.ArgumentParser:
    """Return a parser with the document's flags and defaults. Its result lacks settings that are not given."""
    flags = argparse.ArgumentParser(description="Train PPO.", argument_default=argparse.SUPPRESS, allow_abbrev=False)
    flags.add_argument("--env", metavar="ID|MODULE:NAME", help="environment (default: CartPole-v1)")
    for name, default in DEFAULTS.items():
        kind, help_text = str if default is None else type(default), "" if default is None else f" (default: {default})"
        flags.add_argument(_flag(name), type=kind, choices=CHOICES.get(name), help=HELP[name] + help_text)
    episode_flags = flags.add_argument_group("episodes", "counted over all environments")
    for name, default, least, text in [
        ("num_episodes", 1000, 1, "number of episodes to train for"),
        ("eval_every", 50, 0, "episodes between evaluations, which use one env; 0: only at the end"),
        ("save_every", 50, 0, "episodes between checkpoints; 0: only at the end"),
        ("log_interval", 10, 1, "episodes between progress lines"),
    ]:
        help_text = f"{text} (default: {default})"
        episode_flags.add_argument(_flag(name), type=_at_least(least), default=default, metavar="N", help=help_text)
    checkpoint_options = {
        "default": "runs/ml_pipeline",
        "help": "directory that contains one directory per run (default: runs/ml_pipeline)",
    }
    flags.add_argument("--checkpoint-dir", metavar="DIR", **checkpoint_options)
    flags.add_argument(
        "--resume-from", metavar="DIR", default=None, help="resume this run, or the most recent run in this directory"
    )
    return flags


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _at_least(least: int) -> Any:
    def number(text: str) -> int:
        if int(text) < least:
            raise argparse.ArgumentTypeError(f"expected at least {least}, got {text}")
        return int(text)

    return number


def train(flags: argparse.Namespace) -> mv.Run:
    """Train to the end in segments, each of which ends when a checkpoint or an evaluation is due."""
    given = {name: value for name, value in vars(flags).items() if name in DEFAULTS or name == "env"}
    announce(given, flags.resume_from)
    trainer = PPOTrainer(checkpoint_dir=flags.checkpoint_dir, resume_from=flags.resume_from, **given)
    lines, done, run = [EpisodeLines(flags.num_episodes, flags.log_interval)], 0, None
    while run is None or done < flags.num_episodes:
        goals = [_next_multiple(every, done) for every in (flags.save_every, flags.eval_every) if every]
        run = trainer.train(min([*goals, flags.num_episodes]), lines)
        before, done = done, run.summary["episodes"]
        report_segment(run, flags, before, done)
    return run


def _next_multiple(every: int, done: int) -> int:
    return (done // every + 1) * every


def announce(given: dict[str, Any], resume_from: str | None) -> None:
    """Print the mode of the training, in the document's format."""
    if resume_from is not None:
        idle = ", ".join(_flag(name) for name in given)
        print(
            f"Resuming {resume_from} with the settings of that run{f'; flags without effect: {idle}' if idle else ''}"
        )
        return
    n_envs = given.get("n_envs", DEFAULTS["n_envs"])
    if n_envs == 1:
        print("Using 1 environment for training, sequentially", flush=True)
        return
    print(f"Using {n_envs} parallel environments for training")
    print(f"   Start method: {given.get('parallel_start_method', 'default')}")
    print(f"Parallel mode: {n_envs} environments", flush=True)


def report_segment(run: mv.Run, flags: argparse.Namespace, before: int, done: int) -> None:
    """Print the evaluation and the checkpoint that were due at the end of a segment."""
    finished, evaluation = done >= flags.num_episodes, run.summary["evaluation"]
    if finished or (flags.eval_every and done // flags.eval_every > before // flags.eval_every):
        result = "failed"
        if evaluation is not None:
            result = f"{evaluation['mean_return']:.2f} ± {evaluation['std_return']:.2f}"
            result += f" over {evaluation['episodes']} unseen episodes, on 1 env"
        print(f"Evaluation after {done} episodes: {result}")
    if finished or (flags.save_every and done // flags.save_every > before // flags.save_every):
        print(f"Checkpoint saved: {run.path}", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the script; return the exit status: 0, 1 for a missing package, 2 for an invalid argument, 130 for Ctrl-C."""
    flags = parser().parse_args(arguments)
    try:
        summary = train(flags).summary
    except KeyboardInterrupt:
        where = shlex.quote(flags.resume_from or flags.checkpoint_dir)
        print(f"Interrupted; the state after the last update is saved. To resume: --resume-from {where}", flush=True)
        return INTERRUPTED
    except ModuleNotFoundError as error:
        print(f"train_ppo.py: {error}. Training needs: pip install 'multiverse[train]'", file=sys.stderr)
        return 1
    except mv.MultiverseError as error:
        print(f"train_ppo.py: {error}", file=sys.stderr)
        return REFUSED
    print(
        "Trained: {env_steps:,} env steps, {episodes:,} episodes, {updates:,} updates in {seconds:.1f} s".format(
            **summary
        )
    )
    return 0


# Workers do not need this guard, because they do not import the script. Tests and notebooks do.
if __name__ == "__main__":
    sys.exit(main())

"""Today this is `multiverse train CartPole-v1 --num-episodes 1000`: here with the document's flags and lines.

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
    "n_envs": "envs stepped side by side; 1: in this process, one after another",
    "parallel_start_method": "of worker processes; left out: forkserver",
    "device": "where the networks learn",
    "learning_rate": "step size of Adam",
    "gamma": "discount factor",
    "gae_lambda": "λ of generalized advantage estimation",
    "clip_range": "of the probability ratio",
    "value_coef": "weight of the value loss",
    "entropy_coef": "weight of the entropy bonus",
    "n_epochs": "passes over a rollout in one update",
    "batch_size": "rows of a minibatch",
    "n_steps": "steps of every env in a rollout (not in the document)",
    "seed": "of weights, noise, and every episode of every env",
}
CHOICES = {"parallel_start_method": ("spawn", "fork", "forkserver"), "device": ("cpu", "cuda", "mps")}
REFUSED, INTERRUPTED = 2, 130


def parser() -> argparse.ArgumentParser:
    """The document's flags, with its defaults; a setting that is not given is left out."""
    flags = argparse.ArgumentParser(description="Trains PPO.", argument_default=argparse.SUPPRESS, allow_abbrev=False)
    flags.add_argument("--env", metavar="ID|MODULE:NAME", help="what to train on (default: CartPole-v1)")
    for name, default in DEFAULTS.items():
        kind, told = str if default is None else type(default), "" if default is None else f" (default: {default})"
        flags.add_argument(_flag(name), type=kind, choices=CHOICES.get(name), help=HELP[name] + told)
    watching = flags.add_argument_group("episodes", "counted over all envs together")
    for name, default, least, text in [
        ("num_episodes", 1000, 1, "when to end"),
        ("eval_every", 50, 0, "between evaluations, always on one env; 0: only at the end"),
        ("save_every", 50, 0, "between checkpoints; 0: only at the end"),
        ("log_interval", 10, 1, "between lines"),
    ]:
        told = f"{text} (default: {default})"
        watching.add_argument(_flag(name), type=_at_least(least), default=default, metavar="N", help=told)
    where = {"default": "runs/ml_pipeline", "help": "gets a folder for this run (default: runs/ml_pipeline)"}
    flags.add_argument("--checkpoint-dir", metavar="DIR", **where)
    flags.add_argument("--resume-from", metavar="DIR", default=None, help="go on with the run there, or the last one")
    return flags


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _at_least(least: int) -> Any:
    def number(text: str) -> int:
        if int(text) < least:
            raise argparse.ArgumentTypeError(f"{text}: at least {least}")
        return int(text)

    return number


def train(flags: argparse.Namespace) -> mv.Run:
    """To its end, in stretches: each ends where a checkpoint or an evaluation is due."""
    given = {name: value for name, value in vars(flags).items() if name in DEFAULTS or name == "env"}
    announce(given, flags.resume_from)
    trainer = PPOTrainer(checkpoint_dir=flags.checkpoint_dir, resume_from=flags.resume_from, **given)
    lines, done, run = [EpisodeLines(flags.num_episodes, flags.log_interval)], 0, None
    while run is None or done < flags.num_episodes:
        goals = [_next_multiple(every, done) for every in (flags.save_every, flags.eval_every) if every]
        run = trainer.train(min([*goals, flags.num_episodes]), lines)
        before, done = done, run.summary["episodes"]
        tell_stretch(run, flags, before, done)
    return run


def _next_multiple(every: int, done: int) -> int:
    return (done // every + 1) * every


def announce(given: dict[str, Any], resume_from: str | None) -> None:
    """What is about to happen, in the document's words."""
    if resume_from is not None:
        idle = ", ".join(_flag(name) for name in given)
        print(f"Going on with {resume_from}, with the settings of that run{f'; no effect: {idle}' if idle else ''}")
        return
    n_envs = given.get("n_envs", DEFAULTS["n_envs"])
    if n_envs == 1:
        print("Using 1 environment for training, sequentially", flush=True)
        return
    print(f"Using {n_envs} parallel environments for training")
    print(f"   Start method: {given.get('parallel_start_method', 'default')}")
    print(f"Parallel mode: {n_envs} environments", flush=True)


def tell_stretch(run: mv.Run, flags: argparse.Namespace, before: int, done: int) -> None:
    """What was due at the end of a stretch."""
    over, evaluation = done >= flags.num_episodes, run.summary["evaluation"]
    if over or (flags.eval_every and done // flags.eval_every > before // flags.eval_every):
        told = "failed"
        if evaluation is not None:
            told = f"{evaluation['mean_return']:.2f} ± {evaluation['std_return']:.2f}"
            told += f" over {evaluation['episodes']} unseen episodes, on 1 env"
        print(f"Evaluation after {done} episodes: {told}")
    if over or (flags.save_every and done // flags.save_every > before // flags.save_every):
        print(f"Checkpoint saved: {run.path}", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0, 1 if something is not installed, 2 for a bad argument, 130 after Ctrl-C."""
    flags = parser().parse_args(arguments)
    try:
        summary = train(flags).summary
    except KeyboardInterrupt:
        where = shlex.quote(flags.resume_from or flags.checkpoint_dir)
        print(f"Interrupted, and saved as it was after the last update. To go on: --resume-from {where}", flush=True)
        return INTERRUPTED
    except ModuleNotFoundError as error:
        print(f"train_ppo.py: {error}; training needs: pip install 'multiverse[train]'", file=sys.stderr)
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


# No worker needs this guard: they do not import the script. It is here so that tests and notebooks can.
if __name__ == "__main__":
    sys.exit(main())

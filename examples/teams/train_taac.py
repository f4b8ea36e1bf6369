"""TAAC with the document's flags, config and model paths. All environments run in this process, one after another.

In multiverse: `multiverse train BoxJump-v0 --algorithm taac --num-envs 4 --executor serial`.

python examples/teams/train_taac.py --env boxjump --config examples/teams/configs/boxjump.yaml --num_parallel 4
python examples/teams/train_taac.py --env boxjump --episodes 20 --model_path files/Models/boxjump/best_model.pth
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import multiverse as mv
from examples.teams.parallel_environments import ParallelEnvironmentManager
from examples.teams.settings import EnvironmentSettings, Settings, load_settings

CONFIG = Path(__file__).parent / "configs" / "boxjump.yaml"
REFUSED, INTERRUPTED = 2, 130


def parser() -> argparse.ArgumentParser:
    flags = argparse.ArgumentParser(description="Train TAAC.", allow_abbrev=False)
    flags.add_argument("--config", type=Path, default=CONFIG, help="config file (default: configs/boxjump.yaml)")
    flags.add_argument("--env", help="environment (default: from the config)")
    flags.add_argument("--num_parallel", type=int, metavar="N", help="number of envs (default: from the config)")
    flags.add_argument("--episodes", type=int, metavar="N", help="total number of episodes (default: from the config)")
    flags.add_argument("--model_path", help="model whose weights are the initial weights")
    flags.add_argument("--seed", type=int, default=0)
    return flags


def configured(flags: argparse.Namespace) -> Settings:
    """Return the settings of the config file, overridden by those of the command line."""
    settings = load_settings(flags.config)
    given = {name: getattr(flags, name) for name in ("episodes", "num_parallel") if getattr(flags, name) is not None}
    environment, model = settings.environment, settings.model
    if flags.env not in (None, environment.name):  # the config's env_kwargs and model belong to its own env
        environment = EnvironmentSettings(name=flags.env)
        model = replace(model, model_name=re.sub(r"[^\w.-]+", "_", flags.env))
    training, load = replace(settings.training, **given), flags.model_path or settings.load_model
    return replace(settings, environment=environment, model=model, training=training, load_model=load)


def train_settings(settings: Settings) -> dict[str, Any]:
    """Return the settings under the names of `mv.train`."""
    training, model = settings.training, settings.model
    return {
        "env_kwargs": settings.environment.env_kwargs,
        "num_envs": training.num_parallel,
        "episodes": training.episodes,
        "steps_per_env": training.max_steps_per_episode or 512,
        "whole_episodes": True,
        "evaluation_deterministic": False,
        "gamma": training.gamma,
        "gae_lambda": training.lam,
        "learning_rate": training.learning_rate,
        "min_learning_rate": training.min_learning_rate,
        "clip_range": training.epsilon_clip,
        "epochs": training.K_epochs,
        "entropy_coef": training.c_entropy,
        "value_coef": training.c_value,
        "max_grad_norm": training.max_grad_norm,
        "batch_size": training.batch_size,
        "similarity_coef": training.similarity_loss_coef,
        "num_heads": model.num_heads,
        "embedding_size": model.embedding_dim,
        "hidden_size": model.hidden_size,
    }


class Lines(mv.Hook):
    """Hook that prints a line every `every` episodes, at the end of the rollout in which they ended."""

    def __init__(self, episodes: int, every: int) -> None:
        self._episodes, self._every, self._returns = episodes, every, list[float]()

    def on_rollout(self, trainer: Any, collected: Any) -> None:
        before = len(self._returns)
        self._returns += [sum((episode.by_agent or {"": episode.returned}).values()) for episode in collected.episodes]
        now = len(self._returns)
        if now // self._every > before // self._every:
            recent = self._returns[-100:]
            mean = sum(recent) / len(recent)
            print(f"Episode {now}/{self._episodes}: mean team return of the last {len(recent)}: {mean:.3f}", flush=True)


def existing_model(path: str | Path) -> Path:
    """Return the path of a model that this program has written; raise an error if it is not one."""
    model = Path(path)
    if model.is_file():
        raise mv.errors.InvalidRequest(
            f"{path} is a file. Expected a directory written by train_taac.py; torch pickles are refused, because "
            "loading them can run arbitrary code"
        )
    if not (model / "checkpoints").is_dir():
        raise mv.errors.InvalidRequest(
            f"{path} does not contain a model. Run train_taac.py without --model_path to create one"
        )
    return model


def which_of(model: Path) -> str:
    """Return "best", or "latest" if training ended before its first evaluation."""
    return "best" if (model / "checkpoints" / "best").is_dir() else "latest"


def set_aside(path: Path) -> Path | None:
    """Rename an existing model to make way for a new one; return its new path, or None if there was no model."""
    if not path.exists():
        return None
    existing_model(path)
    renamed = next(p for i in count(1) if not (p := path.with_name(f"{path.stem}-{i}{path.suffix}")).exists())
    path.rename(renamed)
    print(f"Existing model renamed to {renamed}")
    return renamed


def train(settings: Settings, seed: int, **options: Any) -> mv.Run:
    """Train; return the run, which can be evaluated, recorded and resumed, and which is the model directory.

    `options` are options of `mv.train` that determine where the environments run; by default serially in this process.
    """
    model_dir, init_from = settings.best_model, None
    if settings.load_model is not None:
        init_from = existing_model(settings.load_model)
    environment = settings.environment  # raise errors of the environment before the old model is renamed
    ParallelEnvironmentManager(environment.name, environment.env_kwargs, 1).close_all()
    renamed = set_aside(model_dir)
    if init_from is not None and renamed is not None and not init_from.exists():
        init_from = renamed
    if init_from is not None:
        init_from = init_from / "checkpoints" / "best" if which_of(init_from) == "best" else init_from
        print(f"Initial weights: {init_from}")
    training = settings.training
    options = {"executor": "serial", **options}
    where = "this process" if options["executor"] == "serial" else f"{options['workers']} processes"
    print(f"Training taac on {settings.environment.name}: {training.num_parallel} envs in {where}", flush=True)
    try:
        return mv.train(
            settings.environment.source,
            "taac",
            run_dir=model_dir,
            hooks=[Lines(training.episodes, settings.logging.log_interval)],
            init_from=init_from,
            preset=False,
            progress=False,
            seed=seed,
            **{**train_settings(settings), **options},
        )
    except BaseException as error:
        if any(model_dir.glob("checkpoints/*")):
            if isinstance(error, KeyboardInterrupt):
                print(f"The state after the last update is saved. To resume: multiverse resume {model_dir}")
        elif renamed is not None:
            shutil.rmtree(model_dir, ignore_errors=True)
            renamed.rename(model_dir)
            print(f"Training ended before the first checkpoint; the existing model is restored in {model_dir}")
        raise


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the script; return the exit status: 0, 1 for a missing package, 2 for an invalid argument, 130 for Ctrl-C."""
    flags = parser().parse_args(arguments)
    try:
        run = train(configured(flags), flags.seed)
    except KeyboardInterrupt:
        print("Interrupted", flush=True)
        return INTERRUPTED
    except ModuleNotFoundError as error:
        print(
            f"train_taac.py: {error}. Training needs: pip install 'multiverse[train,box2d,pettingzoo]'", file=sys.stderr
        )
        return 1
    except mv.MultiverseError as error:
        print(f"train_taac.py: {error}", file=sys.stderr)
        return REFUSED
    print_evaluation(run)
    return 0


def print_evaluation(run: mv.Run) -> None:
    """Print the result of the evaluation and the path of the model."""
    evaluation = run.summary["evaluation"]
    team = sum(value for name, value in (evaluation or {}).items() if name.startswith("mean_return/"))
    result = (
        "failed" if evaluation is None else f"team return {team:.3f}, over {evaluation['episodes']} unseen episodes"
    )
    best = f"Best model: {run.path}\nTo record a video: multiverse record {run.path} --which {which_of(run.path)}"
    print(f"Evaluation: {result}\n{best}")


if __name__ == "__main__":
    sys.exit(main())

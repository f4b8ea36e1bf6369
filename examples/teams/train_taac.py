"""Today this is `multiverse train BoxJump-v0 --algorithm taac --num-envs 4 --executor serial`: here with the document's
flags and config, and with its models' places. All envs are in this process, one after the other.

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
    flags = argparse.ArgumentParser(description="Trains TAAC.", allow_abbrev=False)
    flags.add_argument("--config", type=Path, default=CONFIG, help="(default: configs/boxjump.yaml)")
    flags.add_argument("--env", help="what to play, in place of the config's")
    flags.add_argument("--num_parallel", type=int, metavar="N", help="envs, in place of the config's")
    flags.add_argument("--episodes", type=int, metavar="N", help="of all envs together, in place of the config's")
    flags.add_argument("--model_path", help="begin with what was learned there")
    flags.add_argument("--seed", type=int, default=0)
    return flags


def configured(flags: argparse.Namespace) -> Settings:
    """The file's settings, with the command line's in place of its own."""
    settings = load_settings(flags.config)
    given = {name: getattr(flags, name) for name in ("episodes", "num_parallel") if getattr(flags, name) is not None}
    environment, model = settings.environment, settings.model
    if flags.env not in (None, environment.name):  # what another env is made with does not fit it, nor does its model
        environment = EnvironmentSettings(name=flags.env)
        model = replace(model, model_name=re.sub(r"[^\w.-]+", "_", flags.env))
    training, load = replace(settings.training, **given), flags.model_path or settings.load_model
    return replace(settings, environment=environment, model=model, training=training, load_model=load)


def in_our_words(settings: Settings) -> dict[str, Any]:
    """What `mv.train` takes."""
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
    """One for every so many episodes, when the rollout is over in which they ended."""

    def __init__(self, episodes: int, every: int) -> None:
        self._episodes, self._every, self._returns = episodes, every, list[float]()

    def on_rollout(self, trainer: Any, collected: Any) -> None:
        before = len(self._returns)
        self._returns += [sum((one.by_agent or {"": one.returned}).values()) for one in collected.episodes]
        now = len(self._returns)
        if now // self._every > before // self._every:
            recent = self._returns[-100:]
            mean = sum(recent) / len(recent)
            print(
                f"Episode {now}/{self._episodes}: team's return, mean of the last {len(recent)}: {mean:.3f}", flush=True
            )


def known_model(path: str | Path) -> Path:
    """A model that this program has left there, or one sentence about what is wrong with it."""
    found = Path(path)
    if found.is_file():
        raise mv.errors.InvalidRequest(
            f"{path} is a file, perhaps a torch pickle, which could run code when it is opened: only models that "
            "train_taac.py has written are taken, which are folders of numbers"
        )
    if not (found / "checkpoints").is_dir():
        raise mv.errors.InvalidRequest(f"{path}: there is no model; train_taac.py without --model_path makes one")
    return found


def which_of(model: Path) -> str:
    """Its best weights, or the latest where training ended before its first evaluation."""
    return "best" if (model / "checkpoints" / "best").is_dir() else "latest"


def cleared(place: Path) -> Path | None:
    """Room for a new model; where the old one is now, if there was one."""
    if not place.exists():
        return None
    known_model(place)
    aside = next(p for i in count(1) if not (p := place.with_name(f"{place.stem}-{i}{place.suffix}")).exists())
    place.rename(aside)
    print(f"The model that was there is in {aside} now")
    return aside


def train(settings: Settings, seed: int, **how: Any) -> mv.Run:
    """The run, which is the model: its best weights, and everything to look at, evaluate, record or resume it.

    `how`: where the envs run, in the words of `mv.train`; by default in this process, one after the other.
    """
    place, begun_from = settings.best_model, None
    if settings.load_model is not None:
        begun_from = known_model(settings.load_model)
    environment = settings.environment  # one that is no team, or cannot be made, is told before the old model is moved
    ParallelEnvironmentManager(environment.name, environment.env_kwargs, 1).close_all()
    aside = cleared(place)
    if begun_from is not None and aside is not None and not begun_from.exists():
        begun_from = aside
    if begun_from is not None:
        begun_from = begun_from / "checkpoints" / "best" if which_of(begun_from) == "best" else begun_from
        print(f"Beginning with {begun_from}")
    training = settings.training
    how = {"executor": "serial", **how}
    where = "this process" if how["executor"] == "serial" else f"{how['workers']} processes"
    print(f"Training taac on {settings.environment.name}: {training.num_parallel} envs in {where}", flush=True)
    try:
        return mv.train(
            settings.environment.source,
            "taac",
            run_dir=place,
            hooks=[Lines(training.episodes, settings.logging.log_interval)],
            init_from=begun_from,
            preset=False,
            progress=False,
            seed=seed,
            **{**in_our_words(settings), **how},
        )
    except BaseException as error:
        if any(place.glob("checkpoints/*")):
            if isinstance(error, KeyboardInterrupt):
                print(f"Saved as it was after the last update: multiverse resume {place}")
        elif aside is not None:
            shutil.rmtree(place, ignore_errors=True)
            aside.rename(place)
            print(f"Nothing was learned: the model is in {place} again")
        raise


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0, 1 if something is not installed, 2 for a bad argument, 130 after Ctrl-C."""
    flags = parser().parse_args(arguments)
    try:
        run = train(configured(flags), flags.seed)
    except KeyboardInterrupt:
        print("Interrupted", flush=True)
        return INTERRUPTED
    except ModuleNotFoundError as error:
        print(
            f"train_taac.py: {error}; training needs: pip install 'multiverse[train,box2d,pettingzoo]'", file=sys.stderr
        )
        return 1
    except mv.MultiverseError as error:
        print(f"train_taac.py: {error}", file=sys.stderr)
        return REFUSED
    tell(run)
    return 0


def tell(run: mv.Run) -> None:
    """How good it became, and where it is."""
    found = run.summary["evaluation"]
    team = sum(value for name, value in (found or {}).items() if name.startswith("mean_return/"))
    told = "failed" if found is None else f"team's return {team:.3f}, over {found['episodes']} unseen episodes"
    best = f"Best model: {run.path}\nTo watch it: multiverse record {run.path} --which {which_of(run.path)}"
    print(f"Evaluation: {told}\n{best}")


if __name__ == "__main__":
    sys.exit(main())

"""The tasks of a run (meta-RL): drawn once from its seed, some to train on and others to evaluate on."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import gymnasium

from multiverse.adapters.env_source import Wrapper, recipes
from multiverse.core.errors import EnvFailed, InvalidRequest, MultiverseError, RemoteError
from multiverse.core.reset_plan import DerivedSeeds, DrawnTasks
from multiverse.training.config.train_config import TrainConfig
from multiverse.wrappers.meta_episode import HOOKS, MetaEpisode, draw_tasks


def with_tasks(config: TrainConfig, env: Any, *outside: Wrapper) -> dict[str, Any]:
    """What `make_vec` is given for a run's envs: their tasks, and what makes one meta-episode of several episodes.
    `outside`: wrappers around that."""
    if config.tasks is None:
        return {"wrappers": list(outside)} if outside else {}
    wrap: Wrapper = partial(MetaEpisode, episodes_per_task=config.episodes_per_task, oracle=config.oracle)
    return {"wrappers": [wrap, *outside], "tasks": _drawn(config, env)}


def training_plan(config: TrainConfig) -> DerivedSeeds | DrawnTasks:
    """What episodes of the training begin from."""
    return DerivedSeeds(config.seed) if config.tasks is None else DrawnTasks(config.seed, range(config.tasks))


def evaluation_tasks(config: TrainConfig) -> Sequence[int]:
    """Those that evaluations go through, one after the other: held out, or the training's where none are."""
    first = config.tasks or 0
    return range(first, first + config.held_out_tasks) if config.held_out_tasks else range(first)


def _drawn(config: TrainConfig, env: Any) -> list[Any]:
    one = env[0] if isinstance(env, list | tuple) else env
    try:
        built = recipes(one, 1, config.env_kwargs or None, None)[0].build_foreign()
    except MultiverseError:
        raise
    except Exception as error:  # whatever the env does
        raise EnvFailed("could not be built", None, [RemoteError.of(error, 0)]) from error
    try:
        if not isinstance(built, gymnasium.Env) or not all(map(built.has_wrapper_attr, HOOKS)):
            raise InvalidRequest(
                f"tasks={config.tasks}: {config.env} has none; an env with tasks has {', '.join(HOOKS)}"
            )
        _refuse_wrapped_already(built)
        train, held_out = draw_tasks(built, config.tasks or 1, config.held_out_tasks, config.seed)
    finally:
        built.close()
    return [*train, *held_out]


def _refuse_wrapped_already(env: gymnasium.Env[Any, Any]) -> None:
    """Episodes of a task become one in a run by themselves."""
    while isinstance(env, gymnasium.Wrapper):
        if isinstance(env, MetaEpisode):
            raise InvalidRequest(
                "the env is a MetaEpisode already, and a run with tasks makes one of it: give the env itself, and "
                "episodes_per_task and oracle to the run"
            )
        env = env.env

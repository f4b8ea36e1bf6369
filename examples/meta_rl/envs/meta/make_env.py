"""Today this is `mv.MetaEpisode(gymnasium.make("multiverse/AntDir-v0"), 2)` and `mv.make_vec(…, tasks=tasks)`.

    from envs.meta.make_env import make_env, make_parallel_env         # in examples/meta_rl
    env = make_env("AntDir-v0", 2, seed=1, num_train_tasks=50, num_eval_tasks=20)
    parallel_env = make_parallel_env("AntDir-v0", 2, num_workers=4, seed=1, num_train_tasks=50, num_eval_tasks=20)

Both have `train_tasks` and `eval_tasks`: drawn from the seed, none in both. All envs of a run must share one list: give
them the same seed or, as `Learner.init_env` does, the list itself (`tasks=`).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import gymnasium as gym

import multiverse as mv
from multiverse import envs

from ..parallel_env_manager import ParallelEnvManager
from .wrappers import VariBadWrapper

Tasks = tuple[Sequence[Any], Sequence[Any]]
"""Train and eval."""


def make_env(
    env_name: str,
    episodes_per_task: int,
    seed: int | None = None,
    num_train_tasks: int = 0,
    num_eval_tasks: int = 0,
    oracle: bool = False,
    tasks: Tasks | None = None,
    **kwargs: Any,
) -> VariBadWrapper:
    """One env; `kwargs` are its own. Without a number of train tasks it has none, and draws one for every rollout."""
    env = _build(env_name, episodes_per_task, oracle, kwargs)
    env.train_tasks, env.eval_tasks = tasks or _drawn(env, seed, num_train_tasks, num_eval_tasks)
    env.reset(seed=seed)
    return env


def make_parallel_env(
    env_id: str, episodes_per_task: int, num_workers: int, seed: int | None = None, oracle: bool = False, **kwargs: Any
) -> ParallelEnvManager:
    """As many of them, each in a worker process of its own."""
    named = ("num_train_tasks", "num_eval_tasks", "tasks")
    about_tasks, own = {k: kwargs[k] for k in named if k in kwargs}, {k: v for k, v in kwargs.items() if k not in named}
    one = make_env(env_id, episodes_per_task, seed, oracle=oracle, **about_tasks, **own)
    manager = ParallelEnvManager([functools.partial(_build, env_id, episodes_per_task, oracle, own)] * num_workers)
    manager.train_tasks, manager.eval_tasks = one.train_tasks, one.eval_tasks
    manager.reset(seed=seed)
    return manager


def _build(env_name: str, episodes_per_task: int, oracle: bool, kwargs: dict[str, Any]) -> VariBadWrapper:
    """Where the env will run. The document's names are ids of ours; any other id with the hooks for tasks will do."""
    name = f"multiverse/{env_name}" if env_name in envs.WITH_TASKS else env_name
    return VariBadWrapper(gym.make(name, **kwargs), episodes_per_task, oracle)


def _drawn(env: VariBadWrapper, seed: int | None, num_train: int, num_eval: int) -> Tasks:
    if not num_train and not num_eval:
        return [], []
    return mv.draw_tasks(env, num_train, num_eval, 0 if seed is None else seed)

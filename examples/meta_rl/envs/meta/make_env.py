"""Environments with tasks, created with the document's functions.

In multiverse: `mv.MetaEpisode(gymnasium.make("multiverse/AntDir-v0"), 2)` and `mv.make_vec(…, tasks=tasks)`.

    from envs.meta.make_env import make_env, make_parallel_env         # in examples/meta_rl
    env = make_env("AntDir-v0", 2, seed=1, num_train_tasks=50, num_eval_tasks=20)
    parallel_env = make_parallel_env("AntDir-v0", 2, num_workers=4, seed=1, num_train_tasks=50, num_eval_tasks=20)

Both have disjoint `train_tasks` and `eval_tasks`, drawn from the seed. All environments of a run must share the same
tasks: pass the same seed or, as `Learner.init_env` does, the tasks themselves (`tasks=`).
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
"""(training tasks, evaluation tasks)"""


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
    """Return one env; `kwargs` are passed to it. With `num_train_tasks=0` it draws a task for every rollout."""
    env = _build(env_name, episodes_per_task, oracle, kwargs)
    env.train_tasks, env.eval_tasks = tasks or _draw_tasks(env, seed, num_train_tasks, num_eval_tasks)
    env.reset(seed=seed)
    return env


def make_parallel_env(
    env_id: str, episodes_per_task: int, num_workers: int, seed: int | None = None, oracle: bool = False, **kwargs: Any
) -> ParallelEnvManager:
    """Return `num_workers` environments, each in its own worker process."""
    task_options = ("num_train_tasks", "num_eval_tasks", "tasks")
    task_kwargs, env_kwargs = (
        {k: kwargs[k] for k in task_options if k in kwargs},
        {k: v for k, v in kwargs.items() if k not in task_options},
    )
    env = make_env(env_id, episodes_per_task, seed, oracle=oracle, **task_kwargs, **env_kwargs)
    manager = ParallelEnvManager(
        [functools.partial(_build, env_id, episodes_per_task, oracle, env_kwargs)] * num_workers
    )
    manager.train_tasks, manager.eval_tasks = env.train_tasks, env.eval_tasks
    manager.reset(seed=seed)
    return manager


def _build(env_name: str, episodes_per_task: int, oracle: bool, kwargs: dict[str, Any]) -> VariBadWrapper:
    """Build the env in the process that runs it. `env_name`: one of the document, or any id of an env with tasks."""
    name = f"multiverse/{env_name}" if env_name in envs.WITH_TASKS else env_name
    return VariBadWrapper(gym.make(name, **kwargs), episodes_per_task, oracle)


def _draw_tasks(env: VariBadWrapper, seed: int | None, num_train: int, num_eval: int) -> Tasks:
    if not num_train and not num_eval:
        return [], []
    return mv.draw_tasks(env, num_train, num_eval, 0 if seed is None else seed)

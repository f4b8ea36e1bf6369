"""Parallel environments with the document's name. In multiverse: `mv.make_vec(env_fns)`.

    from models.rl.core.vec_env import ParallelEnv                 # in examples/ml_pipeline
    env = ParallelEnv([make_env for _ in range(8)])
    observations, infos = env.reset(seed=42)                       # env i gets 42 + i

`ParallelEnv` is a `gymnasium.vector.VectorEnv`: `step` returns five results. When an episode ends, the next one starts
in the same step, and the last observation is in `infos["final_obs"]`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import gymnasium as gym

import multiverse as mv

StartMethod = Literal["spawn", "fork", "forkserver"]


class ParallelEnv(gym.vector.VectorWrapper):
    """Vector env with one env per callable (lambdas, closures and local classes included), stepped in parallel.

    Args:
        env_fns: Callables that each build one env, in the process that runs it.
        start_method: Start method of the worker processes. None: forkserver, or no processes if the envs are so cheap
            that processes would slow them down.
    """

    def __init__(self, env_fns: Sequence[Callable[[], Any]], start_method: StartMethod | None = None) -> None:
        executor: Literal["auto", "process"] = "auto" if start_method is None else "process"
        self.engine = mv.make_vec(
            list(env_fns), executor=executor, workers=mv.WorkerOptions(start_method=start_method), autoreset="same_step"
        )
        super().__init__(self.engine)

    @property
    def n_envs(self) -> int:
        """Number of environments."""
        return self.engine.num_envs

    @property
    def plan(self) -> mv.Plan:
        """Executor and workers of the environments, and the reason for them."""
        return self.engine.plan

"""Today this is `multiverse.make_vec(env_fns)`: many envs in parallel, here under the document's name.

    from models.rl.core.vec_env import ParallelEnv                 # in examples/ml_pipeline
    env = ParallelEnv([make_env for _ in range(8)])
    observations, infos = env.reset(seed=42)                       # env i gets 42 + i

A `gymnasium.vector.VectorEnv`: a step gives five results, and an ended episode's successor has begun in the same step;
the last observation is in `infos["final_obs"]`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import gymnasium as gym

import multiverse as mv

StartMethod = Literal["spawn", "fork", "forkserver"]


class ParallelEnv(gym.vector.VectorWrapper):
    """One env for each callable (lambdas, closures and local classes included), stepped side by side. `close` it.

    Args:
        env_fns: each builds one env, where that env will run.
        start_method: how worker processes are started. None: forkserver, and no processes at all where the envs are so
            cheap that processes would slow them down.
    """

    def __init__(self, env_fns: Sequence[Callable[[], Any]], start_method: StartMethod | None = None) -> None:
        executor: Literal["auto", "process"] = "auto" if start_method is None else "process"
        self.engine = mv.make_vec(
            list(env_fns), executor=executor, workers=mv.WorkerOptions(start_method=start_method), autoreset="same_step"
        )
        super().__init__(self.engine)

    @property
    def n_envs(self) -> int:
        """How many."""
        return self.engine.num_envs

    @property
    def plan(self) -> mv.Plan:
        """How they run, and why."""
        return self.engine.plan

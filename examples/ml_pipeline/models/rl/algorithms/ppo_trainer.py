"""PPO on parallel environments with the document's names. In multiverse: `mv.train(env, num_envs=8)`.

    from models.rl.algorithms.ppo_trainer import PPOTrainer        # in examples/ml_pipeline
    with PPOTrainer("CartPole-v1", n_envs=8) as trainer:
        statistics = trainer.train_episode_vectorized()            # one rollout of all envs, one update
        run = trainer.train(num_episodes=1000)                     # train to the end, evaluate and save

Advantages are computed separately for each env, truncated episodes are bootstrapped with the value of their last
observation, and every episode of every env has its own seed, derived from `seed`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import multiverse as mv

from .rollouts import Rollouts

DEFAULTS: dict[str, Any] = {
    "n_envs": 1,
    "parallel_start_method": None,
    "device": "cpu",
    "learning_rate": 3e-4,
    "gamma": 0.99,
    "gae_lambda": 0.95,
    "clip_range": 0.2,
    "value_coef": 0.5,
    "entropy_coef": 0.05,
    "n_epochs": 4,
    "batch_size": 64,
    "n_steps": 128,
    "seed": 42,
}
"""Defaults of the document. `n_steps`, the number of steps of every env in a rollout, is not in the document."""

MULTIVERSE_NAMES = {
    "n_envs": "num_envs",
    "parallel_start_method": "start_method",
    "n_epochs": "epochs",
    "n_steps": "steps_per_env",
}
UNLIMITED_EPISODES = 10**9


class PPOTrainer:
    """Trainer that can be advanced one rollout at a time. `settings` are keys of `DEFAULTS`.

    `resume_from` is a run, or a directory with runs, to resume with its own settings. Call `close`, or use `with`, to
    save the run.
    """

    def __init__(
        self,
        env: Any = "CartPole-v1",
        *,
        checkpoint_dir: Path | str = "runs/ml_pipeline",
        resume_from: Path | str | None = None,
        **settings: Any,
    ) -> None:
        if unknown := sorted(settings.keys() - DEFAULTS.keys()):
            raise TypeError(f"PPOTrainer has no setting {unknown[0]!r}; its settings are {', '.join(DEFAULTS)}")
        self._env, self._root, self._settings = env, checkpoint_dir, multiverse_settings({**DEFAULTS, **settings})
        self._run: mv.Run | Path | None = None if resume_from is None else Path(resume_from)
        self._rollouts: Rollouts | None = None

    def train(self, num_episodes: int, hooks: Sequence[mv.Hook] = ()) -> mv.Run:
        """Train until `num_episodes` episodes have ended, including earlier ones; evaluate and save the run."""
        self.close()
        self._run = self._continue(num_episodes, hooks)
        return self._run

    def train_episode_vectorized(self) -> dict[str, Any]:
        """Collect one rollout of all envs and make one update. The envs keep their state until the next call."""
        if self._rollouts is None:
            self._rollouts = Rollouts(lambda hook: self._continue(UNLIMITED_EPISODES, [hook]))
        return self._rollouts.next()

    def close(self) -> None:
        """Evaluate and save the run, and close the envs. Calling this method again has no effect."""
        rollouts, self._rollouts = self._rollouts, None
        if rollouts is not None:
            self._run = rollouts.end()

    def _continue(self, num_episodes: int, hooks: Sequence[mv.Hook]) -> mv.Run:
        if self._run is None:
            settings = {**self._settings, "episodes": num_episodes, "evaluate_every": 0, "evaluation_envs": 1}
            return mv.train(self._env, "ppo", root=self._root, hooks=hooks, preset=False, progress=False, **settings)
        env = None if isinstance(self._env, str) else self._env  # a callable is not stored in the run
        return mv.resume(self._run, env=env, episodes=num_episodes, hooks=hooks, progress=False)

    def __enter__(self) -> PPOTrainer:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def multiverse_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the document's settings under the names of `mv.train`. One env runs in this process."""
    renamed = {MULTIVERSE_NAMES.get(name, name): value for name, value in settings.items()}
    return {**renamed, "executor": "serial", "start_method": None} if renamed["num_envs"] == 1 else renamed

"""Today this is `multiverse.train(env, num_envs=8)`: PPO over many envs, here under the document's name.

    from models.rl.algorithms.ppo_trainer import PPOTrainer        # in examples/ml_pipeline
    with PPOTrainer("CartPole-v1", n_envs=8) as trainer:
        statistics = trainer.train_episode_vectorized()            # one rollout of all envs, one update
        run = trainer.train(num_episodes=1000)                     # on to its end, evaluated and saved

Advantages are computed for each env by itself, an episode that was cut off is valued by what would have followed, and
every episode of every env has a seed of its own, derived from `seed`.
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
"""The document's, under its names; `n_steps`, of every env in a rollout, is not in it."""

TODAY = {
    "n_envs": "num_envs",
    "parallel_start_method": "start_method",
    "n_epochs": "epochs",
    "n_steps": "steps_per_env",
}
NO_END = 10**9  # episodes


class PPOTrainer:
    """One training, as long as it is asked to go on. `settings`: any of `DEFAULTS`.

    `resume_from`: a run, or a folder with runs, to go on with instead; it keeps its own settings. `close` it, or use
    `with`: that saves.
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
            raise TypeError(f"PPOTrainer has no setting {unknown[0]!r}; it has {', '.join(DEFAULTS)}")
        self._env, self._root, self._settings = env, checkpoint_dir, todays({**DEFAULTS, **settings})
        self._run: mv.Run | Path | None = None if resume_from is None else Path(resume_from)
        self._rollouts: Rollouts | None = None

    def train(self, num_episodes: int, hooks: Sequence[mv.Hook] = ()) -> mv.Run:
        """On until so many episodes have ended, those before included; then it is evaluated and saved."""
        self.close()
        self._run = self._go_on(num_episodes, hooks)
        return self._run

    def train_episode_vectorized(self) -> dict[str, Any]:
        """One rollout of all envs and one update. The envs stay where they are until the next call."""
        if self._rollouts is None:
            self._rollouts = Rollouts(lambda hook: self._go_on(NO_END, [hook]))
        return self._rollouts.next()

    def close(self) -> None:
        """Evaluates and saves what `train_episode_vectorized` has learned, and ends the envs. Twice does no harm."""
        rollouts, self._rollouts = self._rollouts, None
        if rollouts is not None:
            self._run = rollouts.end()

    def _go_on(self, num_episodes: int, hooks: Sequence[mv.Hook]) -> mv.Run:
        if self._run is None:
            settings = {**self._settings, "episodes": num_episodes, "evaluate_every": 0, "evaluation_envs": 1}
            return mv.train(self._env, "ppo", root=self._root, hooks=hooks, preset=False, progress=False, **settings)
        env = None if isinstance(self._env, str) else self._env  # no file can hold a callable
        return mv.resume(self._run, env=env, episodes=num_episodes, hooks=hooks, progress=False)

    def __enter__(self) -> PPOTrainer:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def todays(settings: dict[str, Any]) -> dict[str, Any]:
    """The document's settings as `mv.train` calls them. One env runs in this process, where nothing is started."""
    found = {TODAY.get(name, name): value for name, value in settings.items()}
    return {**found, "executor": "serial", "start_method": None} if found["num_envs"] == 1 else found

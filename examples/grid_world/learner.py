"""PPO of Stable-Baselines3 over any vector env. Only this module needs torch."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from examples.grid_world.settings import Config

try:
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.logger import KVWriter, Logger

    from multiverse.interop.stable_baselines3 import DummyVecEnv, SubprocVecEnv
except ModuleNotFoundError as missing:
    raise ImportError(
        f"training needs Stable-Baselines3 and PyTorch ({missing}): pip install 'multiverse[peers,pettingzoo]'"
    ) from missing

__all__ = ["DummyVecEnv", "Learner", "SubprocVecEnv"]

ROLLOUT_STEPS = 2048
"""Env steps before each update, of all envs together: what is learned does not hang on the number of envs."""

MINIBATCHES = 8
RECENT_EPISODES = 100

Log = Callable[[dict[str, float], int], None]
"""Takes the figures after so many env steps, under the names that Stable-Baselines3 gives them."""


class Learner:
    """One training, from beginning to end. `env` stays its caller's to close."""

    def __init__(self, env: Any, config: Config, log: Log) -> None:
        torch.set_num_threads(1)  # the networks are small, and the cores are the envs'
        self._total = config["total_timesteps"]
        steps_per_env = steps_of_each_env(env.num_envs, self._total)
        self._ppo = PPO(
            "MlpPolicy",
            env,
            n_steps=steps_per_env,
            batch_size=steps_per_env * env.num_envs // MINIBATCHES,
            ent_coef=0.01,
            seed=config["seed"],
            device="cpu",
        )
        self._ppo.set_logger(Logger(None, [FigureWriter(log)]))

    def learn(self) -> dict[str, Any]:
        """Status, env steps, speed and success. Ctrl-C ends it early, and the status tells so."""
        watch, status, begun = Watch(), "finished", time.perf_counter()
        try:
            self._ppo.learn(self._total, callback=watch)
        except KeyboardInterrupt:
            status = "interrupted"
        seconds, env_steps = time.perf_counter() - begun, self._ppo.num_timesteps
        return {
            "status": status,
            "env_steps": env_steps,
            "seconds": round(seconds, 2),
            "env_steps_per_second": round(env_steps / seconds, 1),
            "collected_per_second": round(env_steps / watch.collecting_s, 1) if watch.collecting_s else None,
            "success_rate": watch.success_rate,
        }

    def act(self, observations: Any) -> Any:
        """Actions drawn as in training."""
        return self._ppo.predict(observations, deterministic=False)[0]

    def save(self, path: Path) -> None:
        """For `PPO.load`."""
        self._ppo.save(path)


def steps_of_each_env(num_envs: int, total: int) -> int:
    """Of one rollout; a multiple of MINIBATCHES, so that these are of one size."""
    wanted = min(ROLLOUT_STEPS, total) // num_envs
    return max(MINIBATCHES, wanted // MINIBATCHES * MINIBATCHES)


class Watch(BaseCallback):
    """How long collecting took, and how many of the last episodes ended at the target and not for lack of time."""

    def __init__(self) -> None:
        super().__init__()
        self.collecting_s = 0.0
        self._begun = 0.0
        self._recent: deque[bool] = deque(maxlen=RECENT_EPISODES)

    @property
    def success_rate(self) -> float | None:
        return sum(self._recent) / len(self._recent) if self._recent else None

    def _on_rollout_start(self) -> None:
        self._begun = time.perf_counter()

    def _on_step(self) -> bool:
        ended = zip(self.locals["dones"], self.locals["infos"])
        self._recent.extend(not info["TimeLimit.truncated"] for done, info in ended if done)
        return True

    def _on_rollout_end(self) -> None:
        self.collecting_s += time.perf_counter() - self._begun
        if self._recent:
            self.logger.record("rollout/success_rate", self.success_rate)


class FigureWriter(KVWriter):
    """Hands on what Stable-Baselines3 writes: its numbers, and nothing else."""

    def __init__(self, log: Log) -> None:
        self._log = log

    def write(self, key_values: dict[str, Any], key_excluded: dict[str, Any], step: int = 0) -> None:
        self._log({key: float(value) for key, value in key_values.items() if not isinstance(value, str)}, step)

    def close(self) -> None:
        """There is nothing to close."""

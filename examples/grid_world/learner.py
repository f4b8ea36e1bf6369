"""PPO of Stable-Baselines3 on any vector env. Only this module imports torch."""

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
"""Total number of env steps per update, so that the updates do not depend on the number of envs."""

MINIBATCHES = 8
RECENT_EPISODES = 100

Log = Callable[[dict[str, float], int], None]
"""Called with metrics, under Stable-Baselines3's names, and the number of env steps."""


class Learner:
    """One training run. The caller closes `env`."""

    def __init__(self, env: Any, config: Config, log: Log) -> None:
        torch.set_num_threads(1)  # the networks are small, and the envs use the other cores
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
        self._ppo.set_logger(Logger(None, [MetricsWriter(log)]))

    def learn(self) -> dict[str, Any]:
        """Train; return the status, env steps, speed and success rate. After Ctrl-C the status is "interrupted"."""
        monitor, status, begun = Monitor(), "finished", time.perf_counter()
        try:
            self._ppo.learn(self._total, callback=monitor)
        except KeyboardInterrupt:
            status = "interrupted"
        seconds, env_steps = time.perf_counter() - begun, self._ppo.num_timesteps
        return {
            "status": status,
            "env_steps": env_steps,
            "seconds": round(seconds, 2),
            "env_steps_per_second": round(env_steps / seconds, 1),
            "collected_per_second": round(env_steps / monitor.collecting_s, 1) if monitor.collecting_s else None,
            "success_rate": monitor.success_rate,
        }

    def act(self, observations: Any) -> Any:
        """Return actions sampled from the policy, as in training."""
        return self._ppo.predict(observations, deterministic=False)[0]

    def save(self, path: Path) -> None:
        """Save the model in a file for `PPO.load`."""
        self._ppo.save(path)


def steps_of_each_env(num_envs: int, total: int) -> int:
    """Return the number of steps of each env in a rollout, a multiple of MINIBATCHES for minibatches of equal size."""
    wanted = min(ROLLOUT_STEPS, total) // num_envs
    return max(MINIBATCHES, wanted // MINIBATCHES * MINIBATCHES)


class Monitor(BaseCallback):
    """Callback that measures the collection time and the share of recent episodes that reached the target."""

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


class MetricsWriter(KVWriter):
    """Writer that passes the numeric metrics of Stable-Baselines3 to a `Log` function."""

    def __init__(self, log: Log) -> None:
        self._log = log

    def write(self, key_values: dict[str, Any], key_excluded: dict[str, Any], step: int = 0) -> None:
        self._log({key: float(value) for key, value in key_values.items() if not isinstance(value, str)}, step)

    def close(self) -> None:
        """Do nothing: no file is open."""

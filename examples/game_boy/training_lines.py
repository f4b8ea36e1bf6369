"""Progress lines in the document's format. `multiverse train` prints its own."""

from __future__ import annotations

import math
import time
from collections import deque
from typing import Any

import psutil

import multiverse as mv


class TrainingLines(mv.Hook):
    """Print a line for every episode and, for every update, its episodes, epochs, throughput and memory."""

    def __init__(self) -> None:
        self._last_10: deque[float] = deque(maxlen=10)
        self._env_steps: dict[int, int] = {}  # by env id: total length of its episodes
        self._episodes, self._started_at, self.peak_mb = 0, 0.0, 0.0

    def on_start(self, trainer: Any) -> None:
        """Report the environments: all are built, and in the first step of their first episode."""
        envs = trainer.session.envs
        for number, episode in enumerate(envs.episode_counts.tolist(), 1):
            assert episode == 0
            print(f"Environment {number}/{envs.num_envs} initialized")
        print("Starting parallel training...", flush=True)
        self._started_at = time.perf_counter()

    def on_rollout(self, trainer: Any, collected: Any) -> None:
        for episode in collected.episodes:
            self._episode(episode, trainer.config.num_envs)
        returns = [episode.returned for episode in collected.episodes]
        average = sum(returns) / len(returns) if returns else math.nan
        print(f"Optimization epoch: {len(returns)} episodes, avg reward: {average:.3f}", flush=True)

    def _episode(self, episode: Any, num_envs: int) -> None:
        """Print the line of an episode. `Step` counts all envs, which are stepped in parallel."""
        self._episodes += 1
        self._last_10.append(episode.returned)
        steps = self._env_steps[episode.env_id] = self._env_steps.get(episode.env_id, 0) + episode.length
        print(
            f"Step {steps * num_envs:6d} | Episode {self._episodes:4d} | Reward: {episode.returned:7.2f} | "
            f"Length: {episode.length:4d} | Avg10: {self.average:7.2f} | "
            f"Time: {time.perf_counter() - self._started_at:6.1f}s"
        )

    @property
    def average(self) -> float:
        """Mean reward of the last 10 episodes."""
        return sum(self._last_10) / len(self._last_10) if self._last_10 else math.nan

    def on_update(self, trainer: Any, report: Any) -> None:
        """Print a line for each epoch; the number of epochs is derived from the number of gradient steps."""
        settings, rollout = trainer.config.settings, trainer.session.rollouts[0]
        steps_per_epoch = math.ceil(int(rollout.valid.sum()) / settings.batch_size) or 1
        for epoch in range(1, round((report.gradient_steps + report.skipped) / steps_per_epoch) + 1):
            print(f"   Epoch {epoch}/{settings.epochs}: Optimizing policy...")
        self.peak_mb = max(self.peak_mb, memory_mb())
        per_second = trainer.metrics["env_steps_per_s"]
        print(f"   Steps per second: {per_second:.1f} | Memory usage: {memory_mb():.1f} MB", flush=True)


def memory_mb() -> float:
    """Return the memory in MB that is private to this program and its worker processes (USS)."""
    program = psutil.Process()
    total_bytes = 0
    for process in [program, *program.children(recursive=True)]:
        try:
            total_bytes += process.memory_full_info().uss
        except psutil.Error:  # the process has ended, or belongs to another user
            continue
    return total_bytes / 1e6


def final_block(summary: dict[str, Any], average: float, num_envs: int) -> str:
    """Return the summary block. The training time excludes evaluation and saving."""
    seconds = summary["seconds"] - summary["evaluate_s"] - summary["save_s"]
    return "\n".join(
        [
            "PARALLEL TRAINING COMPLETE",
            "=" * 50,
            f"Final step: {summary['env_steps']:,}",
            f"Total episodes: {summary['episodes']}",
            f"Training time: {seconds:.1f} seconds",
            f"Average reward (last 10): {average:.3f}",
            f"Environments used: {num_envs}",
            f"Steps per second: {summary['env_steps'] / seconds:.1f}",
            f"Episodes per second: {summary['episodes'] / seconds:.2f}",
        ]
    )

"""Progress lines per episode in the document's format. `multiverse train` prints its own."""

from __future__ import annotations

from typing import Any

import multiverse as mv


class EpisodeLines(mv.Hook):
    """Print three lines for every `log_interval`th episode, and an update line after rollouts with such episodes."""

    def __init__(self, num_episodes: int, log_interval: int) -> None:
        self._num_episodes, self._log_interval = num_episodes, log_interval
        self._completed: list[Any] = []

    def on_rollout(self, trainer: Any, collected: Any) -> None:
        self._completed = collected.episodes

    def on_update(self, trainer: Any, report: Any) -> None:
        before = trainer.clock.episodes - len(self._completed)
        lines = [
            self._episode(number, episode, trainer)
            for number, episode in enumerate(self._completed, before + 1)
            if number % self._log_interval == 0 and number <= self._num_episodes
        ]
        if lines:
            print("\n".join([*lines, update_line(trainer.metrics)]), flush=True)

    def _episode(self, number: int, episode: Any, trainer: Any) -> str:
        """Return the lines of an episode. Mean(100) is taken after the rollout in which the episode ended."""
        mean = trainer.metrics["mean_return"]
        return (
            f"Episode {number}/{self._num_episodes}\n"
            f"  Reward: {episode.returned:8.2f}  |  Length: {episode.length:4d}  |  Mean(100): {mean:8.2f}\n"
            f"  n_completed_episodes: {len(self._completed)}  |  n_envs: {trainer.config.num_envs}"
        )


def update_line(metrics: dict[str, Any]) -> str:
    """Return the line of an update: losses, entropy, KL, clip fraction, and env steps per second of rollout and update.

    The metrics are missing if all gradients of the update were skipped.
    """
    labels = {"policy_loss": "Policy loss", "value_loss": "Value loss", "entropy": "Entropy", "kl": "KL"}
    labels["clip_fraction"] = "Clip fraction"
    parts = [f"{label}: {metrics[name]:.4f}" for name, label in labels.items() if name in metrics]
    return "  " + "  |  ".join([*parts, f"FPS: {metrics['env_steps_per_s']:.0f}"])

"""Custom losses: dual-clip PPO (Ye et al. 2020), conservative DQN (Kumar et al. 2020) and an auxiliary term, each
in one method.

    python examples/own_loss.py                                               # trains it on CartPole-v1
    multiverse train CartPole-v1 --algorithm examples.own_loss:DualClipPPO    # the same, with its settings as flags

docs/training.md lists the arguments of a loss.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import multiverse as mv
from multiverse.algorithms import DQN, PPO, DQNConfig, Loss, Outputs, PPOConfig, ReplayBatch, RolloutBatch, setting


@dataclass(frozen=True)
class DualClipConfig(PPOConfig):
    """Settings of dual-clip PPO."""

    dual_clip: float = setting(3.0, "Upper bound of the probability ratio of actions with a negative advantage.")


class DualClipPPO(PPO):
    """PPO with a second clip: a large ratio with a negative advantage does not dominate the gradient."""

    Config = DualClipConfig

    def policy_loss(self, ratio: Any, advantages: Any) -> Any:
        clipped = ratio.clamp(1 - self.clip_range, 1 + self.clip_range)
        objective = (ratio * advantages).minimum(clipped * advantages)
        bounded = objective.maximum(self.config.dual_clip * advantages)
        return -bounded.where(advantages < 0, objective).mean()


class ConfidentPPO(PPO):
    """PPO with an auxiliary term, which is logged as `confidence`."""

    def loss(self, out: Outputs, batch: RolloutBatch) -> Loss:
        return super().loss(out, batch).plus(confidence=1e-3 * (out.log_prob**2).mean())


@dataclass(frozen=True)
class ConservativeConfig(DQNConfig):
    """Settings of conservative DQN."""

    conservative_coef: float = setting(0.1, "Weight of the conservative term.")


class ConservativeDQN(DQN):
    """DQN with the regularizer of CQL, log Σ exp Q(s, ·) - Q(s, a), which lowers values of unseen actions."""

    Config = ConservativeConfig

    def loss(self, batch: ReplayBatch) -> Loss:
        values = self.values(batch.observations)
        taken = values.gather(-1, batch.actions[:, None])[:, 0]
        term = (values.logsumexp(-1) - taken).mean()
        return super().loss(batch).plus(conservative=self.config.conservative_coef * term)


def main(env_steps: int = 50_000) -> mv.Run:
    run = mv.train("CartPole-v1", algorithm=DualClipPPO, num_envs=8, env_steps=env_steps, seed=1)
    print(f"{run.path}: mean return {run.summary['evaluation']['mean_return']:.1f}")
    return run


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))

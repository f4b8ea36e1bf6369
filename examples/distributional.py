"""Distributional Q-learning: QR-DQN (Dabney et al. 2018) and C51 (Bellemare et al. 2017), each with a loss and a few
other methods.

    python examples/distributional.py                                         # trains QR-DQN on CartPole-v1
    multiverse train CartPole-v1 --algorithm examples.distributional:C51      # C51, with its settings as flags

Both learn the distribution of the return of each action and act on its mean. QR-DQN folds that mean into the last layer
of the policy; C51 has a head that computes it. The saved policies are therefore plain arrays: `mv.load` and
`multiverse evaluate` need neither this file nor torch.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import multiverse as mv
from multiverse.algorithms import DQN, DQNConfig, Loss, ReplayBatch, setting
from multiverse.policies import CategoricalHead


def best_actions(values: Any, masks: Any) -> Any:
    """Return the open action [rows] with the largest of the values [rows, actions]."""
    return (values if masks is None else values.masked_fill(~masks, -torch.inf)).argmax(-1)


@dataclass(frozen=True)
class QRDQNConfig(DQNConfig):
    """Settings of QR-DQN."""

    n_quantiles: int = setting(50, "Number of quantiles of the return of each action.")


class QRDQN(DQN):
    """DQN that learns quantiles of the return of each action."""

    Config = QRDQNConfig

    def outputs(self) -> dict[str, int]:
        return {"values": self.action_space.n * self.config.n_quantiles}

    def acting_layers(self) -> list[tuple[Any, Any]]:
        *layers, (weights, bias) = super().acting_layers()
        shape = self.action_space.n, self.config.n_quantiles
        return [*layers, (weights.reshape(-1, *shape).mean(-1), bias.reshape(shape).mean(-1))]

    def loss(self, batch: ReplayBatch) -> Loss:
        """Quantile Huber loss of θ(s, a) - (r + γ θ̄(s', a*)), averaged over the batch; a*: argmax of the mean."""
        count, rows = self.config.n_quantiles, torch.arange(len(batch.rewards), device=batch.rewards.device)
        with torch.no_grad():
            after = self.target_values(batch.next_observations).unflatten(-1, (-1, count))
            after = after[rows, best_actions(after.mean(-1), batch.next_masks)]
            targets = batch.rewards[:, None] + batch.discounts[:, None] * after
        quantiles = self.values(batch.observations).unflatten(-1, (-1, count))[rows, batch.actions]
        errors = targets[:, None, :] - quantiles[:, :, None]  # [rows, quantiles, targets]
        shares = (torch.arange(count, device=errors.device) + 0.5) / count
        huber = torch.nn.functional.smooth_l1_loss(errors, torch.zeros_like(errors), reduction="none")
        loss = ((shares[:, None] - (errors < 0).float()).abs() * huber).mean(-1).sum(-1).mean()
        return Loss(loss, loss=loss, mean_value=quantiles.mean())


@dataclass(frozen=True)
class C51Config(DQNConfig):
    """Settings of C51."""

    n_atoms: int = setting(51, "Number of values (atoms) of the distribution of returns.")
    v_min: float = setting(0.0, "Smallest value of the distribution.")
    v_max: float = setting(100.0, "Largest value of the distribution.")


class C51(DQN):
    """DQN that learns a categorical distribution over the return of each action."""

    Config = C51Config

    def support(self) -> Any:
        return np.linspace(self.config.v_min, self.config.v_max, self.config.n_atoms, dtype=np.float32)

    def outputs(self) -> dict[str, int]:
        return {"values": self.action_space.n * self.config.n_atoms}

    def head(self) -> CategoricalHead:
        return CategoricalHead(self.action_space.n, self.action_space.start, self.epsilon, support=self.support())

    def loss(self, batch: ReplayBatch) -> Loss:
        """Cross-entropy of p(s, a) to the distribution of r + γ z̄(s', a*), projected onto the support."""
        atoms = torch.as_tensor(self.support(), device=batch.rewards.device)
        rows = torch.arange(len(batch.rewards), device=atoms.device)
        with torch.no_grad():
            after = self.target_values(batch.next_observations).unflatten(-1, (-1, len(atoms))).softmax(-1)
            after = after[rows, best_actions(after @ atoms, batch.next_masks)]
            returns = batch.rewards[:, None] + batch.discounts[:, None] * atoms
            distances = returns.clamp(atoms[0], atoms[-1])[:, None, :] - atoms[:, None]
            weights = (1 - distances.abs() / (atoms[1] - atoms[0])).clamp(0)  # [rows, atoms, atoms of s']
            targets = (weights * after[:, None, :]).sum(-1)
        log_probs = self.values(batch.observations).unflatten(-1, (-1, len(atoms))).log_softmax(-1)
        log_probs = log_probs[rows, batch.actions]
        loss = -(targets * log_probs).sum(-1).mean()
        return Loss(loss, loss=loss, mean_value=(log_probs.exp() @ atoms).mean())


def main(env_steps: int = 50_000) -> mv.Run:
    run = mv.train("CartPole-v1", algorithm=QRDQN, num_envs=8, env_steps=env_steps, seed=1)
    print(f"{run.path}: mean return {run.summary['evaluation']['mean_return']:.1f}")
    return run


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))

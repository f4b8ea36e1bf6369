"""A custom torch network and an auxiliary loss: the reward is predicted from the network's features.

    python examples/own_network.py                                            # trains it on LunarLander-v3
    multiverse train LunarLander-v3 --network examples.own_network:Residual   # the network alone, with PPO

docs/training.md lists the arguments of networks and losses.
"""

from __future__ import annotations

import sys
from typing import Any

from torch import Tensor, nn

import multiverse as mv
from multiverse.algorithms import PPO, Loss, Outputs, RolloutBatch
from multiverse.networks import MLP

FEATURES = 64


class Residual(nn.Module):
    """A dense layer and residual blocks."""

    def __init__(self, observation_space: Any, blocks: int = 1) -> None:
        super().__init__()
        self.features_dim, self.first = FEATURES, MLP(observation_space, hidden_sizes=(FEATURES,))
        self.blocks = nn.ModuleList(nn.Linear(FEATURES, FEATURES) for _ in range(blocks))

    def forward(self, observations: Tensor) -> Tensor:
        features: Tensor = self.first(observations)
        for block in self.blocks:
            features = features + block(features).relu()
        return features


class PredictingPPO(PPO):
    """PPO with an auxiliary loss: the mean squared error of a reward prediction."""

    def modules(self) -> dict[str, nn.Module]:
        return {"reward": nn.Linear(FEATURES, 1)}

    def loss(self, out: Outputs, batch: RolloutBatch) -> Loss:
        predicted = self.auxiliary["reward"](out.features).squeeze(-1)
        return super().loss(out, batch).plus(prediction=0.1 * nn.functional.mse_loss(predicted, batch.rewards))


def main(env_steps: int = 300_000, env: str = "LunarLander-v3", **settings: Any) -> mv.Run:
    run = mv.train(env, algorithm=PredictingPPO, network=Residual, env_steps=env_steps, seed=1, **settings)
    print(f"{run.path}: mean return {run.summary['evaluation']['mean_return']:.1f}")
    return run


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))

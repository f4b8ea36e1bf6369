"""An algorithm of one's own, in one file: REINFORCE with a linear policy, in numpy.

    python examples/own_algorithm.py            # trains it on CartPole-v1, then acts with it

docs/training.md explains what the trainer asks of an algorithm.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np

import multiverse as mv
from multiverse.algorithms.algorithm import UpdateReport
from multiverse.experience.features import Features
from multiverse.experience.numpy_policies import DiscreteHead, NumpyPolicy
from multiverse.experience.rollout import Rollout


class Reinforce:
    """Makes actions likelier by how much better than usual things went after them."""

    steps_per_env, gamma = 256, 0.98
    action = ((), np.int64)  # shape and dtype of one action

    def __init__(self, observation_space: Any, action_space: Any, slots: int, seed: int) -> None:
        self.features, self._head = Features(observation_space, action_space), DiscreteHead(int(action_space.n))
        self._weights = np.zeros((self.features.size, self._head.count), np.float32)
        self._bias = np.zeros(self._head.count, np.float32)
        self.learning_rate, self._updates = 5.0, 0

    def policy(self) -> NumpyPolicy:
        layers = [(self._weights.copy(), self._bias.copy())]
        return NumpyPolicy(self.features, layers, "tanh", self._head, self._updates)

    def update(self, rollout: Rollout, progress: float) -> UpdateReport:
        rows = {path: seen.reshape(-1, *seen.shape[2:]) for path, seen in rollout.observations.items()}
        seen, chosen = self.features.vector(rows), rollout.actions.reshape(-1)
        better = self._how_much_better(rollout).reshape(-1)
        chances = softmax(seen @ self._weights + self._bias)
        pull = (np.eye(self._head.count, dtype=np.float32)[chosen] - chances) * better[:, None] / len(seen)
        step = self.learning_rate * (1.0 - progress)
        self._weights += step * (seen.T @ pull)
        self._bias += step * pull.sum(axis=0)
        self._updates += 1
        return UpdateReport({"entropy": float(-(chances * np.log(chances + 1e-8)).sum(axis=1).mean())}, 1)

    def _how_much_better(self, rollout: Rollout) -> np.ndarray[Any, Any]:
        """[T, S] discounted rewards from each step to its episode's end, against the mean; lost rows count nothing."""
        returns, later = np.zeros_like(rollout.rewards), np.zeros(rollout.slots, np.float32)
        for t in reversed(range(rollout.steps)):
            going_on = ~(rollout.terminated[t] | rollout.truncated[t])
            later = returns[t] = rollout.rewards[t] + self.gamma * later * going_on
        valid = rollout.valid
        return np.where(valid, (returns - returns[valid].mean()) / (returns[valid].std() + 1e-8), 0.0).astype(
            np.float32
        )

    def change(self, learning_rate: float) -> None:
        self.learning_rate = learning_rate

    def state(self) -> dict[str, Any]:
        known = {"weights": self._weights, "bias": self._bias}
        return {**known, "learning_rate": self.learning_rate, "updates": self._updates}

    def load_weights(self, state: Mapping[str, Any]) -> None:
        self._weights, self._bias = np.array(state["weights"]), np.array(state["bias"])

    def load(self, state: Mapping[str, Any]) -> None:
        self._weights, self._bias = np.array(state["weights"]), np.array(state["bias"])
        self.learning_rate, self._updates = state["learning_rate"], state["updates"]


def softmax(logits: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def main(env_steps: int = 150_000) -> mv.Run:
    run = mv.train("CartPole-v1", algorithm=Reinforce, num_envs=8, env_steps=env_steps, seed=1)
    print(f"{run.path}: mean return {run.summary['evaluation']['mean_return']:.1f}")
    policy = mv.load(run, algorithm=Reinforce)
    observation, _ = gym.make("CartPole-v1").reset(seed=3)
    print("it would do", policy.act(observation))
    return run


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))

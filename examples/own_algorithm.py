"""A custom algorithm in one file: REINFORCE with a linear policy, in numpy.

    python examples/own_algorithm.py                                              # trains it on CartPole-v1
    multiverse train CartPole-v1 --algorithm examples.own_algorithm:Reinforce     # the same, with its settings as flags

docs/training.md documents the interface of algorithms.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np

import multiverse as mv
from multiverse.algorithms import Settings, UpdateReport, setting
from multiverse.policies import Features, NumpyPolicy, action_of, head_for
from multiverse.rollouts import Rollout


@dataclass(frozen=True)
class ReinforceConfig(Settings):
    """Settings of REINFORCE: each is a flag, a key of config files, and an argument of `mv.train`."""

    steps_per_env: int = setting(256, "Number of steps of each environment in a rollout.")
    learning_rate: float = setting(5.0, "Initial step size; decreases linearly to 0.")
    gamma: float = setting(0.98, "Discount factor.")


class Reinforce:
    """The policy gradient with standardized returns (Williams 1992)."""

    Config = ReinforceConfig
    actions, images = (gym.spaces.Discrete,), False

    def __init__(
        self, config: ReinforceConfig, observation_space: Any, action_space: Any, slots: int, seed: int, device: str
    ) -> None:
        self.config, self.steps_per_env = config, config.steps_per_env
        self.features, self.action = Features(observation_space, action_space), action_of(action_space)
        self._head, self._count = head_for(action_space), int(action_space.n)
        self._weights = np.zeros((self.features.size, self._count), np.float32)
        self._bias = np.zeros(self._count, np.float32)
        self._learning_rate, self._updates = config.learning_rate, 0

    def policy(self) -> NumpyPolicy:
        layers = [(self._weights.copy(), self._bias.copy())]
        return NumpyPolicy(self.features, layers, "tanh", self._head, self._updates)

    def update(self, rollouts: Sequence[Rollout], progress: float) -> UpdateReport:
        (rollout,) = rollouts
        rows = {path: leaf.reshape(-1, *leaf.shape[2:]) for path, leaf in rollout.observations.items()}
        observations, actions = self.features.vector(rows), rollout.actions.reshape(-1)
        advantages = self._advantages(rollout).reshape(-1)
        probs = softmax(observations @ self._weights + self._bias)
        grad = (np.eye(self._count, dtype=np.float32)[actions] - probs) * advantages[:, None] / len(actions)
        step = self._learning_rate * (1.0 - progress)
        self._weights += step * (observations.T @ grad)
        self._bias += step * grad.sum(axis=0)
        self._updates += 1
        return UpdateReport({"entropy": float(-(probs * np.log(probs + 1e-8)).sum(axis=1).mean())}, 1)

    def _advantages(self, rollout: Rollout) -> np.ndarray[Any, Any]:
        """Return standardized discounted returns [T, S], computed to the end of each episode; 0 in lost rows."""
        returns, following = np.zeros_like(rollout.rewards), np.zeros(rollout.slots, np.float32)
        for t in reversed(range(rollout.steps)):
            ended = rollout.terminated[t] | rollout.truncated[t]
            following = returns[t] = rollout.rewards[t] + self.config.gamma * following * ~ended
        valid = rollout.valid
        standardized = (returns - returns[valid].mean()) / (returns[valid].std() + 1e-8)
        return np.where(valid, standardized, 0.0).astype(np.float32)

    def change(self, learning_rate: float) -> None:
        self._learning_rate = learning_rate

    def weights(self) -> dict[str, Any]:
        return {"weights": self._weights.copy(), "bias": self._bias.copy()}

    def load_weights(self, weights: Mapping[str, Any]) -> None:
        self._weights, self._bias = np.array(weights["weights"]), np.array(weights["bias"])

    def state(self) -> dict[str, Any]:
        return {"learning_rate": self._learning_rate, "updates": self._updates}

    def load(self, state: Mapping[str, Any]) -> None:
        self._learning_rate, self._updates = state["learning_rate"], state["updates"]


def softmax(logits: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    exp = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(exp / exp.sum(axis=1, keepdims=True))


def main(env_steps: int = 150_000) -> mv.Run:
    run = mv.train("CartPole-v1", algorithm=Reinforce, num_envs=8, env_steps=env_steps, seed=1)
    print(f"{run.path}: mean return {run.summary['evaluation']['mean_return']:.1f}")
    policy = mv.load(run, algorithm=Reinforce)
    observation, _ = gym.make("CartPole-v1").reset(seed=3)
    print("action for the first observation:", policy.act(observation))
    return run


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))

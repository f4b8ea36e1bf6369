"""Algorithms that derive from `OnPolicy` and `OffPolicy` and use only public names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

import multiverse as mv
from multiverse.algorithms import (
    Loss,
    OffPolicy,
    OffPolicyConfig,
    OnPolicy,
    OnPolicyConfig,
    Outputs,
    ReplayBatch,
    RolloutBatch,
)
from multiverse.policies import Head, bounded_head
from tests.training.small_runs import SMALL, digest

ON: dict[str, Any] = {name: value for name, value in SMALL.items() if name not in ("epochs", "batch_size")}
ON |= {"env_steps": 400, "hidden_sizes": (8,), "progress": False}
OFF: dict[str, Any] = {
    "seed": 5, "num_envs": 4, "env_steps": 160, "learning_starts": 40, "evaluate_every": 0, "evaluation_episodes": 1,
    "executor": "serial", "preset": False, "hidden_sizes": (8,), "batch_size": 16, "progress": False,
}  # fmt: skip


@dataclass(frozen=True)
class GradientConfig(OnPolicyConfig):
    """Settings of `PolicyGradient`."""

    last_bonus: float = 0.0
    """Weight of the entropy at the end of the budget."""


class PolicyGradient(OnPolicy):
    """The policy gradient with a learned baseline, and an entropy bonus that is scheduled over the budget."""

    Config = GradientConfig

    def loss(self, out: Outputs, batch: RolloutBatch) -> Loss:
        bonus = self.config.entropy_coef + (self.config.last_bonus - self.config.entropy_coef) * self.progress
        policy_loss = -(batch.advantages * out.log_prob).mean() - bonus * out.entropy.mean()
        value_loss = self.value_loss(out.values, batch)
        return Loss(policy_loss + value_loss, policy_loss=policy_loss, value_loss=value_loss)


class DDPG(OffPolicy):
    """Deep deterministic policy gradient (Lillicrap et al. 2016)."""

    Config = OffPolicyConfig
    actions, bounded_actions = (spaces.Box,), True
    losses = ("critic_loss", "actor_loss")

    def outputs(self) -> Mapping[str, int]:
        return {"actor": self.action[0][0], "critic": 1}

    def make_networks(self) -> None:
        self.actor = self.new_network("actor")
        self.critic = self.new_network("critic", more=self.action[0][0])

    def head(self) -> Head:
        return bounded_head(self.action_space, 0.1)

    def critic_loss(self, batch: ReplayBatch) -> Loss:
        after = self.targets["actor"](batch.next_observations).tanh()
        values = self.targets["critic"](batch.next_observations, after)[:, 0]
        errors = self.critic(batch.observations, batch.actions)[:, 0] - batch.rewards - batch.discounts * values
        return Loss((errors**2).mean(), critic_loss=(errors**2).mean())

    def actor_loss(self, batch: ReplayBatch) -> Loss:
        return Loss(-self.critic(batch.observations, self.actor(batch.observations).tanh()).mean())

    def gradient_step(self, batch: ReplayBatch) -> tuple[Any, dict[str, Any]]:
        metrics = self.gradient("critic_loss", self.critic, batch) | self.gradient("actor_loss", self.actor, batch)
        taken = self.take_step(self.critic, self.actor)
        for target in self.targets.values():
            target.soft_update(self.config.tau)
        return taken, metrics


CASES = [
    ("CartPole-v1", PolicyGradient, ON),
    ("Pendulum-v1", DDPG, OFF),
    ("Pendulum-v1", DDPG, {**OFF, "network": "mlp"}),
]


@pytest.mark.parametrize(("env", "algorithm", "settings"), CASES, ids=["on-policy", "off-policy", "network"])
def test_algorithm_that_derives_from_a_base_resumes_exactly_and_acts(
    env: str, algorithm: Any, settings: dict[str, Any], tmp_path: Path
) -> None:
    whole = mv.train(env, algorithm, run_dir=tmp_path / "whole", **settings)
    half = {**settings, "env_steps": settings["env_steps"] // 2}
    first = mv.train(env, algorithm, run_dir=tmp_path / "parts", **half)
    assert digest(mv.resume(first.path, env_steps=settings["env_steps"], progress=False)) == digest(whole)
    size = {"CartPole-v1": 4, "Pendulum-v1": 3}[env]
    action = mv.load(whole.path).act(np.zeros(size, np.float32))
    assert action in (0, 1) if env == "CartPole-v1" else -2 <= action[0] <= 2


@pytest.mark.parametrize(
    ("base", "missing", "message"),
    [
        (PolicyGradient, "loss", r"Without derives from OnPolicy and does not define loss\(out, batch\)"),
        (DDPG, "make_networks", r"Without derives from OffPolicy and does not define make_networks\(\)"),
        (DDPG, "head", r"Without derives from OffPolicy and does not define head\(\)"),
        (DDPG, "gradient_step", r"Without derives from OffPolicy and does not define gradient_step\(\)"),
        (DDPG, "outputs", r"Without does not define outputs\(\), the number of outputs of each network"),
    ],
)
def test_missing_method_of_a_base_is_named(base: Any, missing: str, message: str, tmp_path: Path) -> None:
    stock = OnPolicy if base is PolicyGradient else OffPolicy
    parts = {name: value for name, value in vars(base).items() if name not in (missing, "__dict__", "__weakref__")}
    env, _, settings = CASES[0] if base is PolicyGradient else CASES[1]
    with pytest.raises(mv.errors.InvalidRequest, match=message):
        mv.train(env, type("Without", (stock,), parts), run_dir=tmp_path / "run", **settings)

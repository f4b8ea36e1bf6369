"""A2C: one update equals that of Stable-Baselines3 up to rounding, and needs nothing of PPO."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from multiverse.algorithms import a2c
from multiverse.algorithms.a2c import A2C, A2CConfig
from multiverse.core.policy import Seen
from multiverse.rollouts.rollout import rollout_for

pytest.importorskip("stable_baselines3")

import stable_baselines3
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.env_util import make_vec_env

STEPS, SLOTS = 5, 4


def test_a2c_does_not_import_ppo() -> None:
    tree = ast.parse(Path(a2c.__file__).read_text())
    imported = [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert not [name for name in imported if name and "ppo" in name]


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
@pytest.mark.parametrize("normalize", [False, True])
def test_update_equals_stable_baselines3(env: str, normalize: bool) -> None:
    settings = {"n_steps": STEPS, "ent_coef": 0.01, "normalize_advantage": normalize, "device": "cpu"}
    theirs = stable_baselines3.A2C("MlpPolicy", make_vec_env(env, SLOTS, seed=0), seed=0, **settings)
    observations, actions = theirs.observation_space, theirs.action_space
    config = A2CConfig(steps_per_env=STEPS, entropy_coef=0.01, normalize_advantages=normalize)
    ours = A2C(config, observations, actions, SLOTS, seed=1)
    copy_weights(theirs.policy, ours)
    rollout = random_rollout(ours, observations)
    fill_theirs(theirs.rollout_buffer, theirs.policy, rollout)
    theirs._logger = Silent()
    theirs.train()
    ours.update([rollout], 0.0)
    torch.testing.assert_close(
        flat(theirs.policy), torch.from_numpy(ours.weights()["parameters"]), rtol=1e-5, atol=1e-6
    )


class Silent:
    def record(self, *arguments: Any, **more: Any) -> None: ...


def parameters_of(policy: Any) -> list[torch.Tensor]:
    """Parameters in our order: actor, standard deviation, critic."""
    actor = [*policy.mlp_extractor.policy_net.parameters(), *policy.action_net.parameters()]
    critic = [*policy.mlp_extractor.value_net.parameters(), *policy.value_net.parameters()]
    return [*actor, *([policy.log_std] if hasattr(policy, "log_std") else []), *critic]


def flat(policy: Any) -> torch.Tensor:
    return torch.cat([parameter.detach().reshape(-1) for parameter in parameters_of(policy)])


def copy_weights(policy: Any, ours: A2C) -> None:
    ours.load_weights({"parameters": flat(policy).numpy()})


def random_rollout(ours: A2C, observation_space: spaces.Space[Any]) -> Any:
    rng, rollout = np.random.default_rng(3), rollout_for(observation_space, STEPS, SLOTS, ours.action)
    rollout.observations[()][...] = rng.normal(size=rollout.observations[()].shape)
    rollout.last[()][...] = rng.normal(size=rollout.last[()].shape)
    policy, noise = ours.policy(), ours.policy().noise(rng, STEPS, SLOTS)
    for t in range(STEPS):
        rollout.actions[t], _ = policy.act(Seen({(): rollout.observations[()][t]}, np.zeros(SLOTS, bool)), noise[t], {})
    rollout.rewards[...] = rng.normal(size=rollout.rewards.shape)
    rollout.terminated[2, 1] = True
    return rollout


def fill_theirs(buffer: RolloutBuffer, policy: Any, rollout: Any) -> None:
    buffer.reset()
    starts = np.ones(SLOTS)
    for t in range(STEPS):
        seen = torch.from_numpy(rollout.observations[()][t])
        actions = torch.from_numpy(rollout.actions[t])
        with torch.no_grad():
            values, log_probs, _ = policy.evaluate_actions(seen, actions)
        buffer.add(rollout.observations[()][t], rollout.actions[t].reshape(SLOTS, -1), rollout.rewards[t], starts,
                   values, log_probs)  # fmt: skip
        starts = (rollout.terminated[t] | rollout.truncated[t]).astype(np.float32)
    with torch.no_grad():
        last = policy.predict_values(torch.from_numpy(rollout.last[()]))
    buffer.compute_returns_and_advantage(last, starts)

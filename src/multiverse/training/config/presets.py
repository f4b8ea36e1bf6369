"""Settings that are known to suit an env. Where they come from stands beside each."""

from __future__ import annotations

from typing import Any

PRESETS: dict[tuple[str, str], dict[str, Any]] = {
    # rl-baselines3-zoo, ppo.yml: CartPole-v1
    ("CartPole-v1", "ppo"): {
        "num_envs": 8,
        "env_steps": 100_000,
        "steps_per_env": 32,
        "batch_size": 256,
        "epochs": 20,
        "gae_lambda": 0.8,
        "gamma": 0.98,
        "learning_rate": 1e-3,
        "learning_rate_schedule": "linear",
        "clip_range": 0.2,
        "clip_range_schedule": "linear",
    },
    # rl-baselines3-zoo: Acrobot-v1, there with normalised observations
    ("Acrobot-v1", "ppo"): {
        "num_envs": 16,
        "env_steps": 500_000,
        "steps_per_env": 256,
        "batch_size": 64,
        "epochs": 4,
        "gae_lambda": 0.94,
        "gamma": 0.99,
        "normalize_observations": True,
        "normalize_rewards": True,
    },
    # rl-baselines3-zoo: LunarLander
    ("LunarLander-v3", "ppo"): {
        "num_envs": 16,
        "env_steps": 1_000_000,
        "steps_per_env": 1024,
        "batch_size": 64,
        "epochs": 4,
        "gae_lambda": 0.98,
        "gamma": 0.999,
        "entropy_coef": 0.01,
    },
    # rl-baselines3-zoo: Pendulum-v1, without its state-dependent exploration
    ("Pendulum-v1", "ppo"): {
        "num_envs": 4,
        "env_steps": 100_000,
        "steps_per_env": 1024,
        "batch_size": 64,
        "epochs": 10,
        "gae_lambda": 0.95,
        "gamma": 0.9,
        "learning_rate": 1e-3,
    },
    # CleanRL, ppo_continuous_action.py: one env there, 2048 steps a rollout; its value loss is halved
    ("HalfCheetah-v5", "ppo"): {
        "num_envs": 8,
        "env_steps": 1_000_000,
        "steps_per_env": 256,
        "batch_size": 64,
        "epochs": 10,
        "gae_lambda": 0.95,
        "gamma": 0.99,
        "learning_rate": 3e-4,
        "learning_rate_schedule": "linear",
        "value_coef": 0.25,
        "value_clip_range": 0.2,
        "normalize_observations": True,
        "normalize_rewards": True,
    },
}


def preset_for(env: str, algorithm: str) -> dict[str, Any]:
    """The settings for this env and algorithm; none where nobody has looked yet."""
    return dict(PRESETS.get((env, algorithm), {}))

"""RLlib's PPO on CartPole-v1. benchmarks/rllib.py runs this script in RLlib's virtual environment.

    python benchmarks/rllib_peer.py --runners 0 --seed 1 --env-steps 30000
    python benchmarks/rllib_peer.py --runners 2 --seed 1 --env-steps 100000 --target-return 475

Does not import multiverse. Prints a line of JSON: env steps, seconds of training, and the return of the last
evaluation.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import time
from typing import Any

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import ray
import torch
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

NUM_ENVS, STEPS_PER_ENV, EVALUATE_EVERY, EPISODES = 8, 32, 10_000, 20


def config(runners: int, seed: int, env_steps: int) -> Any:
    """Return RLlib's config with the settings of our CartPole-v1 preset. Its clip range has no schedule, and is 0.2."""
    rows = NUM_ENVS * STEPS_PER_ENV
    return (
        PPOConfig()
        .environment("CartPole-v1")
        .framework("torch")
        .env_runners(
            num_env_runners=runners,
            num_envs_per_env_runner=NUM_ENVS // max(1, runners),
            rollout_fragment_length=STEPS_PER_ENV,
            num_cpus_per_env_runner=1,
        )
        .learners(num_learners=0, num_gpus_per_learner=0)
        .training(
            train_batch_size_per_learner=rows,
            minibatch_size=rows,
            num_epochs=20,
            lr=[[0, 1e-3], [env_steps, 0.0]],
            gamma=0.98,
            lambda_=0.8,
            clip_param=0.2,
            vf_clip_param=float("inf"),
            vf_loss_coeff=0.5,
            entropy_coeff=0.0,
            use_kl_loss=False,
            grad_clip=0.5,
            grad_clip_by="global_norm",
        )
        .rl_module(
            model_config=DefaultModelConfig(fcnet_hiddens=[64, 64], fcnet_activation="tanh", vf_share_layers=False)
        )
        .evaluation(
            evaluation_interval=10**9,  # evaluation is only run explicitly
            evaluation_num_env_runners=0,
            evaluation_duration=EPISODES,
            evaluation_duration_unit="episodes",
            evaluation_config={"explore": False, "num_envs_per_env_runner": NUM_ENVS},
        )
        .debugging(seed=seed, log_level="ERROR")
    )


def train(algorithm: Any, env_steps: int, target: float | None) -> dict[str, Any]:
    steps, train_s, mean_return, evaluate_at = 0, 0.0, None, EVALUATE_EVERY
    while steps < env_steps:
        start = time.perf_counter()
        result = algorithm.train()
        train_s += time.perf_counter() - start
        steps = int(result["num_env_steps_sampled_lifetime"])
        if target is not None and steps >= evaluate_at:
            evaluate_at += EVALUATE_EVERY
            mean_return = evaluated(algorithm)
            if mean_return >= target:
                break
    if mean_return is None:
        mean_return = evaluated(algorithm)
    return {"env_steps": steps, "train_s": train_s, "mean_return": mean_return}


def evaluated(algorithm: Any) -> float:
    return float(algorithm.evaluate()["env_runners"]["episode_return_mean"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runners", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--env-steps", type=int, default=30_000)
    parser.add_argument("--target-return", type=float)
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    ray.init("local", _node_ip_address="127.0.0.1", include_dashboard=False, logging_level="error", log_to_driver=False)
    algorithm = config(options.runners, options.seed, options.env_steps).build_algo()
    result = train(algorithm, options.env_steps, options.target_return)
    algorithm.stop()
    ray.shutdown()
    versions = {"ray": ray.__version__, "torch": torch.__version__, "python": sys.version.split()[0]}
    print(json.dumps({**result, "versions": versions}))


if __name__ == "__main__":
    main()

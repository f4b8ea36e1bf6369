"""How fast PPO trains, beside Stable-Baselines3's with the same settings on the same env, in one run.

    python benchmarks/training.py                         every row; pin it to 2 cores with taskset where there are more
    python benchmarks/training.py --rows cartpole halfcheetah --rounds 5 --json results.json

Contenders take turns, round after round; ratios are taken within a round and the median over the rounds is shown.
Stable-Baselines3 runs with each of its vector envs and the better one counts; torch computes in one thread in both.
Rates are env steps per second of training alone, start-up and evaluation not counted, except in the row `to_475`: there
the clock runs from the command to its end, in processes of their own. Returns of the final weights stand beside, for
speed without learning would be none. A bar that is missed is shown as missed.
"""

from __future__ import annotations

import argparse
import functools
import json
import logging
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import multiverse as mv
from multiverse.executors.machine import usable_cores

EVALUATION_EPISODES = 20
EXECUTORS = ("auto", "serial", "hybrid", "process")


@dataclass(frozen=True)
class Settings:
    """The same hyper-parameters, as both libraries take them."""

    env: str
    env_steps: int
    num_envs: int
    steps_per_env: int
    epochs: int
    batch_size: int
    learning_rate: float
    gamma: float = 0.99
    gae_lambda: float = 0.95
    linear: bool = False
    bar: float = 0.0

    def ours(self) -> dict[str, Any]:
        schedule = "linear" if self.linear else "constant"
        return {
            "env_steps": self.env_steps, "num_envs": self.num_envs, "steps_per_env": self.steps_per_env,
            "epochs": self.epochs, "batch_size": self.batch_size, "learning_rate": self.learning_rate,
            "gamma": self.gamma, "gae_lambda": self.gae_lambda, "learning_rate_schedule": schedule,
            "clip_range_schedule": schedule,
        }  # fmt: skip

    def theirs(self) -> dict[str, Any]:
        def fading(most: float) -> Any:
            return (lambda left: left * most) if self.linear else most

        return {
            "n_steps": self.steps_per_env, "n_epochs": self.epochs, "batch_size": self.batch_size,
            "learning_rate": fading(self.learning_rate), "clip_range": fading(0.2), "gamma": self.gamma,
            "gae_lambda": self.gae_lambda, "device": "cpu",
        }  # fmt: skip


ROWS = {
    "cartpole": Settings("CartPole-v1", 60_000, 8, 128, 4, 256, 2.5e-4, bar=3.0),
    "cartpole_zoo": Settings("CartPole-v1", 30_000, 8, 32, 20, 256, 1e-3, 0.98, 0.8, linear=True, bar=1.8),
    "halfcheetah": Settings("HalfCheetah-v5", 40_000, 8, 256, 5, 256, 3e-4, bar=2.5),
}
TO_475 = "to_475"

Measured = tuple[float, float]
"""(env steps per second, mean return of the final weights)."""


def train_ours(settings: Settings, executor: str, seed: int) -> Measured:
    with tempfile.TemporaryDirectory() as home:
        run = mv.train(
            settings.env,
            seed=seed,
            preset=False,
            executor=executor,
            evaluate_every=0,
            evaluation_episodes=EVALUATION_EPISODES,
            run_dir=Path(home) / "run",
            **settings.ours(),
        )
    told = run.summary
    return told["env_steps"] / (told["seconds"] - told["evaluate_s"]), told["evaluation"]["mean_return"]


def train_theirs(settings: Settings, vec_env: str, seed: int) -> Measured:
    from stable_baselines3 import PPO
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.monitor import Monitor
    from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

    torch.set_num_threads(1)
    kind = {"sb3, dummy": DummyVecEnv, "sb3, subproc": SubprocVecEnv}[vec_env]
    venv = kind([functools.partial(gym.make, settings.env)] * settings.num_envs)
    try:
        model = PPO("MlpPolicy", venv, seed=seed, **settings.theirs())
        begun = time.perf_counter()
        model.learn(settings.env_steps)
        rate = model.num_timesteps / (time.perf_counter() - begun)
        returned, _ = evaluate_policy(model, Monitor(gym.make(settings.env)), EVALUATION_EPISODES)
    finally:
        venv.close()
    return rate, float(np.mean(returned))


def compare(name: str, rounds: int) -> dict[str, Any]:
    settings = ROWS[name]
    contenders: dict[str, Callable[[int], Measured]] = {
        **{f"ours, {e}": functools.partial(train_ours, settings, e) for e in EXECUTORS},
        **{v: functools.partial(train_theirs, settings, v) for v in ("sb3, dummy", "sb3, subproc")},
    }
    found: dict[str, list[Measured]] = {contender: [] for contender in contenders}
    for number in range(rounds):
        for contender, train in contenders.items():
            found[contender].append(train(number + 1))
    print(f"\n{name}: {settings}")
    for contender, values in found.items():
        rates, returns = zip(*values)
        told = ", ".join(f"{one:.0f}" for one in returns)
        print(f"  {contender:14s}{statistics.median(rates):10,.0f} env steps/s   return {told}", flush=True)
    theirs = [max(a[0], b[0]) for a, b in zip(found["sb3, dummy"], found["sb3, subproc"])]
    ratios = {
        e: statistics.median(ours[0] / best for ours, best in zip(found[f"ours, {e}"], theirs)) for e in EXECUTORS
    }
    met = "met" if ratios["auto"] >= settings.bar else "MISSED"
    beside = ", ".join(f"{executor} {value:.2f}" for executor, value in ratios.items())
    print(f"  × SB3's better: {beside}   bar {settings.bar:g} for auto: {met}", flush=True)
    return {"row": name, "ratios": ratios, "bar": settings.bar, "runs": found}


THEIR_COMMAND = """
import functools, gymnasium as gym, torch
torch.set_num_threads(1)
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import EvalCallback, StopTrainingOnRewardThreshold
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv
fading = lambda most: lambda left: left * most
stop = StopTrainingOnRewardThreshold(475)
evaluation = EvalCallback(Monitor(gym.make("CartPole-v1")), callback_on_new_best=stop, n_eval_episodes=20,
                          eval_freq=10_000 // 8, verbose=0)
venv = DummyVecEnv([functools.partial(gym.make, "CartPole-v1")] * 8)
PPO("MlpPolicy", venv, n_steps=32, batch_size=256, n_epochs=20, gae_lambda=0.8, gamma=0.98, learning_rate=fading(1e-3),
    clip_range=fading(0.2), seed={seed}, device="cpu").learn(100_000, callback=evaluation)
assert evaluation.best_mean_reward >= 475, evaluation.best_mean_reward
"""


def compare_to_475(rounds: int) -> dict[str, Any]:
    """Seconds from the command to a policy that an evaluation of 20 episodes gives 475, every 10,000 env steps."""
    found: dict[str, list[float]] = {"ours": [], "sb3": []}
    for seed in range(1, rounds + 1):
        with tempfile.TemporaryDirectory() as home:
            ours = [sys.executable, "-m", "multiverse", "train", "CartPole-v1", "--seed", str(seed), "--target-return",
                    "475", "--evaluation-episodes", "20", "--run-dir", f"{home}/run"]  # fmt: skip
            found["ours"].append(_seconds(ours))
        found["sb3"].append(_seconds([sys.executable, "-c", THEIR_COMMAND.replace("{seed}", str(seed))]))
    ratio = statistics.median(b / a for a, b in zip(found["ours"], found["sb3"]))
    print(f"\n{TO_475}: seconds from the command, start-up included")
    for contender, values in found.items():
        print(f"  {contender:6s}" + "  ".join(f"{value:6.1f}" for value in values))
    print(f"  {ratio:.2f} × faster than SB3   bar 2: {'met' if ratio >= 2 else 'MISSED'}", flush=True)
    return {"row": TO_475, "ratio": ratio, "bar": 2.0, "runs": found}


def _seconds(command: list[str]) -> float:
    begun = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{command}:\n{done.stdout}\n{done.stderr}")
    return time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", choices=[*ROWS, TO_475], default=[*ROWS, TO_475])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write the figures here too")
    options = parser.parse_args()
    logging.getLogger("multiverse").setLevel(logging.WARNING)
    print(f"{usable_cores()} usable cores, Python {sys.version.split()[0]}, torch {torch.__version__}, one thread")
    found = [compare_to_475(options.rounds) if row == TO_475 else compare(row, options.rounds) for row in options.rows]
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""Speed of PPO updates on synthetic images of 84×84×4 bytes, on a GPU and on the CPU.

    python benchmarks/gpu.py --out results.json              16 envs × 128 steps, 4 epochs of 4 minibatches
    python benchmarks/gpu.py --steps 1024 --devices cuda     a rollout of 462 MB

A row is one device, with separate convolutions for policy and value (the default) or shared ones. `update` is the
median time over `--updates` updates (`--cpu-updates` on the CPU) after a warm-up update. `waits` is the number of
synchronizations with the GPU in one update, as counted by torch, and in brackets the number that one more epoch adds:
1, for the order of its rows, if minibatches need none.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import multiverse as mv
from benchmarks.provenance import provenance, write_results
from multiverse.algorithms.ppo import PPO, PPOConfig
from multiverse.core.policy import Seen
from multiverse.rollouts.rollout import Rollout, rollout_for

FRAMES = 64  # number of different frames of an env


class Frames(gym.Env[Any, Any]):
    """Env with random frames that rewards one of four actions; episodes have 100 steps."""

    action_space = spaces.Discrete(4)

    def __init__(self, size: int) -> None:
        self.observation_space = spaces.Box(0, 255, (size, size, 4), np.uint8)
        self._frames = np.random.default_rng(0).integers(0, 256, (FRAMES, size, size, 4), np.uint8)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._steps, self._shown = 0, int(self.np_random.integers(FRAMES))
        return self._frames[self._shown], {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward = float(action == self._shown % 4)
        self._steps, self._shown = self._steps + 1, int(self.np_random.integers(FRAMES))
        return self._frames[self._shown], reward, self._steps == 100, False, {}


def collect(envs: Any, algorithm: PPO, rollout: Rollout, observations: Any) -> tuple[Any, float]:
    """Collect a rollout of the current policy, without final observations; return (observations, seconds of acting)."""
    policy, acting_s = algorithm.policy(), 0.0
    noise = policy.noise(np.random.default_rng(1), rollout.steps, rollout.slots)
    for t in range(rollout.steps):
        rollout.observations[()][t] = observations
        began_at = time.perf_counter()
        actions, _ = policy.act(Seen({(): observations}, np.zeros(rollout.slots, bool)), noise[t], {})
        acting_s += time.perf_counter() - began_at
        rollout.actions[t] = actions
        observations, rollout.rewards[t], rollout.terminated[t], _, _ = envs.step(policy.for_env(actions))
    rollout.last[()][...] = observations
    rollout.policy_version = policy.version
    return observations, acting_s


def waits_of(algorithm: PPO, rollout: Rollout, epochs: int) -> int:
    """Return how often an update with `epochs` epochs waits for the GPU."""
    algorithm.change(epochs=epochs)
    rollout.policy_version = algorithm.policy().version
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            algorithm.update([rollout], 0.0)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return sum("synchron" in str(warning.message) for warning in caught)


def measure_row(device: str, share: bool, options: argparse.Namespace) -> dict[str, Any]:
    """Measure one row of the table."""
    on_gpu, updates = device == "cuda", options.updates if device == "cuda" else options.cpu_updates
    batch_size = options.envs * options.steps // options.minibatches
    config = PPOConfig(steps_per_env=options.steps, epochs=options.epochs, batch_size=batch_size, hidden_sizes=(),
                       share_features=share, learning_rate=2.5e-4, clip_range=0.1, entropy_coef=0.01)  # fmt: skip
    with mv.make_vec(lambda: Frames(options.size), options.envs, "serial", autoreset="same_step", infos=False) as envs:
        spaces_ = envs.single_observation_space, envs.single_action_space
        algorithm = PPO(config, *spaces_, options.envs, 0, device)
        rollout = rollout_for(spaces_[0], options.steps, options.envs, algorithm.action)
        observations, _ = envs.reset(seed=0)
        act_s, update_s = [], []
        for k in range(updates + 1):
            observations, acting_s = collect(envs, algorithm, rollout, observations)
            if on_gpu:
                torch.cuda.synchronize()
                torch.cuda.reset_peak_memory_stats()
            began_at = time.perf_counter()
            report = algorithm.update([rollout], 0.0)
            if on_gpu:
                torch.cuda.synchronize()
            if k or not updates:  # the first update includes one-time costs
                act_s.append(acting_s / options.steps)
                update_s.append(time.perf_counter() - began_at)
        peak = torch.cuda.max_memory_allocated() if on_gpu else None
        waits = [waits_of(algorithm, rollout, options.epochs + more) for more in (0, 1)] if on_gpu else None
    assert report.skipped == 0 and report.gradient_steps == options.epochs * options.minibatches
    return {
        "device": device,
        "share_features": share,
        "update_s": statistics.median(update_s),
        "updates_s": update_s,
        "minibatch_ms": 1000 * statistics.median(update_s) / report.gradient_steps,
        "act_ms": 1000 * statistics.median(act_s),
        "rollout_mb": rollout.observations[()].nbytes / 1e6,
        "peak_mb": None if peak is None else peak / 1e6,
        "waits": waits,
        "minibatches": report.gradient_steps,
    }


def line(row: dict[str, Any], cpu_s: float | None) -> str:
    name = f"{row['device']}, {'shared' if row['share_features'] else 'separate'}"
    faster = f"{cpu_s / row['update_s']:.1f}" if cpu_s else "–"
    peak = "–" if row["peak_mb"] is None else f"{row['peak_mb']:,.0f}"
    waits = "–" if row["waits"] is None else f"{row['waits'][0]} ({row['waits'][1] - row['waits'][0]})"
    return (
        f"| {name} | {row['update_s']:.3f} | {row['minibatch_ms']:.1f} | {row['act_ms']:.2f} | {faster} | {peak} | "
        f"{waits} |"
    )


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in {"envs": 16, "steps": 128, "epochs": 4, "minibatches": 4, "size": 84, "updates": 10}.items():
        options.add_argument(f"--{name}", type=int, default=default)
    options.add_argument(
        "--cpu-updates", type=int, default=1, help="number of updates on the CPU; 0: measure the warm-up update"
    )
    options.add_argument("--devices", nargs="+", default=["cuda", "cpu"], choices=["cuda", "cpu"])
    options.add_argument(
        "--threads", type=int, default=torch.get_num_threads(), help="number of torch threads on the CPU"
    )
    options.add_argument("--out", type=Path)
    arguments, origin = options.parse_args(), provenance()
    torch.set_num_threads(arguments.threads)
    if "cuda" in arguments.devices and not torch.cuda.is_available():
        print("no GPU available: only the CPU is measured")
    devices = [one for one in arguments.devices if one == "cpu" or torch.cuda.is_available()]
    rows = [measure_row(device, share, arguments) for share in (False, True) for device in devices]
    cpu_s = {row["share_features"]: row["update_s"] for row in rows if row["device"] == "cpu"}
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    print(f"GPU: {gpu}; torch {torch.__version__}, {arguments.threads} threads on the CPU")
    shape = f"{arguments.envs} envs × {arguments.steps} steps of {arguments.size}×{arguments.size}×4"
    print(f"{shape}: {rows[0]['rollout_mb']:,.0f} MB")
    print("| device, convolutions | update, s | a minibatch, ms | act, ms per step | × the CPU | peak, MB | waits |")
    print("|---|---|---|---|---|---|---|")
    for row in rows:
        print(line(row, cpu_s.get(row["share_features"])))
    if arguments.out is not None:
        settings = {name: value for name, value in vars(arguments).items() if name != "out"}
        figures = {"settings": settings, "gpu": gpu, "torch": torch.__version__, "rows": rows}
        write_results(arguments.out, origin, figures)


if __name__ == "__main__":
    main()

"""Training speed of SAC and TD3, ours and Stable-Baselines3's, at equal settings; and the cost of replay checkpoints.

    python benchmarks/off_policy.py                       every row; pin it to 2 cores with taskset where there are more
    python benchmarks/off_policy.py --rows pendulum_sac --rounds 5 --json benchmarks/results/off_policy.json
    python benchmarks/off_policy.py --rows halfcheetah_sac --env-steps 100000 --jobs 6       learning, against SB3's:
                                                                  a round takes 40 minutes on one core (SB3's 24)

`pendulum_sac` …: env steps per second of training with one gradient step per env step, batches of 256, two hidden
layers of 256, one env and one thread on the CPU, without start-up and evaluation. Contenders are measured in turn in
every round; a ratio is the median of the ratios within a round. `--cpu` compares CPU time instead, for shared machines.
Both take the same number of gradient steps. The mean return of the final weights is printed too (use `--env-steps
20000` for meaningful returns on Pendulum), and the mean return of the training episodes in each tenth of the training.
`checkpoint`: bytes and seconds of a checkpoint of `--rows-in-replay` steps of HalfCheetah (1 M), first when all steps
are new, then after 10,000 further steps; compared with a checkpoint that always contains everything.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import multiverse as mv
from benchmarks.provenance import provenance, write_results
from multiverse.rollouts.replay import Replay
from multiverse.rollouts.rollout import rollout_for
from multiverse.training.runs.checkpoint import Checkpoints
from multiverse.training.runs.files import read_lines
from multiverse.training.runs.find_runs import EPISODES

EVALUATION_EPISODES = 20
BAR, AIM = 1.5, 2.0
NEW_STEPS = 10_000


@dataclass(frozen=True)
class Row:
    """One env and algorithm, trained by both libraries."""

    env: str
    algorithm: str
    env_steps: int
    learning_rate: float


ROWS = {
    "pendulum_sac": Row("Pendulum-v1", "sac", 2_000, 1e-3),
    "pendulum_td3": Row("Pendulum-v1", "td3", 2_000, 1e-3),
    "halfcheetah_sac": Row("HalfCheetah-v5", "sac", 2_000, 3e-4),
    "halfcheetah_td3": Row("HalfCheetah-v5", "td3", 2_000, 1e-3),
}
SAME = {"learning_starts": 100, "batch_size": 256, "buffer_size": 100_000, "gamma": 0.99, "tau": 0.005}


@dataclass(frozen=True)
class Measured:
    """Result of one training."""

    steps_per_s: float
    gradient_steps: int
    mean_return: float
    curve: list[float]


class Count(mv.Hook):
    """Hook that counts gradient steps and CPU seconds, without start-up and evaluation."""

    def __init__(self) -> None:
        self.gradient_steps, self.begun, self.cpu_s = 0, 0.0, 0.0

    def on_rollout(self, trainer: Any, collected: Any) -> None:
        self.begun = self.begun or time.process_time()

    def on_update(self, trainer: Any, report: Any) -> None:
        self.gradient_steps += report.gradient_steps
        self.cpu_s = time.process_time() - self.begun


def train_ours(row: Row, seed: int, cpu: bool) -> Measured:
    with tempfile.TemporaryDirectory() as home:
        count = Count()
        run = mv.train(
            row.env, row.algorithm, seed=seed, preset=False, num_envs=1, executor="serial", evaluate_every=0,
            env_steps=row.env_steps, learning_rate=row.learning_rate, evaluation_episodes=EVALUATION_EPISODES,
            run_dir=Path(home) / "run", progress=False, hooks=[count], hidden_sizes=[256, 256], **SAME,
        )  # fmt: skip
        episodes = list(read_lines(Path(home) / "run" / EPISODES))
    summary = run.summary
    curve = tenths([one["length"] for one in episodes], [one["return"] for one in episodes], row.env_steps)
    took_s = count.cpu_s if cpu else summary["seconds"] - summary["evaluate_s"]
    return Measured(summary["env_steps"] / took_s, count.gradient_steps, summary["evaluation"]["mean_return"], curve)


def train_theirs(row: Row, seed: int, cpu: bool) -> Measured:
    import stable_baselines3
    import torch
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.monitor import Monitor
    from stable_baselines3.common.noise import NormalActionNoise

    torch.set_num_threads(1)
    env = Monitor(gym.make(row.env))
    more: dict[str, Any] = {}
    if row.algorithm == "td3":
        size = int(np.prod(env.action_space.shape or ()))
        more["action_noise"] = NormalActionNoise(np.zeros(size), 0.1 * np.ones(size))
    model = getattr(stable_baselines3, row.algorithm.upper())(
        "MlpPolicy", env, seed=seed, train_freq=1, gradient_steps=1, learning_rate=row.learning_rate, device="cpu",
        policy_kwargs={"net_arch": [256, 256]}, **SAME, **more,
    )  # fmt: skip
    clock = time.process_time if cpu else time.perf_counter
    begun = clock()
    model.learn(row.env_steps)
    rate = model.num_timesteps / (clock() - begun)
    returned, _ = evaluate_policy(model, Monitor(gym.make(row.env)), EVALUATION_EPISODES)
    curve = tenths(env.get_episode_lengths(), env.get_episode_rewards(), row.env_steps)
    return Measured(rate, int(model._n_updates), float(np.mean(returned)), curve)


def tenths(lengths: list[int], returns: list[float], env_steps: int) -> list[float]:
    """Return the mean return of the episodes that ended in each tenth of a training; [] if a tenth has none."""
    part = np.minimum(10 * (np.cumsum(lengths) - 1) // env_steps, 9)
    by_tenth = [np.array(returns)[part == k] for k in range(10)]
    return [round(float(one.mean()), 1) for one in by_tenth] if all(len(one) for one in by_tenth) else []


def _end_with_parent(caller: int) -> None:
    """Initializer of the pool: end this process when its parent has ended."""

    def watch() -> None:
        while os.getppid() == caller:
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def compare(name: str, options: argparse.Namespace) -> dict[str, Any]:
    row = ROWS[name]
    if options.env_steps:
        row = Row(row.env, row.algorithm, options.env_steps, row.learning_rate)
    ours, theirs = list[Measured](), list[Measured]()
    seeds = range(options.seed, options.seed + options.rounds)
    if options.jobs > 1:
        with ProcessPoolExecutor(options.jobs, get_context("spawn"), _end_with_parent, (os.getpid(),)) as pool:
            trainings = [
                [pool.submit(train, row, seed, options.cpu) for train in (train_theirs, train_ours)] for seed in seeds
            ]
            theirs, ours = ([one.result() for one in side] for side in zip(*trainings))
    else:
        for seed in seeds:
            ours.append(train_ours(row, seed, options.cpu))
            theirs.append(train_theirs(row, seed, options.cpu))
    ratio = statistics.median(a.steps_per_s / b.steps_per_s for a, b in zip(ours, theirs))
    print(f"\n{name}: {row}, {'CPU seconds' if options.cpu else 'seconds'}")
    for library, found in (("ours", ours), ("sb3", theirs)):
        rate = statistics.median(one.steps_per_s for one in found)
        returns = ", ".join(f"{one.mean_return:.0f}" for one in found)
        print(f"  {library:5s}{rate:8.1f} env steps/s   {found[0].gradient_steps:,} gradient steps   return {returns}")
    for library, found in (("ours", ours), ("sb3", theirs)):
        if all(one.curve for one in found):
            print(f"  {library:5s}by tenths {np.mean([one.curve for one in found], axis=0).round(1).tolist()}")
    verdict = "reached" if ratio >= AIM else "met" if ratio >= BAR else "MISSED"
    print(f"  × SB3 {ratio:.2f}   bar {BAR:g}, aim {AIM:g}: {verdict}", flush=True)
    return {"row": name, "ratio": ratio, "bar": BAR, "aim": AIM, "cpu": options.cpu,
            "ours": [vars(one) for one in ours], "theirs": [vars(one) for one in theirs]}  # fmt: skip


# -- cost of a checkpoint ------------------------------------------------------------------------------------------
def checkpoint(options: argparse.Namespace) -> dict[str, Any]:
    env = gym.make("HalfCheetah-v5")
    rng, rows = np.random.default_rng(0), options.rows_in_replay
    size = int(np.prod(env.action_space.shape or ()))
    replay = Replay(env.observation_space, ((size,), np.float32), 1, rows)
    rollout = rollout_for(env.observation_space, NEW_STEPS, 1, ((size,), np.float32))
    for leaf in (rollout.observations[()], rollout.actions, rollout.rewards):
        leaf[...] = rng.normal(size=leaf.shape)
    rollout.truncated[999::1000] = True
    for _ in range(rows // NEW_STEPS):
        replay.add(rollout)
    found: dict[str, Any] = {"row": "checkpoint", "rows": rows}
    with tempfile.TemporaryDirectory() as home:
        checkpoints = Checkpoints(Path(home) / "checkpoints", keep=3)
        for number, name in enumerate(("all of it is new", f"{NEW_STEPS:,} steps are new", "again", "and again")):
            if number:
                replay.add(rollout)
            before, begun = _bytes(Path(home)), time.perf_counter()
            checkpoints.save({"replay": replay.state()}, {}, number)
            took_s = time.perf_counter() - begun
            found[name] = {"bytes": _bytes(Path(home)) - before, "seconds": took_s}
        begun = time.perf_counter()
        latest = checkpoints.load_latest()
        assert latest is not None
        Replay(env.observation_space, ((size,), np.float32), 1, rows).load(latest.state["replay"])
        found["verified and read"] = {"bytes": 0, "seconds": time.perf_counter() - begun}
    with tempfile.TemporaryDirectory() as home:
        table = replay.state()["rows"]
        everything = {"rows": table.records(table.first, table.last).view(np.uint8).copy()}
        begun = time.perf_counter()
        Checkpoints(Path(home)).save(everything, {}, 0)
        found["as one array, every time"] = {"bytes": _bytes(Path(home)), "seconds": time.perf_counter() - begun}
    print(f"\ncheckpoint: {rows:,} steps of HalfCheetah-v5 in replay")
    for name, cost in found.items():
        if isinstance(cost, dict):
            print(f"  {name:26s}{cost['bytes'] / 2**20:10.2f} MiB{cost['seconds']:9.3f} s", flush=True)
    return found


def _bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", choices=[*ROWS, "checkpoint"], default=[*ROWS, "checkpoint"])
    parser.add_argument("--rounds", type=int, default=3, help="number of rounds, each with its own seed")
    parser.add_argument("--seed", type=int, default=1, help="seed of the first round")
    parser.add_argument(
        "--jobs", type=int, default=1, help="number of parallel trainings, each on one core; default: in turn"
    )
    parser.add_argument("--env-steps", type=int, help="env steps of every training; default: 2,000")
    parser.add_argument("--cpu", action="store_true", help="measure CPU time instead of wall time")
    parser.add_argument("--rows-in-replay", type=int, default=1_000_000)
    parser.add_argument("--json", type=Path, help="also write all results to this file")
    options = parser.parse_args()
    origin = provenance()
    results = [checkpoint(options) if row == "checkpoint" else compare(row, options) for row in options.rows]
    if options.json:
        write_results(options.json, origin, {"rows": results})
    return 0


if __name__ == "__main__":
    sys.exit(main())

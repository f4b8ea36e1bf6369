"""Speed of the Stable-Baselines3 drop-ins and of the originals: `venv.step`, PPO's `collect_rollouts`, and learning.

    python benchmarks/drop_in.py                       8 envs; pin it to 2 cores with taskset where there are more
    python benchmarks/drop_in.py --rows step --rounds 7 --seconds 2 --json results.json

All contenders of a row are measured in turn in every round; a ratio is the median of the ratios within a round. torch
uses one thread, so that it does not compete for cores with the workers. "no envs" is a vector env that always returns
the same arrays: the upper limit of Stable-Baselines3 itself. Missed bars are reported as MISSED.
"""

from __future__ import annotations

import argparse
import functools
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv as TheirDummy
from stable_baselines3.common.vec_env import SubprocVecEnv as TheirSubproc

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.envs import Burn
from benchmarks.provenance import provenance, write_results
from benchmarks.stepping import Figure, Rates, _progress, _sb3_rate, _verdict, ratio
from multiverse.executors.machine import usable_cores
from multiverse.interop.stable_baselines3 import DummyVecEnv, SubprocVecEnv

NUM_ENVS = 8
STEPS_PER_ENV = 128
"""Number of steps per env in a rollout."""

THEIRS, OURS, THEIR_DUMMY, OUR_DUMMY, NO_ENVS = "sb3 subproc", "our subproc", "sb3 dummy", "our dummy", "no envs"
ONE_WORKER = "ours, 1 worker"
CONTENDERS: dict[str, Callable[..., Any]] = {
    THEIRS: TheirSubproc,
    OURS: SubprocVecEnv,
    ONE_WORKER: functools.partial(SubprocVecEnv, workers=1),
    THEIR_DUMMY: TheirDummy,
    OUR_DUMMY: DummyVecEnv,
}


def cartpole() -> Any:
    return gym.make("CartPole-v1")


def monitored_cartpole() -> Any:
    """CartPole-v1 in a Monitor, as `make_vec_env` creates it."""
    return Monitor(gym.make("CartPole-v1"))


def busy() -> Any:
    return Burn(200)


class NoEnvs(TheirDummy):
    """Vector env that always returns the same arrays, without ends of episodes."""

    def __init__(self, env_fns: list[Callable[[], Any]]) -> None:
        super().__init__(env_fns)
        self._answer = (super().reset(), np.zeros(self.num_envs, np.float32), np.zeros(self.num_envs, bool))

    def step_async(self, actions: Any) -> None:
        pass

    def step_wait(self) -> Any:
        return (*self._answer, [{"TimeLimit.truncated": False} for _ in range(self.num_envs)])


# -- measuring -------------------------------------------------------------------------------------------------
def in_turn(name: str, measures: dict[str, Callable[[float], float]], rounds: int, seconds: float) -> Rates:
    """Measure the env steps per second of each contender in every round."""
    rates: Rates = {contender: [] for contender in measures}
    for number in range(rounds):
        for contender, measure in measures.items():
            _progress(f"{name}: round {number + 1} of {rounds}, {contender}")
            rates[contender].append(measure(seconds))
    _progress("")
    print(f"\n{name} ({NUM_ENVS} envs)")
    for contender, values in rates.items():
        print(f"  {contender:16s}{statistics.median(values):12,.0f} steps/s", flush=True)
    return rates


def step_rates(name: str, make_env: Callable[[], Any], rounds: int, seconds: float) -> Rates:
    venvs = {contender: make([make_env] * NUM_ENVS) for contender, make in CONTENDERS.items()}
    batches = list(np.random.default_rng(0).integers(0, 2, (64, NUM_ENVS)))
    for venv in venvs.values():
        venv.seed(0)
        venv.reset()
    measures = {c: functools.partial(_sb3_rate, venv, batches) for c, venv in venvs.items()}
    try:
        return in_turn(name, measures, rounds, seconds)
    finally:
        for venv in venvs.values():
            venv.close()


def collect_rates(name: str, make_env: Callable[[], Any], rounds: int, seconds: float) -> Rates:
    makers = {**CONTENDERS, NO_ENVS: NoEnvs}
    venvs = {contender: make([make_env] * NUM_ENVS) for contender, make in makers.items()}
    try:
        return in_turn(name, {c: Collecting(venv).rate for c, venv in venvs.items()}, rounds, seconds)
    finally:
        for venv in venvs.values():
            venv.close()


class Collecting:
    """PPO that collects rollouts from a vector env and does not learn."""

    def __init__(self, venv: Any) -> None:
        self._model = PPO("MlpPolicy", venv, n_steps=STEPS_PER_ENV, seed=0, device="cpu")
        _, self._callback = self._model._setup_learn(10**9)
        self._callback.on_training_start(locals(), globals())
        self._collect()

    def _collect(self) -> None:
        model = self._model
        model.collect_rollouts(model.env, self._callback, model.rollout_buffer, model.n_steps)

    def rate(self, seconds: float) -> float:
        """Return env steps per second."""
        rollouts, begun = 0, time.perf_counter()
        while (spent := time.perf_counter() - begun) < seconds:
            self._collect()
            rollouts += 1
        return rollouts * STEPS_PER_ENV * NUM_ENVS / spent


# -- the rows --------------------------------------------------------------------------------------------------
def step(rounds: int, seconds: float) -> list[Figure]:
    rates = step_rates("venv.step, CartPole-v1", cartpole, rounds, seconds)
    return [
        ("our SubprocVecEnv / SB3's", ratio(rates, OURS, THEIRS), 8, None),
        ("our DummyVecEnv / SB3's", ratio(rates, OUR_DUMMY, THEIR_DUMMY), None, None),
        ("our SubprocVecEnv / SB3's DummyVecEnv", ratio(rates, OURS, THEIR_DUMMY), None, None),
    ]


def collect(rounds: int, seconds: float) -> list[Figure]:
    rates = collect_rates("PPO.collect_rollouts, CartPole-v1", cartpole, rounds, seconds)
    return [
        ("our SubprocVecEnv / SB3's", ratio(rates, OURS, THEIRS), 3, None),
        ("our SubprocVecEnv(workers=1) / SB3's", ratio(rates, ONE_WORKER, THEIRS), None, None),
        ("no envs at all / SB3's SubprocVecEnv (the ceiling)", ratio(rates, NO_ENVS, THEIRS), None, None),
        ("our DummyVecEnv / SB3's", ratio(rates, OUR_DUMMY, THEIR_DUMMY), None, None),
    ]


def collect_monitored(rounds: int, seconds: float) -> list[Figure]:
    name = "PPO.collect_rollouts, CartPole-v1 in a Monitor"
    rates = collect_rates(name, monitored_cartpole, rounds, seconds)
    return [("our SubprocVecEnv / SB3's", ratio(rates, OURS, THEIRS), None, None)]


def collect_busy(rounds: int, seconds: float) -> list[Figure]:
    rates = collect_rates("PPO.collect_rollouts, an env that burns 200 µs", busy, rounds, seconds)
    return [
        ("our SubprocVecEnv / SB3's", ratio(rates, OURS, THEIRS), 1.5, None),
        ("our SubprocVecEnv / our DummyVecEnv", ratio(rates, OURS, OUR_DUMMY), None, None),
    ]


class Curve(BaseCallback):
    """Callback that records the mean return of the last episodes after every rollout."""

    def __init__(self) -> None:
        super().__init__()
        self.points: list[float] = []

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        self.points.append(float(np.mean([episode["r"] for episode in self.model.ep_info_buffer or ()])))


def curve(rounds: int, seconds: float) -> list[Figure]:
    """Train with the same seed on both; compare every point of the curve and the final weights."""
    results = {}
    for contender in (THEIRS, OURS):
        _progress(f"learning over {contender}")
        venv = CONTENDERS[contender]([monitored_cartpole] * NUM_ENVS)
        model, points = PPO("MlpPolicy", venv, n_steps=STEPS_PER_ENV, seed=3, device="cpu"), Curve()
        start = time.perf_counter()
        model.learn(20_480, callback=points)
        spent = time.perf_counter() - start
        venv.close()
        results[contender] = (points.points, {k: v.numpy() for k, v in model.policy.state_dict().items()})
        print(f"\nPPO, CartPole-v1, seed 3, over {contender}: {spent:.1f} s; mean return at each rollout's end:")
        print("  " + " ".join(f"{point:.1f}" for point in points.points), flush=True)
    (their_points, theirs), (our_points, ours) = results[THEIRS], results[OURS]
    same_weights = all(np.array_equal(theirs[name], ours[name]) for name in theirs)
    return [
        ("points of the learning curve that are equal, share", np.mean(np.equal(their_points, our_points)), 1.0, None),
        ("weights after 20,480 steps equal bit for bit (1: yes)", float(same_weights), 1.0, None),
    ]


ROWS: dict[str, Callable[[int, float], list[Figure]]] = {
    "step": step,
    "collect": collect,
    "collect_monitor": collect_monitored,
    "collect_200us": collect_busy,
    "curve": curve,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="per measurement")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    options = parser.parse_args()
    origin = provenance()
    torch.set_num_threads(1)
    print(f"{usable_cores()} usable cores, Python {sys.version.split()[0]}, load {os.getloadavg()[0]:.2f}")
    results = {name: ROWS[name](options.rounds, options.seconds) for name in options.rows}
    print(f"\n{'row':17s}{'figure':62s}{'measured':>9s}   bar")
    for name, figures in results.items():
        for what, value, bar, aim in figures:
            wanted, verdict = _verdict(value, bar, aim)
            print(f"{name:17s}{what:62s}{value:9.2f}   {wanted:18s}{verdict}")
    if options.json:
        table = [
            {"row": name, "figure": what, "measured": float(value), "bar": bar, "aim": aim}
            for name, figures in results.items()
            for what, value, bar, aim in figures
        ]
        write_results(options.json, origin, {"figures": table})


if __name__ == "__main__":
    main()

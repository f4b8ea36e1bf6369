"""Training speed of PPO, ours and Stable-Baselines3's, with the same settings and envs.

    python benchmarks/training.py                         every row; pin it to 2 cores with taskset where there are more
    python benchmarks/training.py --rows cartpole halfcheetah --rounds 5 --json results.json

Contenders are measured in turn in every round; a ratio is the median of the ratios within a round.
Missed bars are reported as MISSED.

`cartpole`, `cartpole_zoo`, `halfcheetah`: env steps per second of training alone, start-up and evaluation not counted.
Stable-Baselines3 runs with each of its vector envs, without monitors, on the CPU, and the better one counts; torch
computes in one thread. Returns of the final weights stand beside, for speed without learning would be none.
`recurrent`: likewise with an LSTM of 64 units for the policy and one for the value, beside sb3-contrib's RecurrentPPO,
which learns along whole pieces of episodes; ours along chunks of 32 rows: with 32 steps an env, whole pieces too.
`to_475`: seconds from the command to its end, in processes of their own; evaluated every 10,000 env steps, 20 episodes.
`blackjack`: training as a share of what bare loops give, one a core, that seed every episode: an env so cheap that all
the rest counts. `one_env`: what the default executor costs a run with one env, of which nothing can run in parallel.
`collect_cartpole`, `collect_halfcheetah`: rollouts alone, µs per env step, as the trainer collects them.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import logging
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from threadpoolctl import threadpool_limits

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import multiverse as mv
from benchmarks.provenance import provenance, write_results
from multiverse.adapters.env_source import recipes
from multiverse.algorithms.ppo import PPO
from multiverse.executors.machine import usable_cores
from multiverse.measure import BareLoops
from multiverse.training.config.resolve import config_for
from multiverse.training.learners import algorithm_maker
from multiverse.training.session import Session

EVALUATION_EPISODES = 20
EXECUTORS = ("auto", "serial", "hybrid", "process")
LOOPS = "bare loops"
MEASURE_S = 1.0
"""Seconds per contender and round."""


RECURRENT: dict[str, Any] = {
    "memory": "lstm", "memory_size": 64, "chunk_length": 32, "hidden_sizes": [64], "activation": "relu",
    "ortho_init": False, "normalize_observations": True,
}  # fmt: skip
THEIR_RECURRENT: dict[str, Any] = {
    "policy_kwargs": {
        "lstm_hidden_size": 64, "enable_critic_lstm": True, "net_arch": {"pi": [64], "vf": [64]}, "ortho_init": False,
        "activation_fn": torch.nn.ReLU,
    }
}  # fmt: skip


@dataclass(frozen=True)
class Settings:
    """Hyper-parameters, which can be converted for both libraries."""

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
    recurrent: bool = False

    def ours(self) -> dict[str, Any]:
        schedule = "linear" if self.linear else "constant"
        return {
            "env_steps": self.env_steps, "num_envs": self.num_envs, "steps_per_env": self.steps_per_env,
            "epochs": self.epochs, "batch_size": self.batch_size, "learning_rate": self.learning_rate,
            "gamma": self.gamma, "gae_lambda": self.gae_lambda, "learning_rate_schedule": schedule,
            "clip_range_schedule": schedule, **(RECURRENT if self.recurrent else {}),
        }  # fmt: skip

    def theirs(self) -> dict[str, Any]:
        def fading(most: float) -> Any:
            return (lambda left: left * most) if self.linear else most

        return {
            "n_steps": self.steps_per_env, "n_epochs": self.epochs, "batch_size": self.batch_size,
            "learning_rate": fading(self.learning_rate), "clip_range": fading(0.2), "gamma": self.gamma,
            "gae_lambda": self.gae_lambda, "device": "cpu", **(THEIR_RECURRENT if self.recurrent else {}),
        }  # fmt: skip


BESIDE_SB3 = {
    "cartpole": Settings("CartPole-v1", 60_000, 8, 128, 4, 256, 2.5e-4, bar=4.0),
    "cartpole_zoo": Settings("CartPole-v1", 30_000, 8, 32, 20, 256, 1e-3, 0.98, 0.8, linear=True, bar=4.5),
    "halfcheetah": Settings("HalfCheetah-v5", 40_000, 8, 256, 5, 256, 3e-4, bar=3.2),
    "recurrent": Settings(
        "CartPoleNoVel-v1", 10_000, 8, 32, 20, 256, 1e-3, 0.98, 0.8, linear=True, bar=7.0, recurrent=True
    ),
}
SPREAD = Settings("mpe2.simple_spread_v3:parallel_env", 24_000, 8, 128, 4, 512, 3e-4, bar=2.0)
BLACKJACK = Settings("Blackjack-v1", 60_000, 8, 128, 4, 256, 3e-4)
ONE_ENV = Settings("CartPole-v1", 20_000, 1, 128, 4, 256, 3e-4, bar=0.95)

Measured = tuple[float, float]
"""(env steps per second, mean return of the final weights)."""
Train = Callable[[int], Measured]
"""Maps a seed to the result of a training."""


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
    summary = run.summary
    return summary["env_steps"] / (summary["seconds"] - summary["evaluate_s"]), summary["evaluation"]["mean_return"]


def train_theirs(settings: Settings, vec_env: str, seed: int) -> Measured:
    from sb3_contrib import RecurrentPPO
    from stable_baselines3 import PPO
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.monitor import Monitor
    from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecNormalize

    torch.set_num_threads(1)
    kind = {"sb3, dummy": DummyVecEnv, "sb3, subproc": SubprocVecEnv}[vec_env]
    venv = kind([functools.partial(gym.make, settings.env)] * settings.num_envs)
    try:
        if settings.recurrent:
            venv = VecNormalize(venv, norm_reward=False)
            model: Any = RecurrentPPO("MlpLstmPolicy", venv, seed=seed, **settings.theirs())
        else:
            model = PPO("MlpPolicy", venv, seed=seed, **settings.theirs())
        begun = time.perf_counter()
        model.learn(settings.env_steps)
        rate = model.num_timesteps / (time.perf_counter() - begun)
        evaluated_on: Any = DummyVecEnv([lambda: Monitor(gym.make(settings.env))])
        if settings.recurrent:
            evaluated_on = VecNormalize(evaluated_on, training=False, norm_reward=False)
            evaluated_on.obs_rms = venv.obs_rms
        returned, _ = evaluate_policy(model, evaluated_on, EVALUATION_EPISODES)
    finally:
        venv.close()
    return rate, float(np.mean(returned))


def train_theirs_on_supersuit(processes: int, seed: int) -> Measured:
    """Its PPO, each agent an env of a vector env: as SuperSuit and PettingZoo document it."""
    import supersuit
    from mpe2 import simple_spread_v3
    from stable_baselines3 import PPO

    torch.set_num_threads(1)
    agents = supersuit.pettingzoo_env_to_vec_env_v1(simple_spread_v3.parallel_env())
    venv = supersuit.concat_vec_envs_v1(agents, SPREAD.num_envs, num_cpus=processes, base_class="stable_baselines3")
    venv.seed = lambda seed=None: None  # theirs cannot be seeded by SB3
    try:
        model = PPO("MlpPolicy", venv, seed=seed, **SPREAD.theirs())
        begun = time.perf_counter()
        model.learn(SPREAD.env_steps * len(simple_spread_v3.parallel_env().possible_agents))
        took_s = time.perf_counter() - begun
    finally:
        venv.close()
    return model.num_timesteps / venv.num_envs * SPREAD.num_envs / took_s, float("nan")


def simple_spread(rounds: int) -> dict[str, Any]:
    """Three agents that share a learner, as many rows an update, in env steps (not agents' steps) per second."""
    contenders: dict[str, Train] = {f"ours, {e}": functools.partial(train_ours, SPREAD, e) for e in EXECUTORS}
    contenders |= {f"sb3, {n} cpus": functools.partial(train_theirs_on_supersuit, n) for n in (0, 2)}
    results = in_turn("simple_spread", SPREAD, contenders, rounds)
    better = [max(a, b) for a, b in zip(results["sb3, 0 cpus"], results["sb3, 2 cpus"])]
    ours = [f"ours, {e}" for e in EXECUTORS]
    return _against("simple_spread", {**results, "sb3": better}, "sb3", ours, "× SB3's better", SPREAD.bar)


def in_turn(name: str, settings: Settings, contenders: dict[str, Train], rounds: int) -> dict[str, list[Measured]]:
    """Measure every contender in every round, and print the results."""
    results: dict[str, list[Measured]] = {contender: [] for contender in contenders}
    for number in range(rounds):
        for contender, train in contenders.items():
            results[contender].append(train(number + 1))
    print(f"\n{name}: {settings}")
    for contender, values in results.items():
        rates, returns = zip(*values)
        suffix = "" if contender == LOOPS else "   return " + ", ".join(f"{one:.0f}" for one in returns)
        print(f"  {contender:14s}{statistics.median(rates):10,.0f} env steps/s{suffix}", flush=True)
    return results


def verdict(ratio: float, bar: float) -> str:
    return f"bar {bar:g}: {'met' if ratio >= bar else 'MISSED'}" if bar else "no bar"


def compare(name: str, rounds: int) -> dict[str, Any]:
    settings = BESIDE_SB3[name]
    contenders: dict[str, Train] = {
        **{f"ours, {e}": functools.partial(train_ours, settings, e) for e in EXECUTORS},
        **{v: functools.partial(train_theirs, settings, v) for v in ("sb3, dummy", "sb3, subproc")},
    }
    results = in_turn(name, settings, contenders, rounds)
    theirs = [max(a[0], b[0]) for a, b in zip(results["sb3, dummy"], results["sb3, subproc"])]
    ratios = {
        e: statistics.median(ours[0] / best for ours, best in zip(results[f"ours, {e}"], theirs)) for e in EXECUTORS
    }
    beside = ", ".join(f"{executor} {value:.2f}" for executor, value in ratios.items())
    print(f"  × SB3's better: {beside}   auto: {verdict(ratios['auto'], settings.bar)}", flush=True)
    return {"row": name, "ratios": ratios, "bar": settings.bar, "runs": results}


# -- ours alone ----------------------------------------------------------------------------------------------------
def blackjack(rounds: int) -> dict[str, Any]:
    """Compare with bare loops, one per core, that take random actions and seed every episode."""
    (recipe,) = recipes(BLACKJACK.env, 1, None, None)
    with BareLoops(recipe, seeded=True) as loops:
        contenders: dict[str, Train] = {LOOPS: lambda seed: (loops.machine_limit(MEASURE_S), 0.0)}
        contenders |= {f"ours, {e}": functools.partial(train_ours, BLACKJACK, e) for e in EXECUTORS}
        found = in_turn("blackjack", BLACKJACK, contenders, rounds)
    return _against("blackjack", found, LOOPS, [f"ours, {e}" for e in EXECUTORS], f"of {loops.cores} bare loops", 0.6)


def one_env(rounds: int) -> dict[str, Any]:
    contenders: dict[str, Train] = {
        f"ours, {e}": functools.partial(train_ours, ONE_ENV, e) for e in ("auto", "serial", "process")
    }
    found = in_turn("one_env", ONE_ENV, contenders, rounds)
    return _against("one_env", found, "ours, serial", ["ours, auto", "ours, process"], "of serial", ONE_ENV.bar)


def _against(
    name: str, results: dict[str, list[Measured]], base: str, others: list[str], what: str, bar: float
) -> dict[str, Any]:
    """The ratios of rates to `base`; the bar is for auto."""
    ratios = {o: statistics.median(a[0] / b[0] for a, b in zip(results[o], results[base])) for o in others}
    listed = ", ".join(f"{other} {value:.2f}" for other, value in ratios.items())
    print(f"  {what}: {listed}   auto: {verdict(ratios['ours, auto'], bar)}", flush=True)
    return {"row": name, "ratios": ratios, "bar": bar, "runs": results}


def collect(name: str, rounds: int) -> dict[str, Any]:
    """µs per env step of rollouts alone, with the first policy; the session's own work between rollouts not counted."""
    settings = BESIDE_SB3[name.removeprefix("collect_")]
    hows: dict[str, dict[str, Any]] = {
        "process, 2 workers": {"executor": "process", "workers": 2},
        "hybrid": {"executor": "hybrid"},
        "serial": {"executor": "serial"},
    }
    found: dict[str, list[float]] = {how: [] for how in hows}
    with contextlib.ExitStack() as opened:
        sessions = {how: opened.enter_context(session_of(settings, given)) for how, given in hows.items()}
        for _ in range(rounds):
            for how, session in sessions.items():
                found[how].append(collect_us(session))
    ratio = statistics.median(b / a for a, b in zip(found["process, 2 workers"], found["hybrid"]))
    print(f"\n{name}: rollouts alone, µs per env step, {settings.num_envs} envs × {settings.steps_per_env} steps")
    for how, values in found.items():
        print(f"  {how:20s}" + "  ".join(f"{value:6.1f}" for value in values))
    print(f"  2 workers {ratio:.2f} × as fast as hybrid   {verdict(ratio, 0.0)}", flush=True)
    return {"row": name, "ratio": ratio, "bar": 0.0, "us_per_env_step": found}


@contextlib.contextmanager
def session_of(settings: Settings, options: dict[str, Any], algorithm: type[PPO] | None = None) -> Iterator[Session]:
    """Open a session that trains PPO, or `algorithm`, a subclass of it."""
    config = config_for(settings.env, algorithm or "ppo", {**settings.ours(), **options, "seed": 1}, preset=False)
    made = Session(config, config.env, algorithm_maker(config, algorithm))
    with threadpool_limits(1, "blas"), contextlib.closing(made):
        made.begin()
        yield made


def collect_us(session: Session, seconds: float = MEASURE_S) -> float:
    collected_s(session)  # warm up caches after the other contenders
    taken: list[float] = []
    while sum(taken) < seconds:
        taken.append(collected_s(session))
    return statistics.mean(taken) / session.env_steps * 1e6


def collected_s(session: Session) -> float:
    begun = time.perf_counter()
    collected = session.collect(lambda: False)
    took_s = time.perf_counter() - begun
    assert collected is not None
    session.learned(collected)
    return took_s


# -- from the command ----------------------------------------------------------------------------------------------


THEIR_COMMAND = """
import functools, gymnasium as gym, torch
torch.set_num_threads(1)
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import EvalCallback, StopTrainingOnRewardThreshold
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv
fading = lambda most: lambda left: left * most
stop = StopTrainingOnRewardThreshold(475)
evaluated_on = DummyVecEnv([lambda: Monitor(gym.make("CartPole-v1"))] * 8)
evaluation = EvalCallback(evaluated_on, callback_on_new_best=stop, n_eval_episodes=20, eval_freq=10_000 // 8, verbose=0)
venv = DummyVecEnv([functools.partial(gym.make, "CartPole-v1")] * 8)
PPO("MlpPolicy", venv, n_steps=32, batch_size=256, n_epochs=20, gae_lambda=0.8, gamma=0.98, learning_rate=fading(1e-3),
    clip_range=fading(0.2), seed={seed}, device="cpu").learn(100_000, callback=evaluation)
assert evaluation.best_mean_reward >= 475, evaluation.best_mean_reward
"""


def to_475(name: str, rounds: int) -> dict[str, Any]:
    """Seconds from the command to a policy that an evaluation of 20 episodes gives 475, every 10,000 env steps."""
    found: dict[str, list[float]] = {"ours": [], "sb3": []}
    for seed in range(1, rounds + 1):
        with tempfile.TemporaryDirectory() as home:
            ours = [sys.executable, "-m", "multiverse", "train", "CartPole-v1", "--seed", str(seed), "--target-return",
                    "475", "--evaluate-every", "10000", "--evaluation-episodes", "20", "--run-dir",
                    f"{home}/run"]  # fmt: skip
            found["ours"].append(_seconds(ours))
        found["sb3"].append(_seconds([sys.executable, "-c", THEIR_COMMAND.replace("{seed}", str(seed))]))
    ratio = statistics.median(b / a for a, b in zip(found["ours"], found["sb3"]))
    print(f"\n{name}: seconds from the command, start-up included")
    for contender, values in found.items():
        print(f"  {contender:6s}" + "  ".join(f"{value:6.1f}" for value in values))
    print(f"  {ratio:.2f} × faster than SB3   {verdict(ratio, 3.0)}", flush=True)
    return {"row": name, "ratio": ratio, "bar": 3.0, "runs": found}


def _seconds(command: list[str]) -> float:
    begun = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{command}:\n{done.stdout}\n{done.stderr}")
    return time.perf_counter() - begun


ROWS: dict[str, Callable[[int], dict[str, Any]]] = {
    **{name: functools.partial(compare, name) for name in BESIDE_SB3},
    "simple_spread": simple_spread,
    "to_475": functools.partial(to_475, "to_475"),
    "blackjack": blackjack,
    "one_env": one_env,
    **{name: functools.partial(collect, name) for name in ("collect_cartpole", "collect_halfcheetah")},
}


def measure(rows: Mapping[str, Callable[[int], Any]], doc: str | None, setup: str) -> None:
    """Measure the rows given on the command line; write a results file if requested."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", choices=rows, default=list(rows))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    origin = provenance()
    logging.getLogger("multiverse").setLevel(logging.WARNING)
    print(f"{usable_cores()} usable cores, Python {sys.version.split()[0]}, {setup}")
    found = [rows[row](options.rounds) for row in options.rows]
    if options.json:
        write_results(options.json, origin, {"rows": found})


if __name__ == "__main__":
    measure(ROWS, __doc__, f"torch {torch.__version__}, one thread")

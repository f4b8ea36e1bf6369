"""Stepping speed of vector envs, compared with bare loops and other libraries.

    python benchmarks/stepping.py                      every row that 2 cores can show
    python benchmarks/stepping.py --rows cartpole burn --rounds 5 --json results.json
    python benchmarks/stepping.py --rows scaling       8 envs per core on all cores of this machine

Contenders are measured in turn in every round; a ratio is the median of the ratios within a round. The
limit is one parallel bare loop per usable core. Missed bars are reported as MISSED.
"""

from __future__ import annotations

import argparse
import functools
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import multiverse as mv
from benchmarks.envs import Burn, Images
from benchmarks.envs import burn as compute
from benchmarks.provenance import provenance, write_results
from multiverse.adapters.env_source import recipes
from multiverse.executors.machine import usable_cores
from multiverse.measure import BareLoops, sample_actions, step_rate

CLOCK = "wall"
"""Clock of the envs that compute for a given time (--clock)."""
ON_FAILURE = "raise"
"""Failure mode of our vector envs (--on-failure): "restart" can replace a lost worker at any step."""

Rates = dict[str, list[float]]
Figure = tuple[str, float, float | None, float | None]  # what, measured, bar, aim (None: for information)


class Row:
    """One row's contenders, measured in turn."""

    def __init__(
        self, name: str, env: Any, num_envs: int, rounds: int, seconds: float, same: bool = False, **env_kwargs: Any
    ) -> None:
        """Prepare a row. `same`: the limit's loops step the same number of envs with the same seeds and actions."""
        self.name, self.env, self.num_envs, self.env_kwargs = name, env, num_envs, env_kwargs
        self.rounds, self.seconds = rounds, seconds
        self.contenders: dict[str, Callable[[float], float]] = {}
        self.start_up_s: dict[str, float] = {}
        self.plans: dict[str, str] = {}
        self._open: list[Any] = []
        (recipe, *_) = recipes(env, 1, env_kwargs, None)
        self._loops = BareLoops(recipe, num_envs=num_envs if same else None)
        self._open.append(self._loops)
        self.contenders["limit"] = self._loops.machine_limit
        if not same:
            self.contenders["plain loop"] = self._loops.bare_rate

    def ours(self, name: str, executor: str = "auto", **options: Any) -> mv.VectorEnv:
        begun = time.perf_counter()
        options.setdefault("on_failure", ON_FAILURE)
        envs = mv.make_vec(self.env, self.num_envs, executor, env_kwargs=self.env_kwargs, **options)  # type: ignore
        self.start_up_s[name] = time.perf_counter() - begun
        self.plans[name] = str(envs.plan)
        self._open.append(envs)
        self.contenders[name] = lambda seconds: step_rate(envs, seconds)
        return envs

    def sync(self, copy: bool = True) -> None:
        envs = gym.vector.SyncVectorEnv([self._make] * self.num_envs, copy=copy)
        self._open.append(envs)
        self.contenders["gymnasium sync"] = lambda seconds: step_rate(envs, seconds)

    def gymnasium_async(self) -> None:
        envs = gym.vector.AsyncVectorEnv([self._make] * self.num_envs, shared_memory=True, context="fork")
        self._open.append(envs)
        self.contenders["gymnasium async"] = lambda seconds: step_rate(envs, seconds)

    def sb3_subproc(self) -> None:
        from stable_baselines3.common.vec_env import SubprocVecEnv

        envs = SubprocVecEnv([self._make] * self.num_envs, start_method="fork")
        self._open.append(envs)
        batches = [np.array(a) for a in sample_actions(gym.vector.utils.batch_space(envs.action_space, self.num_envs))]
        envs.reset()
        self.contenders["sb3 subproc"] = lambda seconds: _sb3_rate(envs, batches, seconds)

    def _make(self) -> Any:
        return gym.make(self.env, **self.env_kwargs) if isinstance(self.env, str) else self.env(**self.env_kwargs)

    def run(self) -> Rates:
        rates: Rates = {name: [] for name in self.contenders}
        for number in range(self.rounds):
            for name, measure in self.contenders.items():
                _progress(f"{self.name}: round {number + 1} of {self.rounds}, {name}")
                rates[name].append(measure(self.seconds))
        for thing in self._open:
            thing.close()
        _progress("")
        self._show(rates)
        return rates

    def _show(self, rates: Rates) -> None:
        print(f"\n{self.name} ({self.num_envs} envs)")
        for name, values in rates.items():
            of_limit = ratio(rates, name, "limit")
            start = f"   start-up {self.start_up_s[name]:.2f} s" if name in self.start_up_s else ""
            print(f"  {name:24s}{statistics.median(values):12,.0f} steps/s   {of_limit:5.2f} of the limit{start}")


def _sb3_rate(envs: Any, batches: list[Any], seconds: float) -> float:
    for batch in batches:
        envs.step(batch)
    done, begun = 0, time.perf_counter()
    while (spent := time.perf_counter() - begun) < seconds:
        for batch in batches:
            envs.step(batch)
        done += len(batches) * envs.num_envs
    return done / spent


def ratio(rates: Rates, name: str, reference: str) -> float:
    return statistics.median(a / b for a, b in zip(rates[name], rates[reference]))


def best_of(rates: Rates, *names: str) -> str:
    return max(names, key=lambda name: statistics.median(rates[name]))


def _progress(text: str) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\033[K{text}")
    elif text:
        sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def auto_figures(row: Row, rates: Rates, *rivals: str) -> list[Figure]:
    """Return the figures of `auto` for this row."""
    best = best_of(rates, *rivals)
    chosen = row.plans["auto"].split(",")[0].split(":")[0]
    figures: list[Figure] = [(f"auto ({chosen}) / best executor ({best})", ratio(rates, "auto", best), 0.90, None)]
    if "gymnasium sync" in rates:
        figures.append(("auto / gymnasium sync", ratio(rates, "auto", "gymnasium sync"), 1.0, None))
    if chosen in row.start_up_s:
        extra = row.start_up_s["auto"] - row.start_up_s[chosen]
        figures.append(("start-up of auto over the chosen executor's, s (at most)", extra, -0.5, None))
    return figures


# -- the rows --------------------------------------------------------------------------------------------------
def cartpole(rounds: int, seconds: float) -> list[Figure]:
    row = Row("CartPole-v1", "CartPole-v1", 8, rounds, seconds)
    row.ours("serial", "serial")
    row.ours("process", "process", workers=2)
    row.ours("hybrid", "hybrid")
    row.ours("auto")
    row.sync()
    row.gymnasium_async()
    row.sb3_subproc()
    rates = row.run()
    best = best_of(rates, "serial", "process", "hybrid")
    return [
        (f"best executor ({best}) of the limit", ratio(rates, best, "limit"), 0.65, 0.75),
        ("best / gymnasium async", ratio(rates, best, "gymnasium async"), 8, None),
        ("best / sb3 subproc", ratio(rates, best, "sb3 subproc"), 8, None),
        ("process, 2 workers, of the limit", ratio(rates, "process", "limit"), 0.5, None),
        *auto_figures(row, rates, "serial", "process", "hybrid"),
    ]


def cartpole_64(rounds: int, seconds: float) -> list[Figure]:
    row = Row("CartPole-v1, 64 envs", "CartPole-v1", 64, rounds, seconds)
    row.ours("serial", "serial")
    row.ours("process", "process", workers=2)
    row.ours("hybrid", "hybrid")
    row.ours("auto")
    row.sync()
    rates = row.run()
    best = best_of(rates, "serial", "process", "hybrid")
    return [
        (f"best executor ({best}) of the limit", ratio(rates, best, "limit"), 0.75, 0.85),
        *auto_figures(row, rates, "serial", "process", "hybrid"),
    ]


def halfcheetah(rounds: int, seconds: float) -> list[Figure]:
    row = Row("HalfCheetah-v5", "HalfCheetah-v5", 8, rounds, seconds)
    row.ours("process", "process", workers=2)
    row.ours("hybrid", "hybrid")
    row.ours("hybrid, infos=False", "hybrid", infos=False)
    row.ours("auto")
    row.sync()
    rates = row.run()
    best = best_of(rates, "process", "hybrid")
    return [
        (f"best executor ({best}) of the limit, with infos", ratio(rates, best, "limit"), 0.75, 0.90),
        ("hybrid of the limit, infos=False", ratio(rates, "hybrid, infos=False", "limit"), 0.80, 0.90),
        *auto_figures(row, rates, "process", "hybrid"),
    ]


def burn(rounds: int, seconds: float) -> list[Figure]:
    row = Row("an env that burns 50 µs", Burn, 8, rounds, seconds, microseconds=50, clock=CLOCK)
    row.ours("serial", "serial")
    row.ours("process", "process", workers=2)
    row.ours("hybrid", "hybrid")
    row.ours("auto")
    row.sync()
    rates = row.run()
    best = best_of(rates, "serial", "process", "hybrid")
    return [
        (f"best executor ({best}) of the limit", ratio(rates, best, "limit"), 0.90, 0.95),
        ("process, 2 workers, of the limit", ratio(rates, "process", "limit"), 0.85, None),
        *auto_figures(row, rates, "serial", "process", "hybrid"),
    ]


def exponential(rounds: int, seconds: float) -> list[Figure]:
    row = Row("exponential, mean 200 µs", Burn, 8, rounds, seconds, microseconds=200, spread="exponential", clock=CLOCK)
    row.ours("process, lock-step", "process", workers=2)
    asynchronous = row.ours("process, receive 4 of 8", "process", workers=2)
    row.contenders["process, receive 4 of 8"] = functools.partial(_receive_rate, asynchronous, 4)
    row.ours("hybrid", "hybrid")
    row.ours("auto")
    rates = row.run()
    return [
        ("receive 4 of 8 / lock-step", ratio(rates, "process, receive 4 of 8", "process, lock-step"), 1.2, 1.35),
        *auto_figures(row, rates, "process, lock-step", "hybrid"),
    ]


def _receive_rate(envs: mv.VectorEnv, min_envs: int, seconds: float) -> float:
    """Return env steps/s when each range gets its next actions as soon as its results arrive."""
    actions = np.random.default_rng(0).integers(0, 2, envs.num_envs)
    envs.reset(seed=0)
    envs.send(actions)
    done, begun = 0, time.perf_counter()
    while (spent := time.perf_counter() - begun) < seconds:
        for _ in range(16):
            batch = envs.receive(min_envs)
            done += len(batch.env_ids)
            envs.send(actions[batch.env_ids], batch.env_ids)
    envs.receive()
    return done / spent


def images(rounds: int, seconds: float) -> list[Figure]:
    row = Row("84×84×4 images, no work, copy=False", Images, 8, rounds, seconds)
    row.ours("serial", "serial", copy=False)
    row.ours("process", "process", workers=2, copy=False)
    row.ours("hybrid", "hybrid", copy=False)
    row.ours("auto", copy=False)
    row.sync(copy=False)
    rates = row.run()
    best = best_of(rates, "serial", "process", "hybrid")
    return [
        (f"best executor ({best}) / gymnasium sync", ratio(rates, best, "gymnasium sync"), 1.5, 2.5),
        *auto_figures(row, rates, "serial", "process", "hybrid"),
    ]


def oversubscribed(rounds: int, seconds: float) -> list[Figure]:
    row = Row("16 workers on few cores, 50 µs env", Burn, 16, rounds, seconds, microseconds=50, clock=CLOCK)
    row.ours("2 workers", "process", workers=2)
    row.ours("16 workers", "process", workers=16)
    rates = row.run()
    return [("16 workers / 2 workers", ratio(rates, "16 workers", "2 workers"), 0.8, None)]


def idle(rounds: int, seconds: float) -> list[Figure]:
    """Measure the CPU time of waiting workers while the caller computes for 3 ms between steps.

    The env does no work, so that workers only wait, wake up and reply.
    """
    print("\ncaller computes 3 ms between steps (an env without work, 8 envs, process, 2 workers)")
    envs = mv.make_vec(Burn, 8, "process", workers=2, env_kwargs={"microseconds": 0})
    pids = [w.life.process.pid for w in envs._executor.workers]  # type: ignore[attr-defined]
    envs.reset(seed=0)
    actions, shares = envs.action_space.sample(), []
    for _ in range(rounds):
        before, begun = sum(map(_cpu_s, pids)), time.perf_counter()
        while (spent := time.perf_counter() - begun) < max(seconds, 0.5):
            envs.step(actions)
            compute(3_000)
        shares.append((sum(map(_cpu_s, pids)) - before) / spent)
    envs.close()
    share = statistics.median(shares)
    print(f"  workers together: {share:.3f} of a core")
    return [("share of a core that waiting workers burn (at most)", share, -0.05, None)]


def _cpu_s(pid: int) -> float:
    """Return the CPU seconds of a process, from the scheduler's statistics."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


START_UP = """
import os, sys, time
import torch, stable_baselines3
import multiverse as mv
begun = time.perf_counter()
envs = mv.make_vec("CartPole-v1", 8, "process", workers=8)
envs.reset(seed=0)
took = time.perf_counter() - begun
import psutil
loaded = envs.call("get_wrapper_attr", "spec") and [
    any("libtorch" in line for line in open(f"/proc/{w.life.process.pid}/maps")) for w in envs._executor.workers]
memory = [psutil.Process(w.life.process.pid).memory_full_info().uss / 1e6 for w in envs._executor.workers]
print(took, sum(memory) / len(memory), any(loaded))
"""


def start_up(rounds: int, seconds: float) -> list[Figure]:
    """8 CartPoles in 8 workers, from a script without a guard that imports torch and stable_baselines3."""
    print("\nstart-up of 8 workers from a script that imports torch and stable_baselines3")
    results = []
    for _ in range(rounds):
        run = subprocess.run([sys.executable, "-c", START_UP], capture_output=True, text=True, check=True)
        took, memory, loaded = run.stdout.split()
        results.append((float(took), float(memory), loaded == "True"))
    took, memory = (statistics.median(s[i] for s in results) for i in (0, 1))
    print(f"  {took:.2f} s, {memory:.1f} MB private memory a worker, torch loaded: {any(s[2] for s in results)}")
    return [
        ("start-up, s (at most)", took, -1.0, -0.3),
        ("private memory a worker, MB (at most)", memory, -15, -6),
        ("torch loaded in a worker (at most)", float(any(s[2] for s in results)), -0.0, None),
    ]


def scaling(rounds: int, seconds: float) -> list[Figure]:
    """8 envs per core, on all cores."""
    cores = usable_cores()
    figures: list[Figure] = []
    for name, env, kwargs, bar, aim in (
        ("CartPole-v1", "CartPole-v1", {}, 0.50, 0.70),
        ("50 µs env", Burn, {"microseconds": 50, "clock": CLOCK}, 0.90, 0.95),
    ):
        row = Row(f"{name} on {cores} cores", env, 8 * cores, rounds, seconds, **kwargs)
        row.ours("process", "process")
        row.ours("hybrid", "hybrid")
        row.ours("auto")
        rates = row.run()
        best = best_of(rates, "process", "hybrid")
        figures.append((f"{name}, {cores} cores: best ({best}) of the limit", ratio(rates, best, "limit"), bar, aim))
        figures += auto_figures(row, rates, "process", "hybrid")
    return figures


ROWS: dict[str, Callable[[int, float], list[Figure]]] = {
    "cartpole": cartpole,
    "cartpole_64": cartpole_64,
    "halfcheetah": halfcheetah,
    "burn": burn,
    "exponential": exponential,
    "images": images,
    "oversubscribed": oversubscribed,
    "idle": idle,
    "start_up": start_up,
    "scaling": scaling,
}


def _verdict(value: float, bar: float | None, aim: float | None) -> tuple[str, str]:
    """Return the bar as text and whether it is met. A negative bar is an upper bound."""
    if bar is None:
        return "", ""
    met = value >= bar if bar > 0 else value <= -bar
    wish = "" if aim is None else f", aim {abs(aim):g}"
    return f"{'≥' if bar > 0 else '≤'} {abs(bar):g}{wish}", "met" if met else "MISSED"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=[name for name in ROWS if name != "scaling"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.0, help="per measurement")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument(
        "--clock", choices=["wall", "cpu"], default="wall", help="clock of the envs that compute for a given time"
    )
    parser.add_argument(
        "--on-failure", choices=["raise", "restart"], default="raise", help="failure mode of our vector envs"
    )
    options = parser.parse_args()
    origin = provenance()
    global CLOCK, ON_FAILURE
    CLOCK, ON_FAILURE = options.clock, options.on_failure
    print(f"{usable_cores()} usable cores, Python {sys.version.split()[0]}, load {os.getloadavg()[0]:.2f}")
    results = {name: ROWS[name](options.rounds, options.seconds) for name in options.rows}
    print(f"\n{'row':16s}{'figure':62s}{'measured':>9s}   bar")
    for name, figures in results.items():
        for what, value, bar, aim in figures:
            wanted, verdict = _verdict(value, bar, aim)
            print(f"{name:16s}{what:62s}{value:9.2f}   {wanted:18s}{verdict}")
    if options.json:
        table = [
            {"row": name, "figure": what, "measured": value, "bar": bar, "aim": aim}
            for name, figures in results.items()
            for what, value, bar, aim in figures
        ]
        write_results(options.json, origin, {"figures": table})


if __name__ == "__main__":
    main()

"""Speed of parallel Game Boys, compared with bare emulators, Stable-Baselines3 and the figures of document 004.

    python benchmarks/game_boy.py                        every row; pin it to 2 cores with taskset where there are more
    python benchmarks/game_boy.py --rows screen learning --rounds 5 --json benchmarks/results/game_boy.json

The game is the built-in quest with 4 frames per step and episodes of 750 steps, as in the document. Contenders are
measured in turn in every round; a ratio is the median of the ratios within a round. The limit of n envs is n bare envs
with the same seeds and actions, distributed over independent plain loops, one per usable core. Missed bars are reported
as MISSED. All rows take 5 to 6 minutes on 2 idle cores.

`ram`, `screen`: stepping 1, 2, 4 and 8 envs with random actions. `learning`: env steps/s of training with the settings
of document 004 (6 epochs, minibatches of 128), without start-up and the final evaluation. `train_20k`: the training
time that `make train-20k` prints. `memory`: growth over 10,000 resets and over 200 instances that are opened and
closed, and the memory of one instance.
"""

from __future__ import annotations

import argparse
import gc
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import multiverse as mv
from benchmarks.provenance import TREE, provenance, write_results
from benchmarks.stepping import Figure, Rates, Row, _verdict, ratio
from multiverse.envs.game_boy import make_quest
from multiverse.executors.machine import usable_cores

QUEST: dict[str, Any] = {"hold_frames": 4, "release_frames": 0, "episode_length": 750}
SCREEN = {"observation": "screen", "downscale": 2, "stack": 4}
NUM_ENVS = (1, 2, 4, 8)
DOCUMENTED = {1: 1130.0, 2: 1360.4, 4: 2000.0}
"""Env steps/s in document 004, by number of envs. Its optimization only sleeps."""
DOCUMENTED_EPISODES = {1: 2.26, 2: 1.77, 4: 3.0}
"""Episodes/s in document 004. With one env, its episodes have 500 steps."""
TRAIN_20K_S, AIM_20K_S = 14.7, 6.0
MB_AN_INSTANCE = 50.0
RESETS, OPENED = 10_000, 200


# -- stepping ------------------------------------------------------------------------------------------------------
def stepping(observation: str, rounds: int, seconds: float) -> list[Figure]:
    figures: list[Figure] = []
    for num_envs in NUM_ENVS:
        arguments = {**QUEST, **(SCREEN if observation == "screen" else {"observation": "ram"})}
        row = Row(f"the quest, {observation}", make_quest, num_envs, rounds, seconds, same=True, **arguments)
        for executor in ("thread", "process", "hybrid", "auto"):
            row.ours(executor, executor)
        if observation == "screen":
            row.sb3_subproc()
        rates = row.run()
        figures += _figures(row, rates, num_envs)
    return figures


def _figures(row: Row, rates: Rates, num_envs: int) -> list[Figure]:
    what = f"{num_envs} env{'s' * (num_envs > 1)}"
    chosen = row.plans["auto"].split(",")[0].split(":")[0]
    figures: list[Figure] = [
        (f"{what}: threads of the limit", ratio(rates, "thread", "limit"), 0.85, None),
        (f"{what}: processes of the limit", ratio(rates, "process", "limit"), None, None),
        (f"{what}: hybrid of the limit", ratio(rates, "hybrid", "limit"), None, None),
        (f"{what}: auto ({chosen}) of the limit", ratio(rates, "auto", "limit"), None, None),
    ]
    if "sb3 subproc" in rates:
        bar = {2: 1.8, 8: 1.5}.get(num_envs)
        for ours, wanted in (("auto", bar), ("thread", None)):
            value = ratio(rates, ours, "sb3 subproc")
            figures.append((f"{what}: {ours} / SB3's SubprocVecEnv", value, wanted, None))
    return figures


# -- learning ------------------------------------------------------------------------------------------------------
def learning(rounds: int, seconds: float) -> list[Figure]:
    """Train with RAM features. The documented figure is the bar for `auto`, which is `process` in training."""
    figures: list[Figure] = []
    print("\ntraining on the quest, RAM features: env steps/s of every round")
    for num_envs in NUM_ENVS:
        rates: Rates = {executor: [] for executor in ("auto", "thread")}
        for number in range(_few(rounds)):
            for executor, values in rates.items():
                values.append(_training_rate(executor, num_envs, number))
        for executor, values in rates.items():
            print(f"  {num_envs} envs, {executor:8s}" + "  ".join(f"{value:8,.0f}" for value in values), flush=True)
        median = {executor: statistics.median(values) for executor, values in rates.items()}
        bar = DOCUMENTED.get(num_envs)
        figures.append((f"{num_envs} envs: env steps/s with learning, auto", median["auto"], bar, None))
        figures.append((f"{num_envs} envs: env steps/s with learning, thread", median["thread"], None, None))
        documented = f" (documented: {DOCUMENTED_EPISODES[num_envs]})" if num_envs in DOCUMENTED_EPISODES else ""
        episodes = median["auto"] / QUEST["episode_length"]
        figures.append((f"{num_envs} envs: whole episodes/s with learning, auto{documented}", episodes, None, None))
    return figures


def _few(rounds: int) -> int:
    """Return the number of rounds of slow measurements: a third, at least one."""
    return max(1, rounds // 3)


def _training_rate(executor: str, num_envs: int, seed: int) -> float:
    with tempfile.TemporaryDirectory() as home:
        run = mv.train(
            "multiverse/Quest-v0", preset=False, seed=seed, executor=executor, num_envs=num_envs, env_kwargs=QUEST,
            env_steps=3_000 * num_envs, steps_per_env=750, epochs=6, batch_size=128, evaluate_every=0,
            evaluation_episodes=1, run_dir=Path(home) / "run", progress=False,
        )  # fmt: skip
    summary = run.summary
    return float(summary["env_steps"] / (summary["seconds"] - summary["evaluate_s"] - summary["save_s"]))


def train_20k(rounds: int, seconds: float) -> list[Figure]:
    """Run the document's command in a separate process. The time with screens, which uses a CNN, has no bar."""
    ram = [_make_train_20k("ram") for _ in range(_few(rounds))]
    screen = _make_train_20k("screen")
    print(f"\nmake train-20k, RAM features: {ram}\nmake train-20k, screens: {screen}", flush=True)
    return [
        ("training time, s, RAM features (at most)", statistics.median(s for s, _, _ in ram), -TRAIN_20K_S, -AIM_20K_S),
        ("steps per second, RAM features", statistics.median(r for _, r, _ in ram), DOCUMENTED[2], None),
        ("episodes per second, RAM features (documented: 1.77)", statistics.median(e for *_, e in ram), None, None),
        ("training time, s, screens", screen[0], None, None),
    ]


def _make_train_20k(observation: str) -> tuple[float, float, float]:
    """Run the training script; return the (seconds, steps/s, episodes/s) it prints."""
    program = [sys.executable, str(TREE / "examples/game_boy/train.py"), "--steps", "20000", "--envs", "2"]
    program += ["--episode-length", "750", "--update-epochs", "6", "--observation", observation]
    with tempfile.TemporaryDirectory() as home:
        program += ["--output-dir", home]
        done = subprocess.run(program, cwd=TREE, capture_output=True, text=True, check=True)
    _, _, block = done.stdout.partition("PARALLEL TRAINING COMPLETE")
    labels = ("Training time", "Steps per second", "Episodes per second")
    matches = [re.search(rf"^{label}: ([\d.]+)", block, re.MULTILINE) for label in labels]
    seconds, steps, episodes = (float(match.group(1)) if match else float("nan") for match in matches)
    return seconds, steps, episodes


# -- memory --------------------------------------------------------------------------------------------------------
def memory(rounds: int, seconds: float) -> list[Figure]:
    """Measure memory of this process. Growth is measured after a tenth of the work, when allocators are warm."""
    env = make_quest(observation="screen", **QUEST)
    resets = _grown_mb(env.reset, RESETS)
    env.close()
    opened = _grown_mb(_open_and_close, OPENED)
    before = _private_mb()
    envs = [make_quest(observation="screen", **QUEST) for _ in range(32)]
    for other in envs:
        other.reset(seed=0)
        other.step(0)
    each = (_private_mb() - before) / len(envs)
    for other in envs:
        other.close()
    print(f"\nprivate memory: {each:.1f} MB an instance (documented: {MB_AN_INSTANCE:g}), 32 of them in one process")
    return [
        (f"growth over {RESETS:,} resets, MB (at most)", resets, -2.0, None),
        (f"growth over {OPENED} times opened and closed, MB (at most)", opened, -2.0, None),
        ("private memory an instance, MB (at most)", each, -MB_AN_INSTANCE, None),
    ]


def _open_and_close() -> None:
    env = make_quest(observation="screen", **QUEST)
    env.reset(seed=0)
    env.close()


def _grown_mb(work: Callable[[], Any], times: int) -> float:
    for _ in range(times // 10):
        work()
    before = _private_mb()
    for _ in range(times - times // 10):
        work()
    return _private_mb() - before


def _private_mb() -> float:
    """Return the anonymous memory of this process, without library pages, which other programs may share."""
    gc.collect()
    (anonymous,) = re.findall(r"^Anonymous: +(\d+) kB", Path("/proc/self/smaps_rollup").read_text(), re.MULTILINE)
    return int(anonymous) * 1024 / 1e6


ROWS: dict[str, Callable[[int, float], list[Figure]]] = {
    "ram": lambda rounds, seconds: stepping("ram", rounds, seconds),
    "screen": lambda rounds, seconds: stepping("screen", rounds, seconds),
    "learning": learning,
    "train_20k": train_20k,
    "memory": memory,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.3, help="per measurement of stepping")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    origin, start = provenance(), time.perf_counter()
    print(f"{usable_cores()} usable cores, Python {sys.version.split()[0]}, load {os.getloadavg()[0]:.2f}")
    results = {name: ROWS[name](options.rounds, options.seconds) for name in options.rows}
    print(f"\n{'row':12s}{'figure':62s}{'measured':>9s}   bar")
    for name, figures in results.items():
        for what, value, bar, aim in figures:
            wanted, met = _verdict(value, bar, aim)
            print(f"{name:12s}{what:62s}{value:9.2f}   {wanted:18s}{met}")
    if options.json:
        table = [
            {"row": name, "figure": what, "measured": value, "bar": bar, "aim": aim}
            for name, figures in results.items()
            for what, value, bar, aim in figures
        ]
        write_results(options.json, origin, {"seconds": round(time.perf_counter() - start), "figures": table})


if __name__ == "__main__":
    main()

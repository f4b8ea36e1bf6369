"""Game Boys in parallel, beside bare emulators, Stable-Baselines3 and what document 004 says, in one run.

    python benchmarks/game_boy.py                        every row; pin it to 2 cores with taskset where there are more
    python benchmarks/game_boy.py --rows screen learning --rounds 5 --json benchmarks/results/game_boy.json

The game is the built-in quest, 4 frames a step, episodes of 750 steps, as in the document. Contenders take turns, round
after round; ratios are taken within a round and the median over the rounds is shown. The limit of n envs is n bare envs
with the same seeds and actions, shared out between plain loops, one on each usable core (but no more loops than envs),
which never wait for each other. A bar that is missed is shown as missed. In all, 5 to 6 minutes of 2 quiet cores.

`ram`, `screen`: stepping 1, 2, 4 and 8 envs with random actions. `learning`: env steps/s of training that optimises, as
document 004's targets do it (6 epochs, minibatches of 128), start-up and the final evaluation not counted. `train_20k`:
`make train-20k`, its printed training time. `memory`: 10,000 resets, 200 times opened and closed, and what an instance
adds to its process.
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
"""Env steps/s that document 004 gives for so many envs, with what it calls learning: it slept instead."""
DOCUMENTED_EPISODES = {1: 2.26, 2: 1.77, 4: 3.0}
"""Its episodes/s; those of one env had 500 steps."""
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
            found = ratio(rates, ours, "sb3 subproc")
            figures.append((f"{what}: {ours} / SB3's SubprocVecEnv", found, wanted, None))
    return figures


# -- learning ------------------------------------------------------------------------------------------------------
def learning(rounds: int, seconds: float) -> list[Figure]:
    """With RAM features; the documented figure is the bar of what `auto` means in a training: processes."""
    figures: list[Figure] = []
    print("\ntraining on the quest, RAM features: env steps/s of every round")
    for num_envs in NUM_ENVS:
        rates: Rates = {executor: [] for executor in ("auto", "thread")}
        for number in range(_few(rounds)):
            for executor, found in rates.items():
                found.append(_training_rate(executor, num_envs, number))
        for executor, found in rates.items():
            print(f"  {num_envs} envs, {executor:8s}" + "  ".join(f"{one:8,.0f}" for one in found), flush=True)
        median = {executor: statistics.median(found) for executor, found in rates.items()}
        bar = DOCUMENTED.get(num_envs)
        figures.append((f"{num_envs} envs: env steps/s with learning, auto", median["auto"], bar, None))
        figures.append((f"{num_envs} envs: env steps/s with learning, thread", median["thread"], None, None))
        told = f" (documented: {DOCUMENTED_EPISODES[num_envs]})" if num_envs in DOCUMENTED_EPISODES else ""
        episodes = median["auto"] / QUEST["episode_length"]
        figures.append((f"{num_envs} envs: whole episodes/s with learning, auto{told}", episodes, None, None))
    return figures


def _few(rounds: int) -> int:
    """Of what takes seconds: a third of them, at least one."""
    return max(1, rounds // 3)


def _training_rate(executor: str, num_envs: int, seed: int) -> float:
    with tempfile.TemporaryDirectory() as home:
        run = mv.train(
            "multiverse/Quest-v0", preset=False, seed=seed, executor=executor, num_envs=num_envs, env_kwargs=QUEST,
            env_steps=3_000 * num_envs, steps_per_env=750, epochs=6, batch_size=128, evaluate_every=0,
            evaluation_episodes=1, run_dir=Path(home) / "run", progress=False,
        )  # fmt: skip
    told = run.summary
    return float(told["env_steps"] / (told["seconds"] - told["evaluate_s"] - told["save_s"]))


def train_20k(rounds: int, seconds: float) -> list[Figure]:
    """The document's own command, in a process of its own; with screens it learns with a CNN, and is told only."""
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
    """(seconds, steps/s, episodes/s), as it prints them."""
    program = [sys.executable, str(TREE / "examples/game_boy/train.py"), "--steps", "20000", "--envs", "2"]
    program += ["--episode-length", "750", "--update-epochs", "6", "--observation", observation]
    with tempfile.TemporaryDirectory() as home:
        program += ["--output-dir", home]
        done = subprocess.run(program, cwd=TREE, capture_output=True, text=True, check=True)
    _, _, block = done.stdout.partition("PARALLEL TRAINING COMPLETE")
    labels = ("Training time", "Steps per second", "Episodes per second")
    found = [re.search(rf"^{label}: ([\d.]+)", block, re.MULTILINE) for label in labels]
    seconds, steps, episodes = (float(one.group(1)) if one else float("nan") for one in found)
    return seconds, steps, episodes


# -- memory --------------------------------------------------------------------------------------------------------
def memory(rounds: int, seconds: float) -> list[Figure]:
    """Of this process. The allocator keeps what it once had, so growth is taken after a tenth of the work."""
    env = make_quest(observation="screen", **QUEST)
    resets = _grown_mb(env.reset, RESETS)
    env.close()
    opened = _grown_mb(_open_and_close, OPENED)
    before = _private_mb()
    several = [make_quest(observation="screen", **QUEST) for _ in range(32)]
    for one in several:
        one.reset(seed=0)
        one.step(0)
    each = (_private_mb() - before) / len(several)
    for one in several:
        one.close()
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
    """Of this process alone. Pages of libraries are not in it: they are private or not by what other programs do."""
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
    parser.add_argument("--json", type=Path, help="write the figures here too")
    asked = parser.parse_args()
    origin, begun = provenance(), time.perf_counter()
    print(f"{usable_cores()} usable cores, Python {sys.version.split()[0]}, load {os.getloadavg()[0]:.2f}")
    results = {name: ROWS[name](asked.rounds, asked.seconds) for name in asked.rows}
    print(f"\n{'row':12s}{'figure':62s}{'measured':>9s}   bar")
    for name, figures in results.items():
        for what, value, bar, aim in figures:
            wanted, met = _verdict(value, bar, aim)
            print(f"{name:12s}{what:62s}{value:9.2f}   {wanted:18s}{met}")
    if asked.json:
        table = [
            {"row": name, "figure": what, "measured": value, "bar": bar, "aim": aim}
            for name, figures in results.items()
            for what, value, bar, aim in figures
        ]
        write_results(asked.json, origin, {"seconds": round(time.perf_counter() - begun), "figures": table})


if __name__ == "__main__":
    main()

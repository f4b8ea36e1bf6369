"""PPO on CartPole-v1, ours and RLlib's at equal settings on one node: env steps/s of training, and seconds to 475.

    python benchmarks/rllib.py --rllib-python /tmp/rllib-venv/bin/python
    python benchmarks/rllib.py --rllib-python … --rows speed --rounds 5 --json results.json

RLlib requires other package versions (ray[rllib] 2.60.0: gymnasium 1.2.2), so it has its own virtual environment,
outside the tree:

    python3 -m venv /tmp/rllib-venv
    grep -v -i '^gymnasium==' constraints.txt > /tmp/rllib-constraints.txt
    /tmp/rllib-venv/bin/python -m pip install --constraint /tmp/rllib-constraints.txt torch==2.13.0 'ray[rllib]==2.60.0'

Settings are those of our preset (8 envs × 32 steps, 20 epochs of one minibatch of 256 rows, two networks of 64 × 64);
RLlib's clip range has no schedule, so it is constantly 0.2 (`benchmarks/rllib_peer.py`). RLlib runs with its envs in
the main process (0 runners) and in two env runners, and the better one counts; torch uses one thread. Ours runs with
its default executor and in Ray actors. Contenders are measured in turn; ratios are medians of per-round ratios.

`speed`: training speed over 30,000 env steps (`--env-steps`), without start-up and evaluation, and final returns.
`to_475`: time of the whole command, including start-up, with an evaluation of 20 episodes every 10,000 env steps.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.provenance import provenance, write_results

TARGET, MOST_STEPS = 475, 100_000
RUNNERS = (0, 2)
OURS: dict[str, list[str]] = {"ours": [], "ours, ray": ["--executor", "ray", "--workers", "2"]}
LIMIT_S = 600


def output_of(command: list[str]) -> tuple[str, float]:
    begun = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}:\n{done.stdout}\n{done.stderr}")
    return done.stdout, time.perf_counter() - begun


def theirs(python: str, runners: int, seed: int, *more: str) -> tuple[dict[str, Any], float]:
    peer = str(Path(__file__).with_name("rllib_peer.py"))
    output, took_s = output_of([python, peer, f"--runners={runners}", f"--seed={seed}", *more])
    result: dict[str, Any] = json.loads(output.strip().splitlines()[-1])
    return result, took_s


def ours(flags: list[str], seed: int, *more: str) -> tuple[dict[str, Any], float]:
    with tempfile.TemporaryDirectory() as home:
        command = [sys.executable, "-m", "multiverse", "train", "CartPole-v1", "--seed", str(seed), "--run-dir",
                   f"{home}/run", "--evaluation-episodes", "20", *flags, *more]  # fmt: skip
        _, took_s = output_of(command)
        summary: dict[str, Any] = json.loads(Path(home, "run", "summary.json").read_text())
    return summary, took_s


def speed(python: str, rounds: int, env_steps: int) -> dict[str, Any]:
    results: dict[str, list[tuple[float, float]]] = {}
    for seed in range(1, rounds + 1):
        for name, flags in OURS.items():
            summary, _ = ours(flags, seed, "--env-steps", str(env_steps), "--evaluate-every", "0")
            rate = summary["env_steps"] / (summary["seconds"] - summary["evaluate_s"])
            results.setdefault(name, []).append((rate, summary["evaluation"]["mean_return"]))
        for runners in RUNNERS:
            summary, _ = theirs(python, runners, seed, f"--env-steps={env_steps}")
            rate = summary["env_steps"] / summary["train_s"]
            results.setdefault(f"rllib, {runners} runners", []).append((rate, summary["mean_return"]))
    print(f"\nspeed: {env_steps:,} env steps")
    for name, values in results.items():
        rates, returns = zip(*values)
        listed = ", ".join(f"{one:.0f}" for one in returns)
        print(f"  {name:18s}{statistics.median(rates):10,.0f} env steps/s   return {listed}")
    best = [max(each) for each in zip(*([rate for rate, _ in results[f"rllib, {r} runners"]] for r in RUNNERS))]
    ratios = {name: statistics.median(a[0] / b for a, b in zip(results[name], best)) for name in OURS}
    return _shown("speed", ratios, results)


def to_475(python: str, rounds: int, env_steps: int = 0) -> dict[str, Any]:
    results: dict[str, list[float]] = {}
    reached: dict[str, list[float]] = {}
    for seed in range(1, rounds + 1):
        for name, flags in OURS.items():
            summary, took_s = ours(flags, seed, "--target-return", str(TARGET), "--evaluate-every", "10000")
            results.setdefault(name, []).append(took_s)
            reached.setdefault(name, []).append(summary["evaluation"]["mean_return"])
        for runners in RUNNERS:
            summary, took_s = theirs(python, runners, seed, f"--env-steps={MOST_STEPS}", f"--target-return={TARGET}")
            results.setdefault(f"rllib, {runners} runners", []).append(took_s)
            reached.setdefault(f"rllib, {runners} runners", []).append(summary["mean_return"])
    print("\nto_475: seconds from the command, start-up included")
    for name, values in results.items():
        short = "" if min(reached[name]) >= TARGET else f"   NOT REACHED by all: {reached[name]}"
        print(f"  {name:18s}" + "  ".join(f"{value:6.1f}" for value in values) + short)
    best = [min(each) for each in zip(*(results[f"rllib, {r} runners"] for r in RUNNERS))]
    ratios = {name: statistics.median(b / a for a, b in zip(results[name], best)) for name in OURS}
    return {**_shown("to_475", ratios, results), "returns": reached}


def _shown(row: str, ratios: dict[str, float], runs: Any) -> dict[str, Any]:
    print("  × RLlib's better: " + ", ".join(f"{name} {value:.2f}" for name, value in ratios.items()), flush=True)
    return {"row": row, "ratios": ratios, "runs": runs}


ROWS: dict[str, Callable[[str, int, int], dict[str, Any]]] = {"speed": speed, "to_475": to_475}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rllib-python", required=True, help="the Python of RLlib's virtual environment")
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--env-steps", type=int, default=30_000, help="env steps of `speed`")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    origin = provenance()
    versions, _ = output_of([options.rllib_python, "-c", VERSIONS])
    origin["command"] = origin["command"].replace(options.rllib_python, "PYTHON")
    print(f"RLlib's: {versions.strip()}")
    results = [ROWS[row](options.rllib_python, options.rounds, options.env_steps) for row in options.rows]
    if options.json:
        write_results(options.json, origin, {"rllib": json.loads(versions), "rows": results})


VERSIONS = """
import importlib.metadata, json, platform
there = {name: importlib.metadata.version(name) for name in ("ray", "gymnasium", "torch", "numpy")}
print(json.dumps({"python": platform.python_version(), **there}))
"""

if __name__ == "__main__":
    main()

"""Speed of training and of stepping of this version, compared with an earlier one.

    git worktree add --detach ../before COMMIT
    python benchmarks/versions.py ../before
    python benchmarks/versions.py ../before --rows ppo_cartpole sac_pendulum --repeats 9 --json results.json

Each measurement is a separate process with the sources of one of the two versions. Rows of trainings report env steps
per second of one training, without start-up and evaluation, in one thread. Rows `step_…` report env steps per second of
`envs.step` with random actions drawn before. The versions alternate, and every other
repeat begins with the other one. The ratio is taken within a repeat; its median over the repeats is shown. Rows in
`…_torch` differentiate the losses of small networks in torch in both versions, the others choose as users get it.
A ratio below the bar is shown as missed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.provenance import TREE, provenance, write_results
from multiverse.training.runs.origin import git_commit

BAR, TORCH_BAR = 0.95, 0.85
LIMIT_S = 600.0

TRAIN = """
import importlib, json, sys, tempfile, torch
import multiverse as mv
torch.set_num_threads(1)
env, algorithm, settings, in_torch = json.loads(sys.argv[1])
if in_torch:
    for room in ("on_policy", "off_policy"):
        importlib.import_module(f"multiverse.algorithms.{room}").LARGEST_IN_NUMPY = 0
with tempfile.TemporaryDirectory() as home:
    summary = mv.train(
        env, algorithm=algorithm, seed=1, preset=False, evaluate_every=0, evaluation_episodes=2, progress=False,
        checkpoint_every_s=1e6, run_dir=f"{home}/run", **settings,
    ).summary
print(json.dumps({"rate": summary["env_steps"] / (summary["seconds"] - summary["evaluate_s"]), "from": mv.__file__}))
"""

STEP = """
import json, sys, time
import multiverse as mv
env, num_envs, executor, seconds = json.loads(sys.argv[1])
with mv.make_vec(env, num_envs, executor=executor) as envs:
    envs.action_space.seed(0)
    actions = [envs.action_space.sample() for _ in range(64)]
    envs.reset(seed=0)
    for duration in (seconds / 4, seconds):
        steps, began_at = 0, time.perf_counter()
        while time.perf_counter() - began_at < duration:
            for action in actions:
                envs.step(action)
            steps += len(actions) * num_envs
        rate = steps / (time.perf_counter() - began_at)
print(json.dumps({"rate": rate, "from": mv.__file__}))
"""
STEP_S = 2.0


@dataclass(frozen=True)
class Stepping:
    """Steps of one vector env, as both versions take them."""

    env: str
    num_envs: int
    executor: str
    program: str = STEP
    bar: float = BAR

    def argument(self) -> str:
        return json.dumps([self.env, self.num_envs, self.executor, STEP_S])


@dataclass(frozen=True)
class Row:
    """One training, as both versions run it."""

    env: str
    algorithm: str
    env_steps: int
    settings: dict[str, Any] = field(default_factory=dict)
    in_torch: bool = False
    program: str = TRAIN

    @property
    def bar(self) -> float:
        return TORCH_BAR if self.in_torch else BAR

    def argument(self) -> str:
        settings = {"env_steps": self.env_steps, **self.settings}
        return json.dumps([self.env, self.algorithm, settings, self.in_torch])


def _torch(row: Row) -> Row:
    return Row(row.env, row.algorithm, row.env_steps // 2, row.settings, in_torch=True)


LSTM: dict[str, Any] = {"memory": "lstm", "hidden_sizes": [64], "activation": "relu"}
REPLAY: dict[str, Any] = {"num_envs": 1, "learning_starts": 100, "batch_size": 256, "hidden_sizes": [256, 256],
                          "steps_per_env": 1, "updates_per_step": 1.0, "executor": "serial"}  # fmt: skip
SMALL: dict[str, Any] = {**REPLAY, "hidden_sizes": [64, 64]}
SEQUENCES: dict[str, Any] = {**SMALL, "memory": "gru", "memory_size": 64, "batch_size": 8, "updates_per_step": 0.25,
                             "sequence_length": 64}  # fmt: skip
CARTPOLE = Row("CartPole-v1", "ppo", 200_000, {"num_envs": 8, "steps_per_env": 128, "epochs": 4, "batch_size": 256})
ROWS: dict[str, Row | Stepping] = {
    "step_serial_cartpole": Stepping("CartPole-v1", 8, "serial"),
    "step_process_cartpole": Stepping("CartPole-v1", 64, "process"),
    "step_hybrid_cartpole": Stepping("CartPole-v1", 64, "hybrid"),
    "step_process_halfcheetah": Stepping("HalfCheetah-v5", 16, "process"),
    "ppo_cartpole": CARTPOLE,
    "ppo_cartpole_zoo": Row("CartPole-v1", "ppo", 60_000, {"num_envs": 8, "steps_per_env": 32, "epochs": 20}),
    "ppo_halfcheetah": Row("HalfCheetah-v5", "ppo", 80_000, {"num_envs": 8, "steps_per_env": 256, "epochs": 5}),
    "ppo_lstm": Row("CartPole-v1", "ppo", 40_000, {"num_envs": 8, "steps_per_env": 32, "epochs": 10, **LSTM}),
    "a2c_cartpole": Row("CartPole-v1", "a2c", 100_000, {"num_envs": 8}),
    "mappo_spread": Row("mpe2.simple_spread_v3:parallel_env", "ppo", 20_000, {"num_envs": 8, "critic": "central"}),
    "taac_spread": Row("mpe2.simple_spread_v3:parallel_env", "taac", 2_000, {"num_envs": 8}),
    "sac_pendulum": Row("Pendulum-v1", "sac", 2_500, REPLAY),
    "td3_pendulum": Row("Pendulum-v1", "td3", 3_000, REPLAY),
    "sac_halfcheetah": Row("HalfCheetah-v5", "sac", 2_500, REPLAY),
    "dqn_cartpole": Row("CartPole-v1", "dqn", 20_000, {"num_envs": 1, "learning_starts": 1000}),
    "discrete_sac_cartpole": Row("CartPole-v1", "discrete_sac", 3_000, REPLAY),
    "sac_memory": Row("Pendulum-v1", "sac", 1_200, SEQUENCES),
    "td3_memory": Row("Pendulum-v1", "td3", 1_200, SEQUENCES),
    "ppo_cartpole_torch": _torch(CARTPOLE),
    "ppo_lstm_torch": Row("CartPole-v1", "ppo", 20_000, {"num_envs": 8, "steps_per_env": 32, "epochs": 10, **LSTM},
                          in_torch=True),
    "sac_pendulum_torch": Row("Pendulum-v1", "sac", 1_500, SMALL, in_torch=True),
    "td3_pendulum_torch": Row("Pendulum-v1", "td3", 1_500, SMALL, in_torch=True),
    "dqn_cartpole_torch": Row("CartPole-v1", "dqn", 10_000, {"num_envs": 1, "learning_starts": 1000}, in_torch=True),
}  # fmt: skip


def rate(tree: Path, row: Row | Stepping) -> float:
    """Env steps per second of one measurement with the sources of this tree."""
    environment = {**os.environ, "PYTHONPATH": str(tree / "src")}
    process = subprocess.run(
        [sys.executable, "-c", row.program, row.argument()],
        env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    if process.returncode:
        raise SystemExit(f"the measurement with {tree} failed:\n{process.stderr}")
    result = json.loads(process.stdout.splitlines()[-1])
    if not Path(result["from"]).is_relative_to(tree):
        raise SystemExit(f"multiverse was imported from {result['from']} instead of {tree}")
    return float(result["rate"])


def measure(name: str, before: Path, repeats: int) -> dict[str, Any]:
    """The rates of both versions, in turns, and the median of their ratios."""
    row, trees = ROWS[name], {"before": before, "now": TREE}
    rates: dict[str, list[float]] = {version: [] for version in trees}
    for repeat in range(repeats):
        for version in sorted(trees, reverse=repeat % 2 == 1):
            rates[version].append(rate(trees[version], row))
    ratio = statistics.median(now / then for now, then in zip(rates["now"], rates["before"]))
    medians = {version: statistics.median(values) for version, values in rates.items()}
    verdict = "" if ratio >= row.bar else f"   missed: bar {row.bar}"
    print(f"{name:24s}{medians['before']:10,.0f}{medians['now']:10,.0f}{ratio:8.3f}{verdict}", flush=True)
    return {"row": name, "ratio": ratio, "bar": row.bar, "env_steps_per_s": rates}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("before", type=Path, help="directory with the sources of the earlier version")
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path, help="file for the results")
    options = parser.parse_args(arguments)
    before = options.before.resolve()
    if not (before / "src" / "multiverse").is_dir():
        parser.error(f"{options.before} has no src/multiverse: give the directory of a checkout")
    found, commit = provenance(), git_commit(before)
    print(f"{'env steps/s, median':24s}{'before':>10s}{'now':>10s}{'ratio':>8s}")
    rows = [measure(name, before, options.repeats) for name in options.rows]
    if options.json:
        write_results(options.json, found, {"before": None if commit is None else commit["commit"], "rows": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The model of docs/scaling.md: env steps/s of synchronous training by workers, nodes and network.

python benchmarks/scaling_model.py                            the table of the page
python benchmarks/scaling_model.py --step-us 2000 --row-bytes 28300 --gbit 10 --learn-us 40
python benchmarks/scaling_model.py --cores benchmarks/results/cores.json     comparison with results of `cores.py`
"""

from __future__ import annotations

import argparse
import json
import statistics
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

NODES = (1, 2, 4, 8, 16, 64)


@dataclass(frozen=True)
class Run:
    """Constants of one run. The defaults are those of CartPole-v1; docs/scaling.md documents their sources."""

    step_us: float = 15.8  # time of an env step in a worker, including its share of the policy
    learn_us: float = 8.5  # time of the learner per env step
    row_bytes: float = 66.0  # bytes received per env step
    noise_bytes: float = 8.0  # bytes of noise sent per env step
    weights_bytes: float = 18_440.0  # bytes of weights sent to each node per rollout
    gather_us: float = 1.5  # time of the caller per env step to merge the workers' rollouts
    call_ms: float = 2.3  # time of a call through Ray, independent of its size
    caller_ms: float = 0.7  # time of the caller per worker and step in lock-step
    lock_step: int = 0  # 1: a call per step, with actions; 0: a call per rollout, with weights
    envs_per_worker: int = 8
    steps_per_env: int = 128
    cores_per_node: int = 1
    gbit: float = 1.0  # rate of the head's link in each direction

    def seconds(self, nodes: int) -> dict[str, float]:
        """Return the seconds of one update, by phase."""
        workers = nodes * self.cores_per_node
        each = self.envs_per_worker * self.steps_per_env
        remote_steps = workers * each * (nodes - 1) / nodes  # env steps on nodes other than the head
        received_bytes = remote_steps * self.row_bytes
        sent_bytes = remote_steps * self.noise_bytes + (0 if self.lock_step else (nodes - 1) * self.weights_bytes)
        step = each * self.step_us * 1e-6
        call = self.call_ms * 1e-3 + workers * each * self.gather_us * 1e-6
        if self.lock_step:  # workers step while the caller serves others, and wait for it if there are many
            call = max(self.steps_per_env * self.call_ms * 1e-3, self._calls(workers) - step)
        return {
            "step": step,
            "ray": call,
            "network": (received_bytes + sent_bytes) * 8 / (self.gbit * 1e9),  # out before the rollout, back after it
            "learn": workers * each * self.learn_us * 1e-6,
        }

    def _calls(self, workers: int) -> float:
        """Return the seconds per rollout in which the caller is busy with the workers' calls, in lock-step."""
        return self.steps_per_env * workers * self.caller_ms * 1e-3

    def rate(self, nodes: int) -> float:
        steps = nodes * self.cores_per_node * self.envs_per_worker * self.steps_per_env
        return steps / sum(self.seconds(nodes).values())

    def on_one_machine(self, workers: int, step_us: float) -> float:
        """Return the seconds of a rollout on one machine with `workers` workers and cores."""
        spent = replace(self, step_us=step_us, cores_per_node=workers).seconds(1)
        return spent["step"] + spent["ray"]

    def most(self) -> tuple[float, str]:
        """Return the largest env steps/s with any number of nodes, and the limiting phase."""
        best = max((2**k for k in range(21)), key=self.rate)
        spent = self.seconds(best)
        if self.lock_step:  # workers step while the caller serves others
            spent["ray"] = self._calls(best * self.cores_per_node)
        del spent["step"]
        return self.rate(best), max(spent, key=lambda name: spent[name])


IMAGES = Run(step_us=2_000.0, learn_us=46.0, row_bytes=28_250.0, call_ms=3.0, lock_step=1)
EACH = {
    "CartPole-v1": Run(),
    "HalfCheetah-v5": Run(
        step_us=57.0, learn_us=10.7, row_bytes=134.0, noise_bytes=24.0, weights_bytes=22_900.0, steps_per_env=256
    ),
    "1 ms env": Run(step_us=1_016.0),
    "2 ms env, images, GPU": IMAGES,
    "the same, 10 Gbit": replace(IMAGES, gbit=10.0),
}


def show(name: str, run: Run) -> None:
    most, limit = run.most()
    rates = " | ".join(f"{run.rate(nodes):,.0f}" for nodes in NODES)
    print(f"| {name} | {rates} | {most:,.0f}, {limit} |")


# -- comparison with results -------------------------------------------------------------------------------------
COLLECTING = {  # time of a call, and of the caller's merge
    "process, in workers": Run(learn_us=0.0, call_ms=0.5, gather_us=0.6),
    "ray, in workers": Run(learn_us=0.0),
    "ray, lock-step": Run(learn_us=0.0, call_ms=2.0, lock_step=1),
}


def show_cores(rows: list[dict[str, Any]]) -> None:
    """Compare measured rates with the model, without network and learning. The step cost is fitted to one worker."""
    measured = {(row["env"], row["workers"]): row["env_steps_per_s"] for row in rows}
    workers = sorted({count for _, count in measured})
    print("| measured of the model, workers: | " + " | ".join(map(str, workers)) + " |")
    print("|---" * (len(workers) + 1) + "|")
    for env in dict.fromkeys(env for env, _ in measured):
        for name, run in COLLECTING.items():
            run = replace(run, steps_per_env=256 if env == "HalfCheetah-v5" else 128)
            rates = {count: statistics.median(measured[env, count][name]) for count in workers}
            steps = run.envs_per_worker * run.steps_per_env  # per worker
            step_us = 1e6 * (1 / rates[1] - run.on_one_machine(1, 0.0) / steps)
            ratios = [f"{rates[n] * run.on_one_machine(n, step_us) / (n * steps):.2f}" for n in workers]
            print(f"| {env}, {name} (a step {step_us:.0f} µs) | " + " | ".join(ratios) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in vars(Run()).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value))
    parser.add_argument("--cores", type=Path, help="a results file of cores.py")
    given = {name: value for name, value in vars(parser.parse_args()).items() if value is not None}
    if measured := given.pop("cores", None):
        show_cores(json.loads(measured.read_text())["rows"])
        return
    print("| env steps/s, nodes of one core | " + " | ".join(map(str, NODES)) + " | at most, by |")
    print("|---" * (len(NODES) + 2) + "|")
    for name, run in {"yours": Run(**given)}.items() if given else EACH.items():
        show(name, run)


if __name__ == "__main__":
    main()

"""docs/scaling.md's model in numbers: env steps/s of synchronous training against workers, nodes and their network.

python benchmarks/scaling_model.py                            the page's table
python benchmarks/scaling_model.py --step-us 2000 --row-bytes 28300 --gbit 10 --learn-us 40
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace

NODES = (1, 2, 4, 8, 16, 64)


@dataclass(frozen=True)
class Run:
    """Constants of one run; the defaults are CartPole-v1's, and where each comes from stands in docs/scaling.md."""

    step_us: float = 15.8  # an env step and its share of the policy's, in a worker
    learn_us: float = 8.5  # that the learner takes for it
    row_bytes: float = 66.0  # that come back of it
    noise_bytes: float = 8.0  # that go there for it
    weights_bytes: float = 18_440.0  # that go to each node for a rollout
    call_ms: float = 4.1  # that a call through Ray takes, whatever it carries
    lock_step: int = 0  # 1: a call a step, with actions; 0: a call a rollout, with weights
    envs_per_worker: int = 8
    steps_per_env: int = 128
    cores_per_node: int = 1
    gbit: float = 1.0  # of the head's link, each way

    def seconds(self, nodes: int) -> dict[str, float]:
        """Of one update, by what they are spent on."""
        workers = nodes * self.cores_per_node
        each = self.envs_per_worker * self.steps_per_env
        there = workers * each * (nodes - 1) / nodes  # env steps that are taken elsewhere
        back = there * self.row_bytes
        out = there * self.noise_bytes + (0 if self.lock_step else (nodes - 1) * self.weights_bytes)
        return {
            "step": each * self.step_us * 1e-6,
            "ray": self.call_ms * 1e-3 * (self.steps_per_env if self.lock_step else 1),
            "network": (back + out) * 8 / (self.gbit * 1e9),  # out before the rollout, back after it
            "learn": workers * each * self.learn_us * 1e-6,
        }

    def rate(self, nodes: int) -> float:
        steps = nodes * self.cores_per_node * self.envs_per_worker * self.steps_per_env
        return steps / sum(self.seconds(nodes).values())

    def most(self) -> tuple[float, str]:
        """Env steps/s with any number of nodes, and what it is that allows no more."""
        network_us = (self.row_bytes + self.noise_bytes) * 8 / (self.gbit * 1e3)
        return 1e6 / (self.learn_us + network_us), "learn" if self.learn_us > network_us else "network"


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in vars(Run()).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value))
    given = {name: value for name, value in vars(parser.parse_args()).items() if value is not None}
    print("| env steps/s, nodes of one core | " + " | ".join(map(str, NODES)) + " | at most, by |")
    print("|---" * (len(NODES) + 2) + "|")
    for name, run in {"yours": Run(**given)}.items() if given else EACH.items():
        show(name, run)


if __name__ == "__main__":
    main()

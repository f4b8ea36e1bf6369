"""Many copies of MPE's simple_push_v3 (package mpe2) in parallel, over the drop-in for AgileRL's vector env.

    python examples/grid_world/simple_push_v3_train.py
    python examples/grid_world/simple_push_v3_train.py --num-envs 4 --total-timesteps 2000

It collects with random actions and says so: the learner comes later. In multiverse itself the vector env is
`mv.make_vec(simple_push_v3.parallel_env, 8)`.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from examples.grid_world.settings import Config, configured

config: Config = {
    "num_envs": 8,  # Number of parallel environments
    "total_timesteps": 20_000,
    "seed": 0,
}
LINES = 10
"""Lines of progress."""


def make_env() -> Any:
    """One simple_push_v3: an adversary pushes an agent away from its landmark; 25 steps an episode."""
    from mpe2 import simple_push_v3

    return simple_push_v3.parallel_env()


class Returns:
    """The returns of all episodes that have ended, by agent."""

    def __init__(self, agents: Sequence[str], num_envs: int) -> None:
        self.ended: dict[str, list[float]] = {agent: [] for agent in agents}
        self._running = {agent: np.zeros(num_envs) for agent in agents}

    def add(self, rewards: dict[str, Any], terminated: dict[str, Any], truncated: dict[str, Any]) -> None:
        for agent, running in self._running.items():
            running += np.nan_to_num(rewards[agent])  # where an agent is not there the original says NaN
            over = np.asarray(terminated[agent], bool) | np.asarray(truncated[agent], bool)
            self.ended[agent] += running[over].tolist()
            running[over] = 0.0

    def told(self) -> str:
        """Mean and count for each agent."""
        ended = {agent: returns for agent, returns in self.ended.items() if returns}
        means = [f"{agent} {np.mean(returns):.2f}" for agent, returns in ended.items()]
        return ", ".join(means) + f" ({max(map(len, ended.values()))} episodes)" if means else "no episode has ended"


def collect(env: Any, config: Config) -> int:
    """Steps all envs with random actions until the steps are done; how many that were."""
    num_envs, total = config["num_envs"], config["total_timesteps"]
    returns, generator = Returns(env.agents, num_envs), np.random.default_rng(config["seed"])
    counts = {agent: env.single_action_space(agent).n for agent in env.agents}
    env.reset(seed=config["seed"])
    steps, next_line, begun = 0, total / LINES, time.perf_counter()
    while steps < total:
        actions = {agent: generator.integers(0, count, num_envs) for agent, count in counts.items()}
        _, rewards, terminated, truncated, _ = env.step(actions)
        returns.add(rewards, terminated, truncated)
        steps += num_envs
        if steps >= next_line:
            next_line += total / LINES
            speed = steps / (time.perf_counter() - begun)
            print(f"env steps {steps:,} of {total:,} | env steps/s {speed:,.0f} | returns {returns.told()}", flush=True)
    return steps


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0, 1 if something is not installed, 2 for a bad argument, 130 after Ctrl-C."""
    chosen = configured(config, "Steps many copies of simple_push_v3 with random actions.", arguments)
    try:
        from examples.grid_world import AsyncPettingZooVecEnv

        make_env().close()
    except ImportError as missing:
        print(f"simple_push_v3_train.py: {missing}: pip install 'multiverse[pettingzoo,mpe]'", file=sys.stderr)
        return 1
    env = AsyncPettingZooVecEnv([make_env for _ in range(chosen["num_envs"])])
    try:
        print(f"Envs: {chosen['num_envs']} × simple_push_v3 in {type(env).__name__}, agents {', '.join(env.agents)}")
        print("Learner: none yet, actions are random", flush=True)
        print(f"Collected: {collect(env, chosen):,} env steps", flush=True)
    except KeyboardInterrupt:
        warnings.simplefilter("ignore")  # `close` would warn of the step that was cut short
        print("Interrupted", flush=True)
        return 130
    finally:
        env.close()
    return 0


# No worker needs this guard: they do not import the script. It is here so that tests and notebooks can.
if __name__ == "__main__":
    sys.exit(main())

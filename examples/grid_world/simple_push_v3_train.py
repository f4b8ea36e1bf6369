"""Trains MPE's simple_push_v3 (package mpe2): an agent that runs to its landmark, and an adversary that pushes it away.

    python examples/grid_world/simple_push_v3_train.py
    python examples/grid_world/simple_push_v3_train.py --num-envs 4 --total-timesteps 20000

Each of the two has a learner of its own (`mv.train`: PPO, many copies in parallel, a run that can be resumed). What
they have learned then plays on the drop-in for AgileRL's vector env, beside an agent that acts at random.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from examples.grid_world.evaluation import UNSEEN_SEEDS
from examples.grid_world.settings import Config, configured

config: Config = {
    "num_envs": 8,  # Number of parallel environments
    "total_timesteps": 200_000,
    "seed": 0,
    "run_dir": "runs/simple_push_v3",
    "eval_episodes": 100,
}
ENV = "mpe2.simple_push_v3:parallel_env"
STEPS = 25
"""Of an episode."""
LINES = 10
"""Lines of progress."""

Act = Callable[[dict[str, Any]], dict[str, Any]]
"""Observations by agent, a row for every env → actions."""


def make_env() -> Any:
    """One simple_push_v3; 25 steps an episode."""
    from mpe2 import simple_push_v3

    return simple_push_v3.parallel_env()


def train(config: Config) -> Any:
    """A run of `mv.train` in a folder of its own, with a few lines about how it goes."""
    import multiverse as mv

    total = config["total_timesteps"]

    class Lines(mv.Hook):
        next_line = total / LINES

        def on_update(self, trainer: Any, report: Any) -> None:
            clock, recent = trainer.clock, trainer.session.recent
            if clock.updates == 1:
                learners = " and ".join(trainer.session.learners.by_group)
                print(f"Learner: PPO, one for {learners} each; run {trainer.directory.path}", flush=True)
            if clock.env_steps >= self.next_line:
                self.next_line += total / LINES
                returns = ", ".join(f"{agent} {returned:.2f}" for agent, returned in recent.by_agent.items())
                speed = f"{clock.env_steps / clock.seconds:,.0f}"
                words = f"env steps {clock.env_steps:,} of {total:,} | env steps/s {speed}"
                print(f"{words} | returns {returns} (last {len(recent)} episodes)", flush=True)

    how = {"num_envs": config["num_envs"], "env_steps": total, "seed": config["seed"], "evaluate_every": 0}
    return mv.train(ENV, root=config["run_dir"], hooks=[Lines()], progress=False, **how)


def distance(env: Any, act: Act, episodes: int) -> float:
    """How far the agent ends from its landmark, in the mean over episodes on seeds that no training sees."""
    found: list[float] = []
    while len(found) < episodes:
        observations, _ = env.reset(seed=UNSEEN_SEEDS + len(found))
        for _ in range(STEPS - 1):  # the last one would show the next episode
            observations, _, _, _, _ = env.step(act(observations))
        found += np.linalg.norm(observations["agent_0"][:, 2:4], axis=1).tolist()
    return float(np.mean(found[:episodes]))


def compare(run: Any, config: Config) -> None:
    """The trained agent and one that acts at random, each with the trained adversary."""
    import multiverse as mv
    from examples.grid_world import AsyncPettingZooVecEnv

    num_envs, policies, rng = config["num_envs"], mv.load(run), np.random.default_rng(config["seed"])
    env = AsyncPettingZooVecEnv([make_env for _ in range(num_envs)])

    def by_chance(observations: dict[str, Any]) -> dict[str, Any]:
        return {**policies.act(observations), "agent_0": rng.integers(0, 5, num_envs)}

    try:
        print(f"Envs: {num_envs} × simple_push_v3 in {type(env).__name__}, agents {', '.join(env.agents)}")
        trained, random = (distance(env, act, config["eval_episodes"]) for act in (policies.act, by_chance))
        told = f"trained agent {trained:.2f}, random agent {random:.2f}"
        print(f"Distance from its landmark, over {config['eval_episodes']} episodes: {told}", flush=True)
    finally:
        env.close()


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0, 1 if something is not installed, 2 for a bad argument, 130 after Ctrl-C."""
    chosen = configured(config, "Trains simple_push_v3, each agent with a learner of its own.", arguments)
    try:
        make_env().close()
    except ImportError as missing:
        print(f"simple_push_v3_train.py: {missing}: pip install 'multiverse[pettingzoo,mpe]'", file=sys.stderr)
        return 1
    try:
        run = train(chosen)
        print(f"Trained: {run.summary['env_steps']:,} env steps in {run.summary['seconds']:.1f} s", flush=True)
        if chosen["eval_episodes"]:
            compare(run, chosen)
        print(f"Run finished: {run.path}", flush=True)
    except KeyboardInterrupt:
        print(f"Interrupted; to go on: multiverse resume {chosen['run_dir']}", flush=True)
        return 130
    return 0


# No worker needs this guard: they do not import the script. It is here so that tests and notebooks can.
if __name__ == "__main__":
    sys.exit(main())

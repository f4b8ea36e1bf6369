"""Train MPE's simple_push_v3 (package mpe2): an agent moves to its landmark, and an adversary pushes it away.

    python examples/grid_world/simple_push_v3_train.py
    python examples/grid_world/simple_push_v3_train.py --num-envs 4 --total-timesteps 20000

Each of the two has its own learner (`mv.train`: PPO, many environments in parallel, a run that can be resumed). The
trained agents then play on the drop-in for AgileRL's vector env, and are compared with a random agent.
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
"""Number of steps in an episode."""
LINES = 10
"""Number of progress lines."""

Act = Callable[[dict[str, Any]], dict[str, Any]]
"""Maps observations by agent, one row per env, to actions."""


def make_env() -> Any:
    """Return a simple_push_v3 env, with 25 steps per episode."""
    from mpe2 import simple_push_v3

    return simple_push_v3.parallel_env()


def train(config: Config) -> Any:
    """Train with `mv.train`, printing progress lines; return the run."""
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
                position = f"env steps {clock.env_steps:,} of {total:,} | env steps/s {speed}"
                print(f"{position} | returns {returns} (last {len(recent)} episodes)", flush=True)

    settings = {"num_envs": config["num_envs"], "env_steps": total, "seed": config["seed"], "evaluate_every": 0}
    return mv.train(ENV, root=config["run_dir"], hooks=[Lines()], progress=False, **settings)


def distance(env: Any, act: Act, episodes: int) -> float:
    """Return the agent's final distance to its landmark, averaged over episodes on unseen seeds."""
    distances: list[float] = []
    while len(distances) < episodes:
        observations, _ = env.reset(seed=UNSEEN_SEEDS + len(distances))
        for _ in range(STEPS - 1):  # the last step would return the next episode's observation
            observations, _, _, _, _ = env.step(act(observations))
        distances += np.linalg.norm(observations["agent_0"][:, 2:4], axis=1).tolist()
    return float(np.mean(distances[:episodes]))


def compare(run: Any, config: Config) -> None:
    """Compare the trained agent with a random one, both with the trained adversary."""
    import multiverse as mv
    from examples.grid_world import AsyncPettingZooVecEnv

    num_envs, policies, rng = config["num_envs"], mv.load(run), np.random.default_rng(config["seed"])
    env = AsyncPettingZooVecEnv([make_env for _ in range(num_envs)])

    def act_randomly(observations: dict[str, Any]) -> dict[str, Any]:
        return {**policies.act(observations), "agent_0": rng.integers(0, 5, num_envs)}

    try:
        print(f"Envs: {num_envs} × simple_push_v3 in {type(env).__name__}, agents {', '.join(env.agents)}")
        trained, random = (distance(env, act, config["eval_episodes"]) for act in (policies.act, act_randomly))
        distances = f"trained agent {trained:.2f}, random agent {random:.2f}"
        print(f"Distance from its landmark, over {config['eval_episodes']} episodes: {distances}", flush=True)
    finally:
        env.close()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the script; return the exit status: 0, 1 for a missing package, 2 for an invalid argument, 130 for Ctrl-C."""
    chosen = configured(config, "Train simple_push_v3 with one learner per agent.", arguments)
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
        print(f"Interrupted. To resume: multiverse resume {chosen['run_dir']}", flush=True)
        return 130
    return 0


# Workers do not need this guard, because they do not import the script. Tests and notebooks do.
if __name__ == "__main__":
    sys.exit(main())

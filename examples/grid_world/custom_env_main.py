"""Train a team in the grid world with PPO of Stable-Baselines3 on many environments in parallel.

    python examples/grid_world/custom_env_main.py
    python examples/grid_world/custom_env_main.py --num-envs 1 --total-timesteps 20000 --no-video

Every key of `config` has a flag (see --help). The same training in multiverse:
`mv.train("examples.grid_world.worlds:make_env", num_envs=8, env_steps=250_000)`.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from examples.grid_world.evaluation import evaluate, random_team
from examples.grid_world.settings import Config, configured
from examples.grid_world.tracking import Run, start_run
from examples.grid_world.video import need_pillow
from examples.grid_world.worlds import make_env

config: Config = {
    "num_envs": 8,  # Number of parallel environments; 1: no worker process, for debugging
    "total_timesteps": 250_000,
    "seed": 0,
    "preset": "small",
    "task": "reach",
    "vec_env": "subproc",
    "workers": None,
    "run_dir": "runs/grid_world",
    "tracker": "auto",
    "video": True,
    "eval_episodes": 100,
}


def make_vec_env(config: Config, videos: Path | None = None) -> Any:
    """Return the vector env of a config. Only env 0 records videos."""
    from examples.grid_world.learner import DummyVecEnv, SubprocVecEnv

    num_envs = config["num_envs"]
    env_fns = [functools.partial(make_env, config["preset"], config["task"]) for _ in range(num_envs)]
    env_fns[0] = functools.partial(env_fns[0], videos=videos)
    if num_envs == 1 or config["vec_env"] == "dummy":
        return DummyVecEnv(env_fns)
    return SubprocVecEnv(env_fns, workers=config["workers"])


def train(config: Config, run: Run) -> dict[str, Any]:
    """Train and evaluate; return the summary of the run, which is partial after Ctrl-C."""
    from examples.grid_world.learner import Learner

    env = make_vec_env(config, run.videos if config["video"] else None)
    try:
        print(f"Envs: {config['num_envs']} in {type(env).__name__}, {worker_count(env)} worker processes", flush=True)
        learner = Learner(env, config, functools.partial(report, run, config["total_timesteps"]))
        summary = learner.learn()
        learner.save(run.model)
    finally:
        env.close()
    print("Trained: {env_steps:,} env steps in {seconds} s, {env_steps_per_second:,} env steps/s".format(**summary))
    if summary["status"] == "finished" and config["eval_episodes"]:
        summary |= compare(learner, config)
    return summary


def report(run: Run, total: int, metrics: dict[str, float], step: int) -> None:
    """Log metrics to the run and print a progress line."""
    run.log(metrics, step)
    names = {"time/fps": "env steps/s", "rollout/ep_rew_mean": "return", "rollout/success_rate": "success"}
    parts = [f"{name} {metrics[key]:,.4g}" for key, name in names.items() if key in metrics]
    print(" | ".join([f"env steps {step:,} of {total:,}", *parts]), flush=True)


def worker_count(env: Any) -> int:
    """Return the number of worker processes."""
    return len({process.pid for process in getattr(env, "processes", ())})


def compare(learner: Any, config: Config) -> dict[str, float]:
    """Evaluate the trained team and a random team on the same seeds."""
    build, episodes = functools.partial(make_env, config["preset"], config["task"]), config["eval_episodes"]
    trained = evaluate(learner.act, build, episodes).success_rate
    random = evaluate(random_team(build().action_space.nvec), build, episodes).success_rate
    print(f"Success on {episodes} unseen seeds: trained team {trained:.2f}, random team {random:.2f}")
    return {"eval/success_rate": trained, "eval/random_success_rate": random}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the script; return the exit status: 0, 1 for a missing package, 2 for an invalid argument, 130 for Ctrl-C."""
    chosen = configured(config, "Train a team in the grid world.", arguments)
    try:
        import examples.grid_world.learner  # noqa: F401 - report missing packages before the run is created

        if chosen["video"]:
            need_pillow()
        run = start_run(Path(chosen["run_dir"]), chosen, chosen["tracker"])
    except (ImportError, OSError) as error:
        print(f"custom_env_main.py: {error}", file=sys.stderr)
        return 1
    print(f"Run: {run.folder} ({run.name})", flush=True)
    summary: dict[str, Any] = {"status": "failed"}
    try:
        summary = train(chosen, run)
    except KeyboardInterrupt:  # before or after training; `Learner.learn` handles it in between
        summary = {"status": "interrupted"}
    finally:
        run.finish(summary)
    print(f"Run {summary['status']}: {run.folder}", flush=True)
    return 0 if summary["status"] == "finished" else 130


# Workers do not need this guard, because they do not import the script. Tests and notebooks do.
if __name__ == "__main__":
    sys.exit(main())

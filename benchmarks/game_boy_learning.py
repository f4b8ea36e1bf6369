"""Learning results of PPO in Lantern Vale, with its preset: every seed, from power-on, compared with a random agent.

    python benchmarks/game_boy_learning.py                                    5 seeds, two cores each
    python benchmarks/game_boy_learning.py --tasks quest --seeds 1 --env-steps 200000       a first look
    python benchmarks/game_boy_learning.py --out quest --limit-s 580 --jobs 5 --json benchmarks/results/game_boy.json
    python benchmarks/game_boy_learning.py --out quest --curve docs/pictures/quest_learning.png --video docs/quest.mp4
    python benchmarks/game_boy_learning.py --tasks screens --seeds 1          from screens alone, for half an hour

Training episodes start at any stage of the quest (the preset's curriculum). The measured episodes do not: the final
weights play 100 episodes from power-on on unseen seeds, with at most 1,500 steps of 8 frames each (3 minutes 21 seconds
of game). "crypt" is the share of episodes that reach the dungeon, "won" the share of those that end with the lantern,
according to the game's RAM, with sampled actions; "crypt_best" and "won_best" are the same with the most likely
actions. "minutes" is the training time on two cores.

A run is a process with two workers; `--jobs` runs are made in parallel (default: half of the usable cores). Options and
the handling of interrupted runs are those of `learning.py`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import multiverse as mv
from benchmarks.learning import Runs, parser_for, run_and_report, run_command_line
from benchmarks.team_learning import FIGURES, load_result, report_task
from multiverse.core.seeds import evaluation_seed
from multiverse.envs.game_boy import make_quest
from multiverse.executors.machine import usable_cores
from multiverse.training.recording import VideoFile

QUEST, SCREENS = "multiverse/Quest-v0", "multiverse/QuestScreen-v0"
EPISODES, LONGEST = 100, 1_500
CORES = 2
"""Number of cores per run."""

Act = Callable[[Any], Any]
"""Maps a batch of observations to a batch of actions."""


@dataclass(frozen=True, eq=False)
class Task:
    """A player and the targets of its figures: lower bounds, or upper bounds for those in `at_most`."""

    name: str
    targets: Mapping[str, float]
    at_most: tuple[str, ...] = ()
    env: str = QUEST
    settings: Mapping[str, Any] = field(default_factory=dict)
    on_every_seed, beside = False, None

    def reached(self, name: str, value: float) -> bool:
        return value <= self.targets[name] if name in self.at_most else value >= self.targets[name]


TASKS = (
    Task("random", {"crypt": 0.01, "won": 0.01}, ("crypt", "won")),
    Task("quest", {"crypt": 0.9, "won": 0.5, "minutes": 30.0}, ("minutes",)),
    Task("screens", {"crypt": 0.9, "won": 0.5, "minutes": 30.0}, ("minutes",), SCREENS, {"minutes": 29.5}),
)
USUAL = ("random", "quest")


# -- playing -----------------------------------------------------------------------------------------------------
def play(act: Act, episodes: int | None = None, longest: int | None = None, env: str = QUEST) -> dict[str, float]:
    """Play episodes from power-on; return the shares of successes and the mean stages and lengths."""
    episodes, longest = episodes or EPISODES, longest or LONGEST
    num_envs, results = min(10, episodes), dict[int, dict[str, Any]]()
    options: dict[str, Any] = {"env_kwargs": {"episode_length": longest}, "autoreset": "disabled"}
    with mv.make_vec(env, num_envs, "process", workers=min(CORES, num_envs), **options) as envs:
        for first in range(0, episodes, num_envs):
            ids = list(range(min(num_envs, episodes - first)))
            observations, _ = envs.reset(seed=[evaluation_seed(0, first + i) for i in range(num_envs)])
            while ids:
                actions = np.asarray(act(observations[ids]))
                stepped, _, terminated, truncated, infos = envs.step(actions, env_ids=ids)
                observations[ids] = stepped
                finished = [row for row in range(len(ids)) if terminated[row] or truncated[row]]
                for row in finished:
                    results[first + ids[row]] = {
                        name: infos[name][row] for name in ("entered_crypt", "won", "progress")
                    }
                    results[first + ids[row]]["length"] = envs.episode_lengths[ids[row]]
                ids = [one for row, one in enumerate(ids) if row not in finished]
    means = {name: float(np.mean([one[name] for one in results.values()])) for name in results[0]}
    return {"crypt": means["entered_crypt"], "won": means["won"], "stages": means["progress"], "steps": means["length"]}


def random_agent(seed: int) -> Act:
    rng = np.random.default_rng(seed)
    return lambda observations: rng.integers(0, 6, len(observations))


def measured_run(run: mv.Run) -> dict[str, Any]:
    policy, summary = mv.load(run), run.summary
    best = play(policy.act, env=summary["env"])
    return {
        **play(lambda rows: policy.act(rows, deterministic=False), env=summary["env"]),
        **{f"{name}_best": best[name] for name in ("crypt", "won", "steps")},
        "env_steps": summary["env_steps"],
        "minutes": (summary["seconds"] - summary["evaluate_s"]) / 60.0,
    }


# -- one run -----------------------------------------------------------------------------------------------------
def one_run(task: Task, seed: int, where: Path, env_steps: int | None) -> None:
    """Train or resume a run, and measure it. Runs in a separate process that ends with its parent."""
    from multiverse.executors.launch.orphan_guard import watch_process

    watch_process(os.getppid())
    if task.name == "random":
        where.mkdir(parents=True, exist_ok=True)
        result: dict[str, Any] = play(random_agent(seed))
    elif (where / "config.yaml").exists():
        result = measured_run(mv.resume(where, progress=False))
    else:
        shutil.rmtree(where, ignore_errors=True)  # it was stopped before the first checkpoint
        settings: dict[str, Any] = {"executor": "process", "workers": CORES, "evaluate_every": 0, **task.settings}
        settings |= {"evaluation_episodes": 1, **({} if env_steps is None else {"env_steps": env_steps})}
        result = measured_run(mv.train(task.env, seed=seed, run_dir=where, progress=False, **settings))
    temporary = where / f"{FIGURES}.new"
    temporary.write_text(json.dumps({"seed": seed, **result}))
    temporary.rename(where / FIGURES)


def draw_curve(runs: list[Path], picture: Path) -> None:
    """Plot the mean return of training episodes, which start at any stage, by env steps."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4))
    for run in runs:
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        rows = [(line["env_steps"], line["mean_return"]) for line in lines if line.get("mean_return") is not None]
        axes.plot(*zip(*rows), label=run.name)
    axes.set(xlabel="env steps", ylabel="mean return of the last 100 training episodes")
    axes.legend()
    figure.tight_layout()
    figure.savefig(picture, dpi=120)


def film(run: Path, video: Path) -> None:
    """Record the first won episode from power-on, with sampled actions, at double speed."""
    policy, info = mv.load(run), dict[str, Any]()
    env = make_quest(observation="ram", episode_length=LONGEST, render_mode="rgb_array")
    for number in range(EPISODES):
        observation, _ = env.reset(seed=evaluation_seed(0, number))
        with VideoFile(video, 2 * env.metadata["render_fps"]) as frames:
            ended = False
            while not ended:
                frames.add(env.render().repeat(2, axis=0).repeat(2, axis=1))
                action = int(policy.act(observation, deterministic=False))
                observation, _, terminated, truncated, info = env.step(action)
                ended = terminated or truncated
        if info["success"]:
            break
    env.close()


def measure_all(out: Path, options: argparse.Namespace) -> bool:
    """Run unfinished runs and print the results; return whether all are finished."""
    tasks = [task for task in TASKS if task.name in (options.tasks or USUAL)]
    runs, before = Runs(out, options.env_steps, Path(__file__), load_result), dict[str, Any]()
    done = run_and_report(
        out, options, tasks, runs, load_result, lambda task, found: report_task(task, found, options.seeds, before)
    )
    if options.curve:
        draw_curve(sorted(path.parent for path in out.glob("quest-*/metrics.jsonl")), options.curve)
    if options.video:
        film(out / "quest-1", options.video)
    return done


def main() -> int:
    parser = parser_for(__doc__, TASKS, EPISODES)
    parser.set_defaults(jobs=max(1, usable_cores() // CORES))
    parser.add_argument("--curve", type=Path, help="file for a plot of the learning curves")
    parser.add_argument("--video", type=Path, help="file for a video of the first seed's policy")
    return run_command_line(parser.parse_args(), TASKS, one_run, measure_all)


if __name__ == "__main__":
    sys.exit(main())

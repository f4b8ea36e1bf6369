"""How well PPO learns to get through Lantern Vale, with its preset: every seed, from power-on, beside a random agent.

    python benchmarks/game_boy_learning.py                            5 seeds of 30 minutes each, on all usable cores
    python benchmarks/game_boy_learning.py --minutes 2 --seeds 1      a first look
    python benchmarks/game_boy_learning.py --out quest --json benchmarks/results/game_boy_learning.json \
        --curve docs/quest_learning.png --video docs/quest.mp4

Training begins at any stage of the quest (the preset's curriculum). What is told here does not: final weights, 100
episodes from power-on with seeds that no training sees, at most 1,500 steps of 8 frames each (3 minutes 21 seconds of
game). "crypt" is the share of episodes that reach the dungeon, "won" that of those that end with the lantern;
deterministic, and with actions drawn from the policy. Ctrl-C ends the run under way with a checkpoint; the same command
goes on with it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import multiverse as mv
from benchmarks.provenance import provenance, write_results
from multiverse.contracts.seeds import evaluation_seed
from multiverse.envs.game_boy import make_quest

QUEST = "multiverse/Quest-v0"
EPISODES, LONGEST = 100, 1_500
BARS = {"crypt": 0.9, "won": 0.5}
RANDOM_AT_MOST = 0.01

Act = Callable[[Any], Any]
"""A batch of observations → a batch of actions."""


def trained(seed: int, minutes: float, out: Path) -> mv.Run:
    """Begun, gone on with, or finished already."""
    where = out / f"seed-{seed}"
    if (where / "config.yaml").exists():
        return mv.resume(where, minutes=minutes, progress=False)
    return mv.train(QUEST, seed=seed, minutes=minutes, evaluate_every=0, run_dir=where, progress=False)


def played(act: Act, episodes: int) -> dict[str, float]:
    """Shares of episodes from power-on, and the mean of their stages, health and length."""
    num_envs = min(10, episodes)
    found: dict[int, dict[str, Any]] = {}
    env_kwargs = {"episode_length": LONGEST}
    with mv.make_vec(QUEST, num_envs, "process", env_kwargs=env_kwargs, autoreset="disabled") as envs:
        for first in range(0, episodes, num_envs):
            ids = list(range(min(num_envs, episodes - first)))
            observations, _ = envs.reset(seed=[evaluation_seed(0, first + i) for i in range(num_envs)])
            while ids:
                actions = np.asarray(act(observations[ids]))
                stepped, _, terminated, truncated, infos = envs.step(actions, env_ids=ids)
                observations[ids] = stepped
                over = [row for row in range(len(ids)) if terminated[row] or truncated[row]]
                for row in over:
                    found[first + ids[row]] = {name: infos[name][row] for name in ("entered_crypt", "won", "progress")}
                    found[first + ids[row]]["length"] = envs.episode_lengths[ids[row]]
                ids = [one for row, one in enumerate(ids) if row not in over]
    means = {name: float(np.mean([one[name] for one in found.values()])) for name in found[0]}
    return {"crypt": means["entered_crypt"], "won": means["won"], "stages": means["progress"], "steps": means["length"]}


def random_agent(seed: int) -> Act:
    rng = np.random.default_rng(seed)
    return lambda observations: rng.integers(0, 6, len(observations))


def row_of(name: str, figures: dict[str, float]) -> str:
    told = ", ".join(f"{key} {value:.2f}" for key, value in figures.items() if key != "steps")
    return f"{name:28s}{told}, {figures['steps']:.0f} steps"


# -- curve and video -----------------------------------------------------------------------------------------------
def draw_curve(runs: list[Path], picture: Path) -> None:
    """The training episodes' mean return, which begin at any stage, by env steps."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4))
    for run in runs:
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        rows = [(line["env_steps"], line["mean_return"]) for line in lines if "mean_return" in line]
        axes.plot(*zip(*rows), label=run.name)
    axes.set(xlabel="env steps", ylabel="mean return of the last 100 training episodes")
    axes.legend()
    figure.tight_layout()
    figure.savefig(picture, dpi=120)


def film(run: Path, video: Path) -> None:
    """One episode from power-on, deterministic, three times as large."""
    import imageio_ffmpeg

    policy, env = mv.load(run), make_quest(observation="ram", episode_length=LONGEST, render_mode="rgb_array")
    size = (480, 432)
    writer = imageio_ffmpeg.write_frames(str(video), size, fps=env.metadata["render_fps"], quality=6)
    writer.send(None)
    observation, _ = env.reset(seed=evaluation_seed(0, 0))
    over = False
    while not over:
        writer.send(np.ascontiguousarray(env.render().repeat(3, axis=0).repeat(3, axis=1)))
        observation, _, terminated, truncated, _ = env.step(policy.act(observation))
        over = terminated or truncated
    writer.close()
    env.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--minutes", type=float, default=30.0, help="of training, for each seed")
    parser.add_argument("--episodes", type=int, default=EPISODES)
    parser.add_argument("--out", type=Path, default=Path("runs/game_boy_learning"), help="the runs")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    parser.add_argument("--curve", type=Path, help="draw the learning curves there")
    parser.add_argument("--video", type=Path, help="film the first seed's policy there")
    asked = parser.parse_args()
    origin, rows = provenance(), []
    by_chance = played(random_agent(0), asked.episodes)
    print(row_of("random", by_chance), flush=True)
    for seed in range(1, asked.seeds + 1):
        run = trained(seed, asked.minutes, asked.out)
        policy, told = mv.load(run), run.summary
        found = {
            "seed": seed,
            "env_steps": told["env_steps"],
            "env_steps_per_s": told["env_steps_per_s"],
            "deterministic": played(policy.act, asked.episodes),
            "drawn": played(lambda rows, policy=policy: policy.act(rows, deterministic=False), asked.episodes),
        }
        rows.append(found)
        print(f"seed {seed}: {told['env_steps']:,} env steps, {told['env_steps_per_s']:,.0f}/s")
        print(row_of("  deterministic", found["deterministic"]) + "\n" + row_of("  drawn", found["drawn"]), flush=True)
    for how in ("deterministic", "drawn"):
        for key, bar in BARS.items():
            every = [row[how][key] for row in rows]
            met = "met" if np.mean(every) >= bar else "MISSED"
            told = " ".join(f"{one:.2f}" for one in every)
            print(f"{how}, {key}: {told}; mean {np.mean(every):.2f}, bar {bar:g}: {met}")
    print(f"random, won: {by_chance['won']:.2f}, at most {RANDOM_AT_MOST:g}")
    runs = [asked.out / f"seed-{row['seed']}" for row in rows]
    if asked.json:
        write_results(asked.json, origin, {"minutes": asked.minutes, "random": by_chance, "seeds": rows})
    if asked.curve:
        draw_curve(runs, asked.curve)
    if asked.video:
        film(runs[0], asked.video)


if __name__ == "__main__":
    main()

"""Draw the README's picture of training speed, ours and other libraries', from results of `training.py`.

python benchmarks/picture.py [benchmarks/results/training.json] [docs/pictures/beside_peers.png]
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

HERE = Path(__file__).resolve().parent
SHOWN = {
    "cartpole": ("PPO, CartPole-v1\n8 envs", "SB3"),
    "halfcheetah": ("PPO, HalfCheetah-v5\n8 envs", "SB3"),
    "simple_spread": ("PPO, simple_spread\n8 envs × 3 agents", "SB3 + SuperSuit"),
    "recurrent": ("recurrent PPO,\nCartPole without velocities", "sb3-contrib"),
}
OURS, THEIRS = "#0072b2", "#bbbbbb"


def medians(row: dict[str, Any]) -> tuple[float, float]:
    """Return (ours with the default executor, the best of the other library), in env steps per second."""
    speed = {name: statistics.median(run[0] for run in runs) for name, runs in row["runs"].items()}
    return speed["ours, auto"], max(one for name, one in speed.items() if not name.startswith("ours"))


def draw(rows: dict[str, dict[str, Any]], caption: str) -> Figure:
    figure = Figure(figsize=(9.6, 2.9), layout="constrained")
    for cell, (name, (title, peer)) in zip(figure.subplots(1, len(SHOWN)), SHOWN.items()):
        ours, theirs = medians(rows[name])
        bars = cell.bar(["multiverse", peer], [ours, theirs], color=[OURS, THEIRS], width=0.62)
        cell.bar_label(bars, [f"{ours:,.0f}", f"{theirs:,.0f}"], padding=2, fontsize=9)
        cell.set_title(title, fontsize=10)
        cell.set_yticks([])
        cell.margins(y=0.16)
        cell.tick_params(axis="x", length=0, labelsize=9)
        cell.spines[["left", "right", "top"]].set_visible(False)
    figure.supxlabel(f"env steps per second of training, {caption}", fontsize=8.5)
    return figure


def main(arguments: list[str]) -> None:
    source = Path(arguments[0]) if arguments else HERE / "results" / "training.json"
    target = Path(arguments[1]) if arguments[1:] else HERE.parent / "docs" / "pictures" / "beside_peers.png"
    results = json.loads(source.read_text())
    origin = results["provenance"]
    caption = (
        f"equal settings, medians of turns in one run on {origin['usable_cores']} cores; commit {origin['commit'][:7]}"
    )
    draw({row["row"]: row for row in results["rows"]}, caption).savefig(target, dpi=130)
    print(target)


if __name__ == "__main__":
    main(sys.argv[1:])

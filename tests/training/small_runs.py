"""Small runs for the tests, and the comparison of two of them."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from multiverse.training.config.budget import PARTS
from multiverse.training.runs.tables import StoredTable
from multiverse.training.saved_runs import checkpoint_of

SMALL: dict[str, Any] = {
    "seed": 5,
    "num_envs": 4,
    "env_steps": 2_000,
    "steps_per_env": 25,
    "epochs": 2,
    "batch_size": 32,
    "evaluate_every": 0,
    "evaluation_episodes": 1,
    "executor": "serial",
    "normalize_observations": True,
    "normalize_rewards": True,
    "preset": False,
}


def digest(run: Path | str | Any) -> str:
    """Return a digest of everything in the last checkpoint that equal runs share: weights, moments, noise, envs."""
    return hashlib.sha256(repr(_plain(checkpoint_of(run).state["session"])).encode()).hexdigest()


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(value[key]) for key in sorted(value)}
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.shape, value.tobytes()
    if isinstance(value, StoredTable):  # its records, however many files they are in
        sizes = {piece.bytes // piece.count for piece in value._pieces}
        whole = b"".join(one.tobytes() for size in sizes for one in value.pieces(np.dtype(f"V{size}")))
        return value.first, value.last, hashlib.sha256(whole).hexdigest()
    return value


def lines_of(run: Path | str, name: str) -> list[dict[str, Any]]:
    """The lines of a run's growing file, without durations and times."""
    timed = {"seconds", "env_steps_per_s", "time", *(f"{part}_share" for part in PARTS)}
    rows = [json.loads(line) for line in Path(run, name).read_text().splitlines()]
    return [{key: value for key, value in row.items() if key not in timed} for row in rows]

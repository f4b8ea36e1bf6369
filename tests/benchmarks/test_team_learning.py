"""What teams are measured against plays as it should, and the table says what was reached."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("mpe2")

from mpe2 import simple_spread_v3
from pettingzoo.classic import connect_four_v3

import benchmarks.team_learning as teams
from benchmarks.provenance import TREE
from benchmarks.team_players import assigned, one_ply
from multiverse.training.config.train_config import presets


def board(*rows: str) -> dict[str, Any]:
    """The lowest rows of a board: x is one's own."""
    planes = np.zeros((6, 7, 2), np.int8)
    for at, row in enumerate(rows, 6 - len(rows)):
        for column, piece in enumerate(row):
            if piece != ".":
                planes[at, column, "xo".index(piece)] = 1
    return {"observation": planes}


WINS = {
    "in a row": (board("xxx.oo."), 3),
    "in a column": (board("x......", "x......", "x......"), 0),
    "in a diagonal": (board("..xo...", ".xoo...", "xoox..."), 3),
    "in the other diagonal": (board("...ox..", "...oox.", "...xoox"), 3),
    "with a gap": (board("xx.xo.."), 2),
    "rather than block": (board("xxx....", "ooo...."), 3),
}


@pytest.mark.parametrize("name", WINS)
def test_a_one_ply_player_takes_a_win(name: str) -> None:
    seen, column = WINS[name]
    open_now = np.ones(7, np.int8)
    for k in range(5):
        assert one_ply(seen, open_now, np.random.default_rng(k)) == column


def test_it_blocks_a_loss_and_takes_only_open_columns() -> None:
    assert one_ply(board("ooo.x.."), np.ones(7, np.int8), np.random.default_rng(0)) == 3
    closed = np.array([0, 0, 0, 0, 0, 1, 0], np.int8)
    assert one_ply(board("ooo.x.."), closed, np.random.default_rng(0)) == 5


def test_it_beats_a_random_player() -> None:
    env, rng, won = connect_four_v3.env(), np.random.default_rng(0), 0
    for game in range(30):
        env.reset(seed=game)
        while env.agents:
            seen, reward, terminated, truncated, _ = env.last()
            ours = env.agent_selection == f"player_{game % 2}"
            won += ours and reward > 0
            mask = None if terminated or truncated else seen["action_mask"]
            if mask is None:
                env.step(None)
            else:
                env.step(one_ply(seen, mask, rng) if ours else int(rng.choice(np.flatnonzero(mask))))
    assert won >= 22


def test_a_team_that_is_assigned_landmarks_is_far_better_than_a_random_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(teams, "EPISODES", 15)
    env = simple_spread_v3.parallel_env()
    scripted = np.mean(teams.played(env, lambda all_of: {a: assigned(seen) for a, seen in all_of.items()})[0])
    assert scripted > np.mean(teams.played(env, teams.at_random())[0]) + 12


def test_every_task_has_a_preset() -> None:
    assert {(task.env, "ppo") for task in teams.TASKS} <= set(presets())


def test_the_table_says_what_was_reached(capsys: pytest.CaptureFixture[str]) -> None:
    push, *_, four = teams.TASKS
    assert teams.shown(push, [{"seed": 1, "ratio": 0.3}], 1)["figures"]["ratio"]["verdict"] == "reached"
    assert teams.shown(push, [{"seed": 1, "ratio": 0.6}], 1)["figures"]["ratio"]["verdict"] == "MISSED"
    found = teams.shown(four, [{"seed": 1, "wins": 0.7, "wins_random": 0.9, "curve": [[200_000, 0.25]]}], 2)
    assert [one["verdict"] for one in found["figures"].values()] == ["reached", "MISSED"]
    assert "1 of 2 seeds SO FAR" in (said := capsys.readouterr().out) and "curve 200k:0.25" in said


@pytest.mark.parametrize("task", ["push", "four"])
def test_a_short_look(task: str, tmp_path: Path) -> None:
    words = ["--tasks", task, "--seeds", "1", "--env-steps", "4000", "--json", str(tmp_path / "found.json")]
    command = [sys.executable, "benchmarks/team_learning.py", *words]
    done = subprocess.run(command, cwd=TREE, capture_output=True, text=True, timeout=300)
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["unfinished"] == [] and done.stderr == ""
    ((run,),) = [one["runs"] for one in found["tasks"]]
    assert task != "four" or [steps for steps, _ in run["curve"]] == [4096]
    assert np.isfinite([value for value in run.values() if isinstance(value, float)]).all()

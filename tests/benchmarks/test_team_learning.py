"""Reference players of the team benchmark play as intended, and the table states what was reached."""

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
from benchmarks.held_boxes import HeldBoxes
from benchmarks.provenance import TREE
from benchmarks.team_players import assigned, one_ply
from multiverse.envs.box_jump import published
from multiverse.training.config.resolve import presets


def board(*rows: str) -> dict[str, Any]:
    """The lowest rows of a board: x is a piece of the agent itself."""
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
def test_one_ply_player_takes_a_win(name: str) -> None:
    seen, column = WINS[name]
    open_now = np.ones(7, np.int8)
    for k in range(5):
        assert one_ply(seen, open_now, np.random.default_rng(k)) == column


def test_one_ply_player_blocks_a_loss_and_takes_only_open_columns() -> None:
    assert one_ply(board("ooo.x.."), np.ones(7, np.int8), np.random.default_rng(0)) == 3
    closed = np.array([0, 0, 0, 0, 0, 1, 0], np.int8)
    assert one_ply(board("ooo.x.."), closed, np.random.default_rng(0)) == 5


def test_one_ply_player_beats_a_random_player() -> None:
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


def test_team_with_assigned_landmarks_is_far_better_than_a_random_team(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(teams, "EPISODES", 15)
    env = simple_spread_v3.parallel_env()
    scripted = np.mean(teams.play(env, lambda all_of: {a: assigned(seen) for a, seen in all_of.items()})[0])
    assert scripted > np.mean(teams.play(env, teams.random_policy())[0]) + 12


def test_every_task_has_a_preset() -> None:
    assert {(task.settings.get("preset", task.env), task.algorithm) for task in teams.TASKS} <= set(presets())


def test_box_height_is_measured_in_the_published_env_with_held_actions() -> None:
    """Seven boxes stand still and one jumps once; its gain is the reward of the team. 401 steps, 51 actions."""
    towers: list[float] = []
    env = HeldBoxes(towers, num_boxes=8, physics_steps_per_action=8, max_timestep=50, agent_one_hot=True)
    bare, gained = published(include_highest=False, include_time=False), [0.0, 0.0]
    env.reset(seed=3), bare.reset(seed=3)
    actions = 0
    while env.agents:
        chosen = {agent: 3 * (agent == "box-1") for agent in env.agents}
        seen, rewards, *_ = env.step(chosen)
        gained[0] += sum(rewards.values())
        for _ in range(min(8, 401 - 8 * actions)):
            same, rewards, *_ = bare.step(chosen)
            gained[1] += sum(rewards.values())
        np.testing.assert_array_equal(seen["box-1"], same["box-1"])
        actions += 1
    assert actions == 51 and not bare.agents and gained[0] == pytest.approx(gained[1]) and 1.8 < gained[0] < 2
    assert towers == [env.tallest_tower] == [bare.tallest_tower]


def test_table_gives_the_verdict_of_each_figure(capsys: pytest.CaptureFixture[str]) -> None:
    push, *_, four = teams.TASKS
    assert teams.report_task(push, [{"seed": 1, "ratio": 0.3}], 1, {})["figures"]["ratio"]["verdict"] == "reached"
    assert teams.report_task(push, [{"seed": 1, "ratio": 0.6}], 1, {})["figures"]["ratio"]["verdict"] == "MISSED"
    found = teams.report_task(four, [{"seed": 1, "wins": 0.7, "wins_random": 0.9, "curve": [[200_000, 0.25]]}], 2, {})
    assert [one["verdict"] for one in found["figures"].values()] == ["reached", "MISSED"]
    assert "1 of 2 seeds SO FAR" in (said := capsys.readouterr().out) and "curve 200k:0.25" in said


def test_boxes_must_reach_the_target_on_every_seed_and_team_sizes_are_compared(
    capsys: pytest.CaptureFixture[str],
) -> None:
    unnamed, sizes = (one for one in teams.TASKS if one.name in ("boxes taac unnamed", "boxes taac 4 to 7"))
    before: dict[str, teams.Figures] = {}
    runs = [{"seed": seed, "team_return": height} for seed, height in ((1, 4.0), (2, 4.0), (3, 3.3))]
    assert teams.report_task(unnamed, runs, 3, before)["figures"]["team_return"]["verdict"] == "MISSED"
    found = teams.report_task(sizes, [{"seed": 1, "team_return": 3.0}], 3, before)["figures"]["team_return"]
    unnamed_iqm = before["boxes taac unnamed"]["figures"]["team_return"]["iqm"]
    assert found["verdict"] == "reached" and found["share"] == pytest.approx(3.0 / unnamed_iqm)
    assert "of that of boxes taac unnamed" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["boxes taac", "boxes taac 4 to 7"])
def test_short_box_run_has_plausible_heights(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(teams, "BOX_EPISODES", 2)
    (task,) = [task for task in teams.TASKS if task.name == name]
    monkeypatch.setattr("multiverse.executors.launch.orphan_guard.watch_process", lambda pid: None)
    teams.one_run(task, 1, tmp_path / "run", 408)
    found = teams.load_result(tmp_path / "run")
    assert found is not None and 0.0 < found["tower"] <= found["tallest"] < found["team_return"] + 0.5 < 8


@pytest.mark.parametrize("task", ["push", "four"])
def test_short_run_writes_finite_figures(task: str, tmp_path: Path) -> None:
    words = ["--tasks", task, "--seeds", "1", "--env-steps", "4000", "--json", str(tmp_path / "found.json")]
    command = [sys.executable, "benchmarks/team_learning.py", *words]
    done = subprocess.run(command, cwd=TREE, capture_output=True, text=True, timeout=300)
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["unfinished"] == [] and done.stderr == ""
    ((run,),) = [one["runs"] for one in found["tasks"]]
    assert task != "four" or [steps for steps, _ in run["curve"]] == [4096]
    assert np.isfinite([value for value in run.values() if isinstance(value, float)]).all()

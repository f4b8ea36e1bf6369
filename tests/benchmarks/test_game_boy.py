"""The Game Boy benchmarks measure what their tables claim; here with tiny budgets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("stable_baselines3")

from benchmarks import game_boy, game_boy_learning


def test_every_row_has_its_figure_and_the_documented_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(game_boy, "NUM_ENVS", (2,))
    monkeypatch.setattr(game_boy, "RESETS", 20)
    monkeypatch.setattr(game_boy, "OPENED", 10)
    figures = game_boy.stepping("screen", 1, 0.05) + game_boy.memory(1, 0.0)
    values = {what: (value, bar) for what, value, bar, _ in figures}
    assert all(value == value for value, _ in values.values())
    assert values["2 envs: threads of the limit"][1] == 0.85
    assert values["2 envs: auto / SB3's SubprocVecEnv"][1] == 1.8
    assert values["private memory an instance, MB (at most)"][1] == -50.0
    assert 0.2 < values["private memory an instance, MB (at most)"][0] < 20


def test_training_time_is_parsed_from_the_command_output(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    printed = "Steps per second: 7.0 | Memory\nPARALLEL TRAINING COMPLETE\n====\nTraining time: 14.7 seconds\n"
    printed += "Steps per second: 1360.4\nEpisodes per second: 1.77\n"
    done = type("Done", (), {"stdout": printed})()
    monkeypatch.setattr(game_boy.subprocess, "run", lambda *_, **__: done)
    assert game_boy._make_train_20k("ram") == (14.7, 1360.4, 1.77)


@pytest.mark.parametrize("env", [game_boy_learning.QUEST, game_boy_learning.SCREENS])
def test_player_that_never_moves_wins_nothing(env: str) -> None:
    monkey = game_boy_learning.play(lambda observations: [0] * len(observations), 2, 50, env)
    assert (monkey["crypt"], monkey["won"], monkey["stages"], monkey["steps"]) == (0.0, 0.0, 0.0, 50.0)


def test_run_is_evaluated_from_power_on_with_figures_curve_and_video(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any
) -> None:
    """The figures of every seed, the expected ones, the curve and the video."""
    monkeypatch.setattr(game_boy_learning, "LONGEST", 20)
    monkeypatch.setattr(game_boy_learning, "EPISODES", 2)
    monkeypatch.setattr(game_boy_learning, "CORES", 1)
    for task in game_boy_learning.TASKS[: len(game_boy_learning.USUAL)]:
        game_boy_learning.one_run(task, 1, tmp_path / f"{task.name}-1", 4_096)
    flags = ["--seeds", "1", "--out", str(tmp_path), "--json", str(tmp_path / "results.json")]
    flags += ["--curve", str(tmp_path / "curve.png"), "--video", str(tmp_path / "film.mp4")]
    monkeypatch.setattr("sys.argv", ["game_boy_learning.py", *flags])
    assert game_boy_learning.main() == 0
    random, quest = json.loads((tmp_path / "results.json").read_text())["tasks"]
    assert random["runs"][0]["steps"] == 20 and random["figures"]["won"]["verdict"] == "reached"
    assert quest["runs"][0]["env_steps"] == 4_096 and quest["runs"][0]["steps_best"] == 20
    verdicts = [quest["figures"][name]["verdict"] for name in ("crypt", "won", "minutes")]
    assert verdicts == ["MISSED", "MISSED", "reached"]
    assert (tmp_path / "curve.png").stat().st_size > 1000 and (tmp_path / "film.mp4").stat().st_size > 1000
    assert "won         IQM 0.00 (0.00 to 0.00), wanted 0.5: MISSED" in capsys.readouterr().out

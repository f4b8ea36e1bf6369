"""That the Game Boy benchmarks measure what they say, on budgets of moments."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("stable_baselines3")

from benchmarks import game_boy, game_boy_learning


def test_every_row_has_its_figures_beside_the_documented_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(game_boy, "NUM_ENVS", (2,))
    monkeypatch.setattr(game_boy, "RESETS", 20)
    monkeypatch.setattr(game_boy, "OPENED", 10)
    figures = game_boy.stepping("screen", 1, 0.05) + game_boy.memory(1, 0.0)
    told = {what: (value, bar) for what, value, bar, _ in figures}
    assert all(value == value for value, _ in told.values())
    assert told["2 envs: threads of the limit"][1] == 0.85
    assert told["2 envs: threads / SB3's SubprocVecEnv"][1] == 1.8
    assert told["private memory an instance, MB (at most)"][1] == -50.0
    assert 0.2 < told["private memory an instance, MB (at most)"][0] < 20


def test_training_time_is_what_the_documents_command_prints(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    printed = "Steps per second: 7.0 | Memory\nPARALLEL TRAINING COMPLETE\n====\nTraining time: 14.7 seconds\n"
    printed += "Steps per second: 1360.4\nEpisodes per second: 1.77\n"
    done = type("Done", (), {"stdout": printed})()
    monkeypatch.setattr(game_boy.subprocess, "run", lambda *_, **__: done)
    assert game_boy._make_train_20k("ram") == (14.7, 1360.4, 1.77)


def test_who_never_moves_wins_nothing() -> None:
    monkey = game_boy_learning.played(lambda observations: [0] * len(observations), 2)
    assert (monkey["crypt"], monkey["won"], monkey["stages"], monkey["steps"]) == (0.0, 0.0, 0.0, 1500.0)


def test_a_run_is_evaluated_from_power_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any) -> None:
    """Every file that is asked for is there: figures, curve and film."""
    monkeypatch.setattr(game_boy_learning, "LONGEST", 20)
    flags = ["--minutes", "0.02", "--seeds", "1", "--episodes", "2", "--out", str(tmp_path / "runs")]
    flags += ["--json", str(tmp_path / "told.json"), "--curve", str(tmp_path / "curve.png")]
    flags += ["--video", str(tmp_path / "film.mp4")]
    monkeypatch.setattr("sys.argv", ["game_boy_learning.py", *flags])
    game_boy_learning.main()
    told = json.loads((tmp_path / "told.json").read_text())
    assert told["random"]["steps"] == 20 and told["seeds"][0]["deterministic"]["steps"] == 20
    assert (tmp_path / "curve.png").stat().st_size > 1000 and (tmp_path / "film.mp4").stat().st_size > 1000
    assert "deterministic, won: 0.00; mean 0.00, bar 0.5: MISSED" in capsys.readouterr().out

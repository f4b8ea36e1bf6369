"""`multiverse demo`: it learns, compares executors and suggests the next commands."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

import multiverse as mv
from multiverse.cli.commands import demo
from multiverse.cli.main import main

QUICK = ["demo", "--seconds", "0.02", "--rounds", "1"]


@pytest.fixture
def no_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "_train", lambda seed: True)


def test_demo_learns_to_balance_and_draws_its_learning_curve(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "_compare", lambda options: None)
    assert main(["demo"]) == 0
    (run,) = Path("runs/CartPole-v1").iterdir()
    summary = json.loads((run / "summary.json").read_text())
    assert summary["evaluation"]["mean_return"] >= 475 and summary["plan"]["executor"] != "serial"
    out = capsys.readouterr().out
    assert "Training 8 × CartPole-v1" in out and "Done (reached a mean return of " in out
    assert f"multiverse evaluate {run}" in out
    assert f"Learning curve:\n{run}/plot.png\n" in out and (run / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_missing_matplotlib_is_reported_with_the_install_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    demo._plot(Path("runs/a"))
    message = "To plot the learning curve: pip install 'multiverse[plot]', then multiverse plot runs/a\n"
    assert capsys.readouterr().out == message


def test_demo_that_learns_too_little_exits_with_code_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "_train", lambda seed: False)
    monkeypatch.setattr(demo, "_compare", lambda options: None)
    assert main(["demo"]) == 1


def test_demo_compares_executors_and_suggests_next_commands(
    no_training: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(QUICK) == 0
    captured = capsys.readouterr()
    for name in (
        "one bare env in a loop",
        demo.SYNC,
        demo.ASYNC,
        demo.OURS,
        "the machine's limit",
        "Chosen on this machine: ",
    ):
        assert name in captured.out
    for line in (
        "mv.make_vec",
        "multiverse train YOUR_ENV",
        "multiverse bench YOUR_ENV",
        "multiverse doctor --self-test",
    ):
        assert line in captured.out
    assert captured.err.count("round 1 of 1") == 1


def test_suggested_code_works() -> None:
    names: dict[str, Any] = {}
    exec("\n".join(line[14:] for line in demo.WHAT_NEXT.splitlines()[:3]), names)
    assert names["observations"].shape == (demo.NUM_ENVS, 4)
    names["envs"].close()


def test_failure_of_multiverse_is_reported_in_one_line(
    no_training: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: Any) -> Any:
        raise mv.errors.PreflightError("not here")

    monkeypatch.setattr(mv, "make_vec", refuse, raising=False)
    assert main(QUICK) == 2
    assert capsys.readouterr().err.endswith("multiverse demo: not here\n")


def test_ctrl_c_while_gymnasiums_workers_start_is_raised_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[bool] = []

    class Envs:
        def close(self) -> None:
            closed.append(True)

    def interrupted(*_: Any, **__: Any) -> Envs:
        signal.raise_signal(signal.SIGINT)
        return Envs()

    monkeypatch.setattr(gym, "make_vec", interrupted)
    with pytest.raises(KeyboardInterrupt):
        demo._async()
    assert closed == [True]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_zero_rounds_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--rounds", "0"]) == 2
    assert capsys.readouterr().err == "multiverse demo: --rounds 0: must be greater than 0\n"

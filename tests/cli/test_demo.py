"""`multiverse demo`: everybody beside everybody, and what to type next."""

from __future__ import annotations

import signal
from typing import Any

import gymnasium as gym
import pytest

import multiverse as mv
from multiverse.cli import demo
from multiverse.cli.main import main


def test_demo_compares_and_says_what_is_next(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--seconds", "0.02", "--rounds", "1"]) == 0
    captured = capsys.readouterr()
    for name in ("one bare env in a loop", demo.SYNC, demo.ASYNC, demo.OURS, "the machine's limit", "Chosen here: "):
        assert name in captured.out
    for line in ("mv.make_vec", "multiverse bench YOUR_ENV", "multiverse doctor --self-test"):
        assert line in captured.out
    assert captured.err.count("round 1 of 1") == 1


def test_what_is_next_really_works() -> None:
    names: dict[str, Any] = {}
    exec("\n".join(line[14:] for line in demo.WHAT_NEXT.splitlines()[:3]), names)
    assert names["observations"].shape == (demo.NUM_ENVS, 4)
    names["envs"].close()


def test_our_own_failure_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(*_: Any) -> Any:
        raise mv.PreflightError("not here")

    monkeypatch.setattr(mv, "make_vec", refuse, raising=False)
    assert main(["demo", "--seconds", "0.02", "--rounds", "1"]) == 2
    assert capsys.readouterr().err.endswith("multiverse demo: not here\n")


def test_ctrl_c_while_gymnasiums_workers_start_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_nothing_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--rounds", "0"]) == 2
    assert capsys.readouterr().err == "multiverse demo: --rounds 0: must be more than 0\n"

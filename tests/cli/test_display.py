"""Progress of `multiverse train`: a display on a terminal, lines in a pipe, JSON, or nothing."""

from __future__ import annotations

import dataclasses
import errno
import fcntl
import io
import itertools
import json
import math
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from rich.console import Console

import multiverse as mv
from multiverse.algorithms.dqn import DQN
from multiverse.algorithms.ppo import PPO
from multiverse.cli.bottleneck import bottleneck
from multiverse.cli.display import Display, Machine, sparkline, time_bar
from multiverse.cli.main import main
from multiverse.cli.run_output import JsonLines
from multiverse.core.plan import Plan
from multiverse.training import scaling
from multiverse.training.config.budget import PARTS, Budget, Clock
from multiverse.training.config.resolve import config_for
from multiverse.training.config.train_config import TrainConfig
from multiverse.training.events import NumEnvsDecided, RunEnded, RunStarted, UpdateDone
from multiverse.training.progress import LinePrinter, ProgressLines
from multiverse.training.scaling import Decision
from tests.cli.training_commands import SMALL, train

HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"


# -- for programs ------------------------------------------------------------------------------------------------
def test_quiet_prints_only_the_run_directory(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train(Path("a"), "--quiet") == 0
    assert capsys.readouterr().out == "a\n"
    assert main(["resume", "a", "--env-steps", "512", "--quiet"]) == 0
    assert capsys.readouterr().out == "a\n"
    assert train(Path("b"), "--quiet", "--seeds", "2") == 0
    assert capsys.readouterr().out == "b\n"


@pytest.mark.parametrize("cores", [1, 2])
def test_json_of_several_seeds_has_the_seed_in_each_line_and_one_end_event(
    cores: int, elsewhere: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("multiverse.training.side_by_side.usable_cores", lambda: cores)
    assert train(Path("c"), "--json", "--seeds", "2") == 0
    *each, last = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    for seed in (0, 1):
        events = [one["event"] for one in each if one["seed"] == seed]
        assert events == ["start", "metrics", "evaluation", "end"]
    assert last["event"] == "end" and last["run"] == "c" and last["seeds"] == [0, 1] and "seed" not in last


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("seeds", ["1", "2"])
def test_json_of_a_failed_run_ends_with_an_error_event(
    seeds: str, cores: int, elsewhere: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("multiverse.training.side_by_side.usable_cores", lambda: cores)
    words = ["--json", "--seeds", seeds, "--on-failure", "raise", "--evaluation-opponent", "random"]
    assert train(Path("a"), *words) == 2
    out, error = capsys.readouterr()
    events = [json.loads(line) for line in out.splitlines()]
    assert (
        events[-1]["event"] == "error" and events[-1]["run"] in ("a", None) and "has one agent" in events[-1]["error"]
    )
    assert error.splitlines()[-1] == f"multiverse train: {events[-1]['error']}"
    assert seeds == "1" or (events[0]["event"], events[0]["seed"] in (0, 1)) == ("error", True)


def test_json_prints_one_object_per_line(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train(Path("a"), "--json", "--evaluate-every", "128") == 0
    output = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    events = [one["event"] for one in output if one["event"] != "metrics"]
    assert events == ["start", "evaluation", "evaluation", "end"]
    assert output[0]["run"] == "a" and output[-1]["env_steps"] == 256 and output[-1]["finished"] is True
    assert main(["resume", "a", "--env-steps", "512", "--json"]) == 0
    output = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert (output[0]["event"], output[0]["env_steps"], output[-1]["env_steps"]) == ("start", 256, 512)


@pytest.mark.parametrize("saved", [True, False])
def test_json_states_whether_an_interrupted_run_was_saved(
    saved: bool, elsewhere: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(self: Any, status: Any) -> None:
        if status.clock.updates == 3:
            signal.raise_signal(signal.SIGINT)
            if not saved:
                signal.raise_signal(signal.SIGINT)  # once more: at once

    monkeypatch.setattr(JsonLines, "_update", interrupt)
    assert train(Path("a"), "--json", "--evaluate-every", "128") == 130  # the best so far is saved then
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    at = {"saved": saved, "saved_env_steps": 192 if saved else 128}
    assert report == {"event": "interrupted", "env_steps": 192, "run": "a", **at}


def test_json_has_metrics_lines(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("multiverse.training.progress.LINE_EVERY_S", 0.0)
    assert train(Path("a"), "--json") == 0
    output = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    metrics = [one for one in output if one["event"] == "metrics"]
    assert [one["env_steps"] for one in metrics] == [64, 128, 192, 256] and "learn_share" in metrics[0]


def test_json_has_num_envs_auto_decisions(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(scaling, "MEASURED_S", 0.0)
    assert train(Path("a"), "--json", "--num-envs", "auto", env_steps=64 * 16) == 0
    output = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    decided = [json.loads(line) for line in Path("a", scaling.FILE).read_text().splitlines()]
    assert decided and [one for one in output if one["event"] == "num_envs"] == [
        {"event": "num_envs", **one} for one in decided
    ]


def test_quiet_and_json_are_refused_together(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train(Path("a"), "--quiet", "--json") == 2
    assert "--quiet and --json cannot be used together" in capsys.readouterr().err and not Path("a").exists()


# -- on a terminal -----------------------------------------------------------------------------------------------
class Terminal:
    """A command on a terminal of this size, and everything that it writes there."""

    def __init__(self, words: list[str], columns: int, rows: int, home: Path, stderr: int | None = None) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        surroundings = {**os.environ, "TERM": "xterm-256color", "PYTHONPATH": os.pathsep.join(sys.path)}
        surroundings = {
            name: value for name, value in surroundings.items() if name not in ("COLUMNS", "LINES", "PYTHONUNBUFFERED")
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "multiverse.cli", *words],
            stdin=theirs, stdout=theirs, stderr=theirs if stderr is None else stderr, cwd=home, env=surroundings,
            start_new_session=True,
        )  # fmt: skip
        os.close(theirs)
        self.written = ""

    def read_until(self, words: str) -> None:
        give_up = time.monotonic() + 60
        while words not in self.written and time.monotonic() < give_up:
            if not self._read():
                break
        assert words in self.written, self.written

    def read_all(self) -> int:
        """Read to the end; return the exit code."""
        while self._read():
            pass
        os.close(self._ours)
        return self.process.wait(30)

    def _read(self) -> bool:
        try:
            found = os.read(self._ours, 65536)
        except OSError as error:  # the error of Linux if no process has the terminal open
            assert error.errno == errno.EIO
            return False
        self.written += found.decode(errors="replace")
        return bool(found)


def typed(*more: str) -> list[str]:
    return ["train", "CartPole-v1", "--run-dir", "a", *SMALL, *more]


def test_display_restores_the_terminal_at_the_end(tmp_path: Path) -> None:
    terminal = Terminal(typed("--env-steps", "20000"), 80, 24, tmp_path)
    assert terminal.read_all() == 0
    before, _, after = terminal.written.rpartition(SHOW)
    assert before.count(HIDE) == 1 and "env steps/s" in before
    assert "cores" in before and "memory" in before and HIDE not in after
    assert "Done: 20,032 env steps" in after and "Next:" in after
    screens = before.split("── ppo on CartPole-v1, seed 0 ")[1:]
    assert screens and max(map(len, plain(screens[-1]).splitlines())) <= 80


def plain(text: str) -> str:
    return "".join(part.partition("m")[2] if i else part for i, part in enumerate(text.split("\x1b[")))


def seen(written: str) -> list[str]:
    """The lines on a terminal at the end, including those that have scrolled out of it."""
    lines, row, column = [""], 0, 0
    for word in re.findall(r"\x1b\[[?0-9;]*[A-Za-z]|\n|\r|[^\x1b\n\r]+", written):
        if word == "\n":
            row += 1
            lines += [""] * (row == len(lines))
        elif word == "\r":
            column = 0
        elif word == "\x1b[1A":
            row -= 1
        elif word == "\x1b[2K":
            lines[row] = ""
        elif word[0] != "\x1b":
            lines[row] = f"{lines[row]:<{column}}"[:column] + word + lines[row][column + len(word) :]
            column += len(word)
    return lines


ANY_TEXT = {"forkserver": "\\udc80", "fork": "?", "spawn": "\\udc80"}
"""How a character without an encoding is printed: in a fork as in the command itself, else as by Python."""


@pytest.mark.parametrize("how", ANY_TEXT)
def test_worker_output_is_shown_above_the_display(how: str, tmp_path: Path) -> None:
    workers = ["--executor", "process", "--workers", "2", "--num-envs", "2", "--start-method", how]
    words = ["train", "tests.cli.loud_env:Loud", "--run-dir", "a", *SMALL, *workers, "--env-steps", "3000"]
    words += ["--env-kwargs", json.dumps({"dies_once": str(tmp_path / "died")})]  # another is begun below the display
    terminal = Terminal(words, 100, 30, tmp_path)
    assert terminal.read_all() == 0
    lines = seen(terminal.written)
    drawn = terminal.written.count("── ppo on ")
    assert drawn > 1 and not [line for line in lines if "── ppo on" in line or "cores " in line], "none is left behind"
    loud = [line.removesuffix(ANY_TEXT[how]) for line in lines if "loud:" in line]
    assert {"loud: imported", "loud: reset", "loud: native", "loud: closed "} == set(loud) and len(loud) > 100
    done = [number for number, line in enumerate(lines) if line.startswith("Done: ")]
    assert done and not any("loud:" in line for line in lines[done[0] :]), "the summary comes last"


@pytest.mark.parametrize("how", ANY_TEXT)
def test_worker_stderr_that_is_no_terminal_is_written_there(how: str, tmp_path: Path) -> None:
    """With an error handler that takes any text, as that of workers does."""
    workers = ["--executor", "process", "--workers", "2", "--num-envs", "2", "--start-method", how]
    words = ["train", "tests.cli.loud_env:Complaining", "--run-dir", "a", *SMALL, *workers, "--env-steps", "600"]
    with open(tmp_path / "complaints", "w") as complaints:
        terminal = Terminal(words, 100, 30, tmp_path, complaints.fileno())
        assert terminal.read_all() == 0
    assert "── ppo on " in terminal.written and "loud: complaint" not in terminal.written
    assert (tmp_path / "complaints").read_text().count(f"loud: complaint {ANY_TEXT[how]}\n") > 20


def test_interrupted_display_restores_the_terminal(tmp_path: Path) -> None:
    terminal = Terminal(typed("--env-steps", "10000000"), 100, 30, tmp_path)
    terminal.read_until("return   ")
    terminal.read_until("of the time: ")  # from the second measurement on
    os.kill(terminal.process.pid, signal.SIGINT)
    assert terminal.read_all() == 130
    _, _, after = terminal.written.rpartition(SHOW)
    assert HIDE not in after and "To resume: multiverse resume a" in after


def test_failed_run_restores_the_terminal(tmp_path: Path) -> None:
    words = ["train", "tests.cli.test_display:breaking", "--run-dir", "a", *SMALL, "--on-failure", "raise"]
    terminal = Terminal([*words, "--env-steps", "10000000"], 80, 24, tmp_path)
    assert terminal.read_all() == 2
    assert HIDE in terminal.written and "enough of this" in terminal.written
    assert HIDE not in terminal.written.rpartition(SHOW)[2]


def breaking() -> Any:
    """Env that raises after some steps."""
    import gymnasium

    env = gymnasium.make("CartPole-v1")
    step, count = env.step, iter(range(2_000))

    def once_more(action: Any) -> Any:
        if next(count, None) is None:
            raise RuntimeError("enough of this")
        return step(action)

    env.step = once_more  # type: ignore[method-assign]
    return env


@pytest.mark.parametrize(("columns", "rows"), [(79, 24), (80, 10)])
def test_small_terminal_shows_lines_instead_of_the_display(columns: int, rows: int, tmp_path: Path) -> None:
    terminal = Terminal(typed("--env-steps", "256"), columns, rows, tmp_path)
    assert terminal.read_all() == 0
    assert HIDE not in terminal.written and "Run: a" in terminal.written and "Done: " in terminal.written


def test_gpu_used_by_torch_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = SimpleNamespace(
        is_initialized=lambda: True, mem_get_info=lambda: (2**30, 3 * 2**30), get_device_name=lambda: "Abacus"
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    assert Machine().measure(())["GPU"].plain == "Abacus: 2.0 GiB of 3.0 GiB used"
    cuda.is_initialized = lambda: False
    assert "GPU" not in Machine().measure(())


# -- how often ---------------------------------------------------------------------------------------------------
def a_status() -> Any:
    """The part of a run's state that is displayed."""
    recent = type("Recent", (), {"mean_return": 50.0, "mean_length": 40.0, "__len__": lambda self: 3, "by_agent": {}})()
    clock = Clock(env_steps=4_000, episodes=9, updates=7, seconds=10.0, learn_s=6.0, step_s=4.0)
    return SimpleNamespace(
        config=TrainConfig(env="CartPole-v1", env_steps=8_000),
        clock=clock,
        recent=recent,
        restarts=3,
        plan=Plan("process", 2, "forkserver", "auto", "as asked"),
        worker_pids=(),
        learns_on_cpu_with_torch=False,
    )


def started(status: Any) -> RunStarted:
    return RunStarted(run_id="1", path=Path("a"), status=status, best_return=70.0, notes=[])


@pytest.mark.parametrize(("columns", "drawn"), [(80, 79), (140, 139), (200, 159)])
def test_display_follows_the_run_and_fills_up_to_160_columns(columns: int, drawn: int) -> None:
    screen = io.StringIO()
    shown = Display(LinePrinter(), Console(file=screen, force_terminal=True, width=columns, height=24))
    status = a_status()
    shown._returns, shown._best = [1.0, 2.0, 3.0], 70.0
    shown._measure(status)
    assert "of the time" not in shown.picture(status).plain, "one update, perhaps the first after a resume, misleads"
    status.clock = dataclasses.replace(status.clock, env_steps=4_800, seconds=12.0, learn_s=7.2, step_s=4.8)
    shown._measure(status)
    lines = shown.picture(status).plain.splitlines()
    assert lines[1].endswith(" 60 %  4,800 env steps  8.0 s left")
    assert lines[2] == "speed    400 env steps/s   7 updates   9 episodes   3 restarts"
    assert lines[3] == "return   50.0   length 40   best evaluation 70.0"
    assert lines[4] == "         ▁▄█"
    assert "step 40 %" in lines[6] and "learn 60 %" in lines[6]
    assert lines[7].startswith("         Learning takes 60 % of the time: ")
    assert max(map(len, lines)) == drawn


@pytest.mark.parametrize("then", ["drawn again", "closed"])
def test_narrowed_terminal_keeps_no_partial_lines(then: str) -> None:
    """Tmux and most other terminals break long lines, so that they take more rows than rich has drawn."""
    screen = io.StringIO()
    shown = Display(LinePrinter(screen), Console(file=screen, force_terminal=True, width=100, height=30))
    status = a_status()
    shown.handle(started(status))
    shown._draw(status)
    lines = shown.picture(status).plain.split("\n")
    rows = sum(max(1, math.ceil(len(line) / 30)) for line in lines)
    assert rows >= len(lines) + 5, "else nothing was broken"
    before = len(screen.getvalue())
    shown._live.console.width = 30
    if then == "drawn again":
        shown._draw(status)
        upwards = rows - 1  # the cursor is in the last one
    else:
        shown.close()
        upwards = rows - 1 + len(lines)  # rich draws once more, ends the line, and takes that away
    written = screen.getvalue()[before:]
    assert written.count("\x1b[1A\x1b[2K") == upwards
    shown.close()


def test_bars_are_readable_without_colours() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=80, height=24, no_color=True)
    shown, status = Display(LinePrinter(), console), a_status()
    shown._measure(status)
    budget, time, legend = (shown.picture(status).plain.splitlines()[i] for i in (1, 5, 6))
    bar = budget.partition(" ")[0]
    assert {*bar} == {"━", "─"} and abs(bar.count("━") - bar.count("─")) <= 1
    assert time.split()[1] == "▓" * 28 + "▒" * 42 and "▓step 40 % ▒learn 60 %" in legend


def test_num_envs_auto_decision_is_printed_above_the_display() -> None:
    said = io.StringIO()
    shown = Display(LinePrinter(said), Console(file=io.StringIO(), force_terminal=True, width=80, height=24))
    shown.handle(NumEnvsDecided(decision=Decision(3_000, 2, 9.0, 1, True, "it pays")))
    assert said.getvalue() == "      3,000 env steps | 1 env, final (it pays)\n"


@pytest.mark.parametrize("how", ["display", "lines", "bar"])
def test_remaining_time_uses_the_recent_pace(how: str) -> None:
    """A replay algorithm fills its memory at 1,000 env steps a second, then learns at 100."""
    said, status = io.StringIO(), a_status()
    shown: Any = ProgressLines(LinePrinter(said, redraws=how == "bar"), now=lambda: status.clock.seconds)
    if how == "display":
        console = Console(file=said, force_terminal=True, width=80, height=24)
        shown = Display(LinePrinter(), console, now=lambda: float(status.clock.seconds))
    status.clock = Clock()
    for update in range(1, 31):
        status.clock = Clock(env_steps=200 * update + 1_600 * min(update, 2), seconds=2.0 * update, updates=update)
        status.config = TrainConfig(env="CartPole-v1", env_steps=status.clock.env_steps + 1_000)
        shown.handle(UpdateDone(status=status))
    if how == "display":
        said.write(shown.picture(status).plain)
    assert re.findall(r"([\d.:]+ \w+) left", said.getvalue())[-1] == "10 s"


def test_remaining_time_is_computed_for_every_kind_of_budget() -> None:
    before, now = Clock(env_steps=100, episodes=4, seconds=1.0), Clock(env_steps=200, episodes=8, seconds=11.0)
    assert Budget(env_steps=300).seconds_left(now, before) == pytest.approx(10.0)
    assert Budget(episodes=10).seconds_left(now, before) == pytest.approx(5.0)
    assert Budget(env_steps=300, episodes=10, minutes=0.2).seconds_left(now, before) == pytest.approx(1.0)
    assert Budget(env_steps=300).seconds_left(now, now) == pytest.approx(5.5)  # nothing since: as from the beginning
    assert Budget(env_steps=300).seconds_left(Clock(), Clock()) == float("inf")
    assert Budget(env_steps=100).seconds_left(now, before) == 0.0
    evaluated = Clock(env_steps=200, seconds=31.0, evaluate_s=20.0)  # every hundred env steps one of 10 s
    assert Budget(env_steps=300).seconds_left(evaluated, before) == pytest.approx(20.0)


@pytest.mark.parametrize(("cost_s", "apart_s"), [(0.0, 0.25), (0.005, 1.0), (0.1, 2.0)])
def test_display_is_drawn_at_most_four_times_a_second_and_less_often_if_slow(
    cost_s: float, apart_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    shown = Display(LinePrinter(), Console(file=io.StringIO(), force_terminal=True), now=lambda: now[0])
    draws: list[float] = []

    def update(*_: Any, **__: Any) -> None:
        draws.append(now[0])
        now[0] += cost_s

    monkeypatch.setattr(shown._live, "update", update)
    for _ in range(400):
        now[0] += 0.03125
        shown.handle(UpdateDone(status=a_status()))
    between = [after - before for before, after in itertools.pairwise(draws)]
    assert between and min(between) >= apart_s and max(between) < apart_s + 0.14


# -- the sentence ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("part", "plan", "message"),
    [
        ("learn", ("process", 2), "Learning takes 70 % of the time: fewer --epochs (4) or a larger --batch-size (256)"),
        ("step", ("serial", 0), "1 of 4 cores are used; --executor process --workers 4 uses all"),
        ("step", ("process", 2), "2 of 4 cores are used; --executor process --workers 4 uses all"),
        ("step", ("hybrid", 3), "all 4 cores are used already; a faster env"),
        ("act", ("process", 4), "more --num-envs (8) share a forward pass"),
        ("evaluate", ("process", 4), "a larger --evaluate-every (10,000) or fewer --evaluation-episodes (10)"),
        ("save", ("process", 4), "a larger --checkpoint-every-s (30) saves less often"),
        ("other", ("process", 4), "Other work takes 70 % of the time: a larger --log-every"),
    ],
)
def test_bottleneck_is_named_with_a_setting_to_change(part: str, plan: tuple[Any, int], message: str) -> None:
    shares = {one: 0.7 if one == part else 0.06 for one in PARTS}
    config = TrainConfig(env_steps=100_000)
    assert message in bottleneck(shares, Plan(plan[0], plan[1], None, "auto", ""), config, 4)


@pytest.mark.parametrize(
    ("threads", "workers", "more", "advice"),
    [
        (1, 4, {}, "it uses 1 of 4 cores; --torch-threads 4 uses more of them"),
        (4, 4, {}, "fewer --epochs (4)"),
        (1, 2, {"asynchronous": True}, "it uses 1 of 4 cores; --torch-threads 2 uses more of them"),
        (1, 3, {"asynchronous": True}, "fewer --epochs (4)"),
    ],
)
def test_idle_cores_are_advised_before_a_cheaper_update(
    threads: int, workers: int, more: dict[str, Any], advice: str
) -> None:
    config, plan = TrainConfig(torch_threads=threads, **more), Plan("process", workers, None, "auto", "")
    assert advice in bottleneck({"learn": 1.0}, plan, config, 4, torch_on_cpu=True)
    assert "fewer --epochs (4)" in bottleneck({"learn": 1.0}, plan, config, 4, torch_on_cpu=False)


def test_torch_device_is_given_only_for_learners_in_torch() -> None:
    image, small, few = spaces.Box(0, 255, (36, 36, 3), np.uint8), spaces.Box(-1, 1, (3,)), spaces.Discrete(2)
    for kind in (PPO, DQN):
        devices = [kind(kind.Config(), seen, few, 1, 0, "cpu").torch_device for seen in (image, small)]
        assert devices == ["cpu", None]


def test_last_lines_of_a_run_break_between_words_on_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Screen(io.StringIO):
        def isatty(self) -> bool:
            return True

    run = mv.train("CartPole-v1", run_dir=tmp_path / "run", progress=False, env_steps=64, num_envs=2, steps_per_env=32)
    monkeypatch.setenv("COLUMNS", "60")
    ProgressLines(LinePrinter(screen := Screen())).handle(RunEnded(path=run.path, summary=run.summary))
    result, _, commands = screen.getvalue().partition("Next:\n")
    assert "Evaluation: return " in result and max(map(len, result.splitlines())) < 60
    assert f"  multiverse evaluate {run.path}\n" in commands


@pytest.mark.parametrize("terminal", [True, False])
def test_header_lines_break_between_words_on_a_terminal(terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    class Screen(io.StringIO):
        def isatty(self) -> bool:
            return terminal

    monkeypatch.setenv("COLUMNS", "40")
    screen, line = Screen(), "Settings: flags, then the preset for CartPole-v1 (`multiverse list presets`)."
    LinePrinter(screen).say(line, wrap=True)
    lines = screen.getvalue().splitlines()
    assert " ".join(one.strip() for one in lines) == line and (max(map(len, lines)) < 40) == terminal
    LinePrinter(screen := Screen()).say(line)
    assert screen.getvalue() == f"{line}\n", "a line that may be copied stays whole"


@pytest.mark.parametrize(
    ("algorithm", "given", "message"),
    [
        ("sac", {}, "fewer --updates-per-step (1.0) or smaller --hidden-sizes (256 256) would shorten it"),
        ("dqn", {"gradient_steps": 4}, "fewer --gradient-steps (4) or smaller --hidden-sizes (64 64) would"),
        ("td3", {"memory": "gru"}, "fewer --updates-per-step (1.0) or a shorter --sequence-length (whole episodes)"),
        ("ppo", {"memory": "gru"}, "fewer --epochs (4) or a larger --batch-size (256)"),
    ],
)
def test_advice_for_cheaper_learning_depends_on_the_algorithm(algorithm: str, given: Any, message: str) -> None:
    config = config_for("any-v0", algorithm, {"env_steps": 100, **given})
    assert message in bottleneck({"learn": 1.0}, Plan("serial", 0, None, "auto", ""), config, 4)


def test_singular_is_used_for_counts_of_one() -> None:
    assert " used with 1 worker, " in Machine().measure((os.getpid(),))["memory"].plain
    status = a_status()
    status.clock.updates = status.clock.episodes = 1
    shown = Display(LinePrinter(), Console(file=io.StringIO(), force_terminal=True, width=80, height=24))
    assert "   1 update   1 episode   3 restarts" in shown.picture(status).plain


def test_bottleneck_advice_for_few_envs_says_that_cores_wait() -> None:
    config = TrainConfig(env_steps=100_000, num_envs=4)
    result = bottleneck({"step": 1.0}, Plan("process", 4, None, "auto", ""), config, 4)
    assert "4 envs leave cores idle; `multiverse tune`" in result


def test_sparkline_fits_its_width_and_its_value_range() -> None:
    assert sparkline([], 10) == sparkline([1.0], 10) == ""
    assert sparkline([0.0, 7.0], 10) == "▁█"
    assert sparkline([float(i) for i in range(1_000)], 8) == "▁▂▃▄▅▆▇█"
    assert sparkline([3.0] * 50, 10) == "▁" * 10


def test_time_bar_is_filled_by_the_shares_of_its_parts() -> None:
    bar = time_bar({"act": 0.25, "step": 0.5, "learn": 0.25}, 8)
    assert bar.plain == "█" * 8 and [len(range(span.start, span.end)) for span in bar.spans] == [2, 4, 2]

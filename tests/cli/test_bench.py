"""`multiverse bench`: a table or one JSON object on standard output, progress on standard error."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

from multiverse.cli.comparison import Parallelism, Side
from multiverse.cli.main import main

QUICK = ["--seconds", "0.02", "--rounds", "2"]


def thread_shy() -> Any:
    """Build an env, except in a worker thread."""
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError("not in a thread")
    return gym.make("CartPole-v1")


def test_bench_prints_a_table_row_per_executor(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["bench", "CartPole-v1", "--num-envs", "2", "3", "--executors", "serial", "hybrid", "auto", *QUICK]) == 0
    )
    captured = capsys.readouterr()
    lines = [line.split() for line in captured.out.splitlines()]
    assert [line[0] for line in lines if line and line[0] in ("serial", "hybrid", "auto")] == [
        "serial",
        "hybrid",
        "auto",
    ] * 2
    assert "plain loop" in captured.out and "the machine's limit" in captured.out
    hybrid = next(line for line in lines if line and line[0] == "hybrid")
    assert len(hybrid) == 8 and hybrid[1] == "2" and hybrid[4] == "%"  # the last one: MB of its worker
    auto = next(line for line in lines if line and line[0] == "auto")
    assert auto[1] in ("(serial)", "(hybrid)", "(hybrid,")


def test_progress_has_a_line_for_every_round(capsys: pytest.CaptureFixture[str]) -> None:
    main(["bench", "CartPole-v1", "--num-envs", "1", "--executors", "serial", *QUICK])
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert "round 1 of 2" in lines[0] and "round 2 of 2" in lines[1]


def test_json_is_the_whole_output(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--num-envs", "4", "--executors", "process", "thread", "--workers", "1", "--env-kwargs", '{"g": 9.8}']
    assert main(["bench", "Pendulum-v1", *arguments, "--json", *QUICK]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["env"], found["env_kwargs"], found["rounds"]) == ("Pendulum-v1", {"g": 9.8}, 2)
    assert found["plain_loop_steps_per_s"] > 0 and found["machine_limit_steps_per_s"] > 0
    process, thread = found["results"]
    assert (process["executor"], process["num_envs"], process["processes"]) == ("process", 4, 1)
    assert process["mb_per_process"] > 0 and thread["mb_per_process"] is None
    assert [plan["workers"] for plan in process["plans"]] == [1, 1]
    assert process["steps_per_s"] > 0 and process["of_the_limit"] > 0 and process["times_plain_loop"] > 0
    assert len(process["steps_per_s_by_round"]) == len(found["machine_limit_by_round"]) == 2


def test_parallelism_table_has_its_six_rows(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["CartPole-v1", "--num-envs", "2", "--executors", "serial", "--parallelism", "--workers", "1", *QUICK]
    assert main(["bench", *words]) == 0
    out = capsys.readouterr().out
    assert "Simulated Parallelism" in out and "True Parallelism" in out
    units = {"CPU usage": "cores", "Memory usage": "MB", "Speed": "steps/s", "Complexity": "to start"}
    units |= {"GPU usage": " µs", "Rendering": "frames/s"}
    for feature, unit in units.items():
        (line,) = [line for line in out.splitlines() if feature in line]
        assert line.count(unit) == 2, line
    assert "1 process," in out and "1 + 1 processes," in out
    assert out.splitlines()[-1].startswith("Use ")
    assert main(["bench", *words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["parallelism"]
    assert found["true"]["processes"] == 1 and found["simulated"]["frames_per_s"] > 0
    assert (found["simulated"]["rows"], found["advice"][:4]) == (2, "Use ")


def test_parallelism_advice_names_an_executor_and_what_is_missing() -> None:
    slow = Side(100.0, 1.0, 3.0, 0, 0.1, None, 8)
    fast = Side(170.0, 1.9, 23.0, 2, 0.4, None, 4)
    both = Parallelism(slow, fast, {"gpus": 4, "device": "A", "act_us": [9.0, 8.0]})
    assert "20 MB more memory" in both.advice()
    assert both.advice().startswith("Use true parallelism (executor='process'): it is 1.7 times as fast here and")
    assert ("GPU usage", "8 rows in 9 µs (1 of 4 GPUs)", "4 rows in 8 µs (2 of 4 GPUs)") in both.rows()
    assert ("Rendering", "not supported by the env", "not supported by the env") in both.rows()
    other = Parallelism(fast, slow, None)
    assert other.advice().startswith("Use simulated parallelism (executor='serial'): true parallelism is 0.6 times as")
    assert ("GPU usage", "torch is not installed", "torch is not installed") in other.rows()


def test_failing_executor_is_shown_with_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [f"{__name__}:thread_shy", "--num-envs", "2", "--executors", "thread", "serial", *QUICK]
    assert main(["bench", *arguments]) == 1
    out = capsys.readouterr().out
    assert "thread, 2 envs: env 0 could not be built: RuntimeError: not in a thread" in out
    assert main(["bench", *arguments, "--json"]) == 1
    thread, serial = json.loads(capsys.readouterr().out)["results"]
    assert "not in a thread" in thread["failure"] and serial["steps_per_s"] > 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["NoSuchEnv-v0"], "NoSuchEnv"),
        (["no_such_module:make"], "no_such_module"),
        (["CartPole-v1", "--env-kwargs", "{g"], "is not JSON"),
        (["CartPole-v1", "--env-kwargs", 20_000 * "["], "is not JSON (RecursionError"),
        (["CartPole-v1", "--env-kwargs", "[1]"], "expected a JSON object"),
        (["CartPole-v1", "--env-kwargs", '{"no_such": 1}'], "could not be built"),
        (["CartPole-v1", "--num-envs", "8", "0"], "--num-envs 0"),
        (["CartPole-v1", "--num-envs"], "at least one"),
        (["CartPole-v1", "--workers", "0"], "--workers 0"),
        (["CartPole-v1", "--seconds", "0"], "--seconds 0"),
        (["CartPole-v1", "--rounds", "-1"], "--rounds -1"),
    ],
)
def test_invalid_request_is_refused_in_one_line(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith("multiverse bench: ") and said in line


def test_env_in_the_working_directory_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = "import gymnasium\n\ndef make(pole=0.5):\n    return gymnasium.make('CartPole-v1')\n"
    (tmp_path / "env_of_ones_own.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    arguments = ["--num-envs", "2", "--executors", "process", "--env-kwargs", '{"pole": 1}', "--json", *QUICK]
    assert main(["bench", "env_of_ones_own:make", *arguments]) == 0
    assert json.loads(capsys.readouterr().out)["results"][0]["steps_per_s"] > 0


@pytest.mark.parametrize("env", ["mpe2.simple_spread_v3:parallel_env", "pettingzoo.classic.connect_four_v3:env"])
def test_multi_agent_envs_are_measured(env: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", env, "--num-envs", "2", "--executors", "serial", "process", "--json", *QUICK]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["plain_loop_steps_per_s"] > 0 and found["machine_limit_steps_per_s"] > 0
    assert all(one["steps_per_s"] > 0 for one in found["results"])

"""`multiverse check-env`: findings or one JSON object on standard output, progress on standard error."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from multiverse.cli.main import main
from multiverse.env_checker.examine import CHECKS

ENVS = "tests.env_checker.broken_envs"
QUICK = ["--steps", "50"]


def test_valid_env_exits_with_code_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-env", "CartPole-v1", *QUICK]) == 0
    captured = capsys.readouterr()
    assert captured.out.splitlines()[-1] == "CartPole-v1: 0 errors, 0 warnings, 1 info"
    progress = captured.err.splitlines()
    assert len(progress) == len(CHECKS) and progress[0] == "[1/12] checking: building and closing"


def test_errors_exit_with_code_1_and_say_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-env", f"{ENVS}:StepRaises", "--seed", "4", *QUICK]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "error  step-raises"
    text = " ".join(line.strip() for line in lines)
    assert "ZeroDivisionError: between two walls" in text and "after reset(seed=4)" in text
    assert "→ look at the line that raised" in text
    assert text.count("not done, after step-raises: ") == 1 and "ownership of arrays, seeds, two envs" in text
    assert lines[-1] == f"{ENVS}:StepRaises: 1 error, 0 warnings, 0 info; 8 checks not done"


def test_strict_flag_makes_warnings_fail(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["check-env", f"{ENVS}:ReusesInfo", *QUICK]
    assert main(arguments) == 0
    assert "warning  info-reused" in capsys.readouterr().out
    assert main([*arguments, "--strict"]) == 1


def test_json_is_the_whole_output(capfd: pytest.CaptureFixture[str]) -> None:
    arguments = [f"{ENVS}:OddReward", "--env-kwargs", '{"odd": null}', "--json", *QUICK]
    assert main(["check-env", *arguments]) == 1
    found = json.loads(capfd.readouterr().out)
    assert (found["env"], found["env_kwargs"]) == (f"{ENVS}:OddReward", {"odd": None})
    assert (found["ok"], found["errors"], found["warnings"], found["seed"]) == (False, 1, 0, 0)
    assert found["findings"][0]["code"] == "reward-not-number"
    assert set(found["findings"][0]) == {"code", "severity", "seen", "why", "remedy"}
    assert [check["name"] for check in found["checks"]] == list(CHECKS)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["NoSuchEnv-v0"], "NoSuchEnv"),
        (["no_such_module:make"], "no_such_module"),
        (["CartPole-v1", "--env-kwargs", "[1]"], "expected a JSON object"),
        (["CartPole-v1", "--steps", "0"], "--steps 0"),
        (["CartPole-v1", "--timeout-s", "0"], "--timeout-s 0"),
        (["CartPole-v1", "--seed", "-1"], "seed=-1"),
    ],
)
def test_invalid_request_is_refused_in_one_line(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check-env", *arguments]) == 2
    captured = capsys.readouterr()
    (line,) = captured.err.splitlines()
    assert captured.out == "" and line.startswith("multiverse check-env: ") and said in line


def test_arguments_that_the_env_does_not_accept_are_a_finding(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-env", "CartPole-v1", "--env-kwargs", '{"no_such": 1}']) == 1
    out = capsys.readouterr().out
    assert "error  build-failed" in out and "no_such" in out


def test_env_in_the_working_directory_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "checked_env_of_ones_own.py").write_text(
        "from tests.env_checker.broken_envs import StepRaises as Mine\n"
    )
    monkeypatch.chdir(tmp_path)
    assert main(["check-env", "checked_env_of_ones_own:Mine", *QUICK]) == 1
    assert "between two walls" in capsys.readouterr().out


def test_ctrl_c_during_a_hang_exits_without_output() -> None:
    command = [sys.executable, "-m", "multiverse.cli", "check-env", f"{ENVS}:Hangs"]
    root = Path(__file__).parents[2]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0, cwd=root
    )
    assert process.stderr is not None
    while "checking: steps" not in process.stderr.readline():
        pass
    os.killpg(process.pid, signal.SIGINT)
    out, rest = process.communicate(timeout=30)
    assert (process.returncode, out, rest) == (130, "", "")


@pytest.mark.parametrize("env", ["mpe2.simple_spread_v3:parallel_env", "pettingzoo.classic.connect_four_v3:env"])
def test_pettingzoo_envs_are_checked_agent_by_agent(env: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-env", env, *QUICK, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert {finding["severity"] for finding in report["findings"]} == {"info"}
    assert not any(check["skipped_because"] for check in report["checks"])

"""The command line as a whole: how the command is found, and its output if something fails."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pytest

import multiverse
from multiverse.cli import main as cli
from multiverse.cli.main import main
from multiverse.cli.options import argument, option, parse
from multiverse.core.errors import EnvFailed, InvalidRequest, MultiverseError, RemoteError
from tests.cli.training_commands import SMALL

COMMAND = [sys.executable, "-m", "multiverse.cli"]


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("finished") / "run"
    assert main(["train", "CartPole-v1", *SMALL, "--env-steps", "128", "--run-dir", str(run), "--quiet"]) == 0
    return run


def fake_command(monkeypatch: pytest.MonkeyPatch, run: Any) -> None:
    monkeypatch.setattr(cli.importlib, "import_module", lambda name: SimpleNamespace(run=run))


def raising(error: BaseException) -> Any:
    def run(arguments: list[str]) -> int:
        raise error

    return run


def test_version_flag_prints_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"multiverse {multiverse.__version__}\n"


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"], ["help"]])
def test_help_names_every_command(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 0
    out = capsys.readouterr().out
    assert all(f"\n  {name} " in out for name in cli.COMMANDS)
    assert "example" in out and max(map(len, out.splitlines())) <= 80


@pytest.mark.parametrize("command", list(cli.COMMANDS))
def test_help_of_every_command_has_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--help"]) == 0
    out = capsys.readouterr().out
    assert f"\n  multiverse {command}" in out
    assert max(map(len, out.splitlines())) <= 80


@pytest.mark.parametrize(
    ("typed", "hint"),
    [
        ("bnech", "`multiverse bench`"),
        ("Doctor", "doctor"),
        ("xyz", "`multiverse --help` lists all commands"),
        ("--verison", "`multiverse --version`"),
    ],
)
def test_unknown_command_gets_a_hint(typed: str, hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([typed]) == 2
    assert hint in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ("train CartPole-v1 --gama 0.9", "multiverse train: there is no --gama; did you mean --gamma?"),
        ("bench CartPole-v1 --exectors serial", "multiverse bench: there is no --exectors; did you mean --executors?"),
        ("list --xyz", "multiverse list: there is no --xyz; `multiverse list --help` lists the options"),
        (
            "list netwroks",
            "multiverse list: WHAT: expected one of {everything}, found 'netwroks'. Did you mean networks?",
        ),
        ("bench A --executors x", "multiverse bench: --executors: expected one of {executors}, found 'x'"),
        ("evaluate a --which first", "multiverse evaluate: --which: expected one of latest, best, found 'first'"),
        ("check-env A --steps few", "multiverse check-env: --steps: expected a whole number, found 'few'"),
        ("demo --seconds", "multiverse demo: --seconds: expected one argument"),
        ("doctor now", "multiverse doctor: unexpected argument 'now'; `multiverse doctor --help` lists the options"),
        ("bench A B", "multiverse bench: unexpected argument 'B'; `multiverse bench --help` lists the options"),
        ("replay", "multiverse replay: RUN is missing; for example: `multiverse replay runs/CartPole-v1 --episode 3`"),
    ],
)
def test_mistyped_options_of_all_commands_are_answered_in_one_line(
    arguments: str, error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    everything = "everything, envs, presets, algorithms, networks, runs"
    executors = "auto, serial, thread, process, hybrid, ray"
    assert main(arguments.split()) == 2
    assert capsys.readouterr() == ("", f"{error.format(everything=everything, executors=executors)}\n")


@dataclasses.dataclass(frozen=True)
class Sample:
    """Options of no command, with a field of each kind."""

    env: str = argument("ENV", "")
    num_envs: tuple[int, ...] = option((8, 64), "")
    workers: int | None = option(4, "")
    seconds: float = option(0.5, "", aliases=("--duration",))
    which: Literal["latest", "best"] = option("latest", "")
    train: bool = option(True, "")
    json: bool = option(False, "")


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        ("A", Sample("A")),
        ("A --num_envs 8 9 --JSON", Sample("A", num_envs=(8, 9), json=True)),
        ("--workers none A --no-train", Sample("A", workers=None, train=False)),
        ("A --duration 1e-2 --which=best", Sample("A", seconds=0.01, which="best")),
    ],
)
def test_options_are_read_in_all_their_spellings(arguments: str, options: Sample) -> None:
    assert parse(Sample, "sample", "", arguments.split()) == options


def test_error_is_one_line_with_exit_code_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_command(monkeypatch, raising(InvalidRequest("it cannot be\nand here is more")))
    assert main(["bench"]) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "multiverse bench: it cannot be\n")


def test_error_of_an_env_names_the_line_that_raised() -> None:
    try:
        raise ZeroDivisionError("nothing to share")
    except ZeroDivisionError as error:
        failure = EnvFailed("raised in step", 1, [RemoteError.of(error, 3)], "Hint: do not.")
    line = cli.one_line(failure)
    assert line.startswith("env 3 raised in step: ZeroDivisionError: nothing to share")
    assert os.path.basename(__file__) in line and line.endswith("Hint: do not.") and "\n" not in line


def test_error_without_message_prints_its_class() -> None:
    assert cli.one_line(MultiverseError()) == "MultiverseError"


def test_ctrl_c_prints_nothing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    fake_command(monkeypatch, raising(KeyboardInterrupt()))
    assert main(["demo"]) == 130
    assert capsys.readouterr() == ("", "")


def test_unexpected_exception_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_command(monkeypatch, raising(RuntimeError("a bug")))
    with pytest.raises(RuntimeError, match="a bug"):
        main(["demo"])


# -- real processes --------------------------------------------------------------------------------------------
def test_help_imports_no_heavy_package() -> None:
    code = (
        "import sys; from multiverse.cli.main import main; main(['--help']);"
        "print([m for m in ('numpy', 'gymnasium', 'rich', 'psutil', 'torch') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("[]\n")


def test_help_of_a_command_does_not_import_gymnasium() -> None:
    code = (
        "import sys; from multiverse.cli.main import main\n"
        "for command in ('bench', 'demo', 'doctor'): main([command, '--help'])\n"
        "print([m for m in ('gymnasium', 'torch') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("[]\n")


@pytest.mark.parametrize("arguments", [["--help"], ["doctor"], ["bench", "--help"]])
def test_closed_output_pipe_gives_no_traceback(arguments: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([*COMMAND, *arguments], stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert done.returncode == 141
    assert "Traceback" not in done.stderr and "Exception" not in done.stderr


@pytest.mark.fault("A14")
def test_ctrl_c_during_a_measurement_exits_without_output() -> None:
    command = [*COMMAND, "bench", "CartPole-v1", "--seconds", "60"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0)
    assert process.stderr is not None
    first = process.stderr.readline()  # it measures now
    time.sleep(0.2)
    os.killpg(process.pid, signal.SIGINT)
    out, rest = process.communicate(timeout=30)
    assert process.returncode == 130
    assert (out, rest) == ("", "") and "limit" in first


@pytest.mark.parametrize(
    "arguments",
    [
        ["list", "presets"],
        ["doctor"],
        ["list", "--help"],
        ["train", "CartPole-v1"],
        ["train", "CartPole-v1", "--quiet"],
        ["train", "CartPole-v1", "--json"],
        ["resume", "RUN", "--env-steps", "256"],
        ["evaluate", "RUN", "--episodes", "1"],
        ["compare", "RUN", "OTHER"],
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("stream", [1, 2])
@pytest.mark.fault("F4")
def test_commands_succeed_with_a_closed_standard_stream(
    arguments: list[str], stream: int, tmp_path: Path, finished_run: Path
) -> None:
    run = tmp_path / "run"
    if "RUN" in arguments:
        paths = {"RUN": str(shutil.copytree(finished_run, run)), "OTHER": str(finished_run)}
        arguments = [paths.get(one, one) for one in arguments]
    more = [*SMALL, "--env-steps", "128", "--run-dir", str(run)] if arguments[0] == "train" else []
    shell = ["sh", "-c", f'exec "$@" {stream}>&-', "sh", *COMMAND, *arguments, *more]
    done = subprocess.run(shell, capture_output=True, text=True)
    assert done.returncode == 0 and "Traceback" not in done.stderr
    if arguments[0] in ("train", "resume"):
        expected = 256 if arguments[0] == "resume" else 128
        assert json.loads((run / "summary.json").read_text())["env_steps"] == expected


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
@pytest.mark.parametrize(
    "arguments",
    [
        ["list", "presets"],
        ["doctor"],
        ["doctor", "--json"],
        ["--help"],
        ["evaluate", "RUN", "--episodes", "1"],
        ["report", "RUN", "--out", "OUT"],
        ["plot", "RUN", "--out", "OUT"],
    ],
    ids=" ".join,
)
@pytest.mark.fault("F4")
def test_commands_whose_output_cannot_be_written_exit_with_an_error_message(
    arguments: list[str], tmp_path: Path, finished_run: Path
) -> None:
    paths = {"RUN": str(finished_run), "OUT": str(tmp_path / "out.html")}
    arguments = [paths.get(one, one) for one in arguments]
    with open("/dev/full", "w") as full:
        done = subprocess.run([*COMMAND, *arguments], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2 and "Traceback" not in done.stderr and "Exception" not in done.stderr
    assert done.stderr.endswith("the output could not be written: No space left on device\n")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
@pytest.mark.parametrize("arguments", [["doctor"], ["no-command"], ["train", "NoEnv-v0"]], ids=" ".join)
def test_commands_whose_errors_cannot_be_written_end_with_code_2(arguments: list[str]) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run([*COMMAND, *arguments], stdout=subprocess.DEVNULL, stderr=full)
    assert done.returncode == 2

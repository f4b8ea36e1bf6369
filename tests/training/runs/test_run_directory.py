"""Run directories: their place, contents, refusals, and how they are truncated."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from multiverse.core.errors import InvalidRequest, MultiverseError, RunLocked
from multiverse.rollouts.episodes import Episode
from multiverse.training.events import EpisodesEnded, MetricsLogged
from multiverse.training.runs import run_directory
from multiverse.training.runs.checkpoint import Checkpoints
from multiverse.training.runs.find_runs import find_run
from multiverse.training.runs.run_directory import RunDirectory, safe_name


@pytest.fixture
def run(tmp_path: Path) -> Iterator[RunDirectory]:
    with RunDirectory.create(tmp_path / "runs", env="CartPole-v1", algorithm="ppo", seed=1) as run:
        run.write_config({"env": "CartPole-v1"})
        yield run


def test_run_directory_is_named_after_env_algorithm_seed_and_time(run: RunDirectory, tmp_path: Path) -> None:
    assert run.path.parent == tmp_path / "runs" / "CartPole-v1"
    assert run.path.name.startswith("ppo-1-20") and len(run.path.name) == len("ppo-1-20260101-000000")
    assert run.checkpoints == run.path / "checkpoints" and run.checkpoints.is_dir()


def test_runs_of_one_second_have_different_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_directory.time, "strftime", lambda form: "now")
    runs = [RunDirectory.create(tmp_path, env="E", algorithm="a", seed=0) for _ in range(3)]
    assert [run.path.name for run in runs] == ["a-0-now", "a-0-now-2", "a-0-now-3"]
    for run in runs:
        run.close()


@pytest.mark.parametrize(
    "env, name",
    [
        ("CartPole-v1", "CartPole-v1"), ("ALE/Pong-v5", "ALE-Pong-v5"), ("my.mod:make", "my.mod-make"),
        ("../../etc", "etc"), ("..", "unnamed"), ("<function f at 0x1>", "function-f-at-0x1"), ("", "unnamed"),
        ("a" * 300, "a" * 80), ("-rf", "rf"), ("naïve env\n", "na-ve-env"),
        ("<lambda>", "lambda"), ("<lambda>.<locals>.<lambda>", "lambda"), ("make.<locals>.<lambda>", "make"),
        ("make.<locals>.thunk", "make.thunk"),
    ],
)  # fmt: skip
def test_every_env_name_gives_a_safe_directory_name(env: str, name: str, tmp_path: Path) -> None:
    assert safe_name(env) == name
    with RunDirectory.create(tmp_path, env=env, algorithm="a/b", seed=3) as run:
        assert run.path.parent == tmp_path / name and run.path.name.startswith("a-b-3-")


def test_given_directory_is_used(tmp_path: Path) -> None:
    for path in (tmp_path / "new" / "deep", tmp_path / "empty"):
        (tmp_path / "empty").mkdir(exist_ok=True)
        with RunDirectory.create(env="E", algorithm="a", seed=0, run_dir=path) as run:
            assert run.path == path


def test_directory_with_other_files_is_refused_and_unchanged(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(InvalidRequest, match=r"not empty and holds no run .there is thesis\.tex"):
        RunDirectory.create(env="E", algorithm="a", seed=0, run_dir=tmp_path)
    with pytest.raises(InvalidRequest, match="is a file"):
        RunDirectory.create(env="E", algorithm="a", seed=0, run_dir=tmp_path / "thesis.tex")
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.fault("D7")
def test_directory_of_another_run_is_refused_unless_resumed(run: RunDirectory) -> None:
    before = sorted(run.path.rglob("*"))
    with pytest.raises(InvalidRequest, match="already holds a run: resume it"):
        RunDirectory.create(env="E", algorithm="a", seed=0, run_dir=run.path)
    with pytest.raises(RunLocked, match=str(os.getpid())):
        RunDirectory.open(run.path)
    assert sorted(run.path.rglob("*")) == before
    run.close()
    RunDirectory.open(run.path).close()


def test_run_killed_before_its_start_can_be_started_again(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "run.lock").write_text("")
    RunDirectory.create(env="E", algorithm="a", seed=0, run_dir=tmp_path).close()


def test_written_files_are_read_back(run: RunDirectory) -> None:
    assert not (run.path / "summary.json").exists()
    run.write_summary({"env_steps": 10, "evaluation": {"mean_return": float("nan")}})
    run.write_summary({"env_steps": 20, "evaluation": {"mean_return": float("nan")}})
    run.write_provenance({"seed": 1})
    run.write_provenance({"seed": 1, "resumed": True})
    config = {"env": "my.mod:make", "lr": 1e-3, "steps": 100, "name": "1e-3", "sizes": [64, 64], "none": None}
    run.write_config(config)
    assert json.loads((run.path / "summary.json").read_text()) == {"env_steps": 20, "evaluation": {"mean_return": None}}
    assert run.run_id and json.loads((run.path / "provenance.json").read_text())["parts"] == [
        {"run_id": run.run_id, "seed": 1}, {"run_id": run.run_id, "seed": 1, "resumed": True},
    ]  # fmt: skip
    assert run.read_config() == config


@pytest.mark.fault("D1")
def test_file_is_replaced_completely_or_not_at_all(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    run.write_summary({"good": True})

    def full(descriptor: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(OSError, match="No space"):
            run.write_summary({"good": False})
    assert json.loads((run.path / "summary.json").read_text()) == {"good": True}
    assert [path.name for path in run.path.iterdir() if path.name.startswith(".")] == []


def test_temporary_files_of_a_killed_writer_are_removed_on_open(run: RunDirectory) -> None:
    (run.path / ".writing-summary.json-12345678").write_text("half")
    run.close()
    RunDirectory.open(run.path).close()
    assert list(run.path.glob(".writing-*")) == []


def filled(run: RunDirectory) -> dict[str, int]:
    """Write two lines of metrics and one episode, then the position, then one more of each with a new column."""
    sinks = run.sinks()
    for step in (10, 20):
        sinks.handle(MetricsLogged(env_steps=step, metrics={"return": step / 3, "phase": "a, b"}))
    sinks.handle(EpisodesEnded(env_steps=10, episodes=[Episode(0, 0, 2**80, 1.5, 10)]))
    position = run.position()
    for event in LATER:
        sinks.handle(event)
    return position


LATER = (
    MetricsLogged(env_steps=30, metrics={"return": 9.0, "loss": 0.5}),
    EpisodesEnded(env_steps=30, episodes=[Episode(1, 0, 3, 2.5, 20)]),
)


def contents(run: RunDirectory) -> list[str]:
    return [(run.path / name).read_text() for name in ("metrics.jsonl", "metrics.csv", "episodes.jsonl")]


def test_files_are_cut_back_to_a_position(run: RunDirectory) -> None:
    position = filled(run)
    assert contents(run)[1].splitlines() == [
        "env_steps,return,phase,loss", '10,3.3333333333333335,"a, b",', '20,6.666666666666667,"a, b",', "30,9.0,,0.5",
    ]  # fmt: skip
    run.cut_back(position)
    metrics, table, episodes = contents(run)
    assert [json.loads(line)["env_steps"] for line in metrics.splitlines()] == [10, 20]
    assert table.splitlines()[0] == "env_steps,return,phase" and len(table.splitlines()) == 3
    assert json.loads(episodes)["seed"] == 2**80
    run.sinks().handle(LATER[0])
    assert contents(run)[1].splitlines()[-1] == "30,9.0,,0.5"
    assert run.position()["metrics.jsonl"] == len(contents(run)[0])


def test_resumed_run_writes_the_same_files_as_an_uninterrupted_one(run: RunDirectory, tmp_path: Path) -> None:
    position = filled(run)
    whole = contents(run)
    run.close()
    for name in ("metrics.jsonl", "metrics.csv", "episodes.jsonl"):
        with (run.path / name).open("a") as file:
            file.write('{"env_steps": 40, "ret')  # killed in the middle of a line
    with RunDirectory.open(run.path) as again:
        again.cut_back(position)
        sinks = again.sinks()
        for event in LATER:
            sinks.handle(event)
        assert contents(again) == whole


def test_cut_back_to_the_start_empties_the_files(run: RunDirectory) -> None:
    filled(run)
    run.cut_back({})
    assert run.position() == {"metrics.jsonl": 0, "episodes.jsonl": 0}
    assert not (run.path / "metrics.csv").exists()


def test_file_that_lost_lines_is_reported_and_cut_to_whole_lines(
    run: RunDirectory, caplog: pytest.LogCaptureFixture
) -> None:
    position = filled(run)
    os.truncate(run.path / "metrics.jsonl", position["metrics.jsonl"] - 3)
    run.cut_back(position)
    assert "metrics.jsonl is" in caplog.text and "lines are missing" in caplog.text
    assert len(contents(run)[0].splitlines()) == 1 and contents(run)[0].endswith("\n")


@pytest.mark.fault("D3")
@pytest.mark.parametrize("bad", [b"half a li", b"[1, 2]", b"null", b"\xff\xfe", b"[" * 100_000, b""])
def test_malformed_line_is_reported_and_skipped(
    bad: bytes, run: RunDirectory, caplog: pytest.LogCaptureFixture
) -> None:
    filled(run)
    first, *rest = (run.path / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    (run.path / "metrics.jsonl").write_bytes(b"".join([first, bad, b"\n", *rest]))
    run.cut_back({"metrics.jsonl": (run.path / "metrics.jsonl").stat().st_size})
    table = (run.path / "metrics.csv").read_text().splitlines()
    assert [line.partition(",")[0] for line in table] == ["env_steps", "10", "20", "30"]
    assert caplog.messages == [f"{run.path / 'metrics.jsonl'}: line 2 was malformed and skipped"]


@pytest.mark.fault("D2")
def test_unwritable_directory_is_refused_in_one_line(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    run.close()
    real = os.open

    def no_new_file(path: Path, flags: int, *mode: int) -> int:
        return refuse(path) if flags & os.O_CREAT else real(path, flags, *mode)

    def refuse(path: Path, *_: int) -> int:
        raise OSError(30, "Read-only file system", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", no_new_file)
        patch.setattr(os, "mkdir", refuse)
        for make in (RunDirectory.open, lambda path: RunDirectory.create(path, env="E", algorithm="a", seed=0)):
            with pytest.raises(MultiverseError, match="Read-only file system") as refused:
                make(run.path)
            assert "\n" not in str(refused.value) and str(run.path) in str(refused.value)
    with RunDirectory.open(run.path) as again:  # the lock was not kept
        monkeypatch.setattr(os, "open", no_new_file)
        for write in (again.write_config, again.write_summary, again.write_provenance, again.write_spaces):
            with pytest.raises(MultiverseError, match=r"cannot be written to .*Read-only file system"):
                write({})


@pytest.mark.fault("F4")
def test_unwritable_episodes_file_is_reported_once_without_ending_the_run(
    run: RunDirectory, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    sinks = run.sinks()
    sinks.handle(LATER[1])
    before = run.position()
    real, limit = os.write, 5

    def fills_up(descriptor: int, data: bytes) -> int:
        if len(data) <= limit:
            raise OSError(28, "No space left on device")
        return real(descriptor, data[:limit])

    monkeypatch.setattr(os, "write", fills_up)
    for _ in range(3):
        sinks.handle(LATER[1])
    assert len(caplog.messages) == 1 and "episodes.jsonl" in caplog.text
    assert run.position() == before  # and no half line


def test_run_is_found_by_its_directory_its_checkpoints_or_a_parent(run: RunDirectory, tmp_path: Path) -> None:
    saved = Checkpoints(run.checkpoints).save({}, {}, 1)
    assert saved is not None
    for path in (run.path, run.checkpoints, run.path.parent, tmp_path / "runs", tmp_path):
        assert find_run(path) == (run.path, None)
    assert find_run(saved) == (run.path, saved)


def test_most_recently_written_of_several_runs_is_found(
    run: RunDirectory, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "multiverse")
    with RunDirectory.create(tmp_path / "runs", env="Other", algorithm="ppo", seed=2) as other:
        other.write_config({})
    for path in run.path.iterdir():
        os.utime(path, (2e9, 2e9))
    assert find_run(tmp_path / "runs").path == run.path
    assert "holds 2 runs" in caplog.text


def test_missing_run_is_reported(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="no such directory"):
        find_run(tmp_path / "nowhere")
    with pytest.raises(InvalidRequest, match="there is no run here or in the directories below") as refused:
        find_run(tmp_path)
    assert "*" not in str(refused.value)
    with pytest.raises(InvalidRequest, match="there is no run here"):
        RunDirectory.open(tmp_path)
    assert list(tmp_path.iterdir()) == []

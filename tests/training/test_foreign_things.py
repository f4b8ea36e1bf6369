"""Contents of a run's directory: links are refused, foreign files stay, and named checkpoints are used."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import multiverse as mv
from multiverse.cli.main import main
from multiverse.core.errors import CheckpointBroken
from multiverse.training.evaluation import Evaluation
from multiverse.training.loading import evaluate
from multiverse.training.runs.files import LineFile, RunLock, cut, read_lines
from tests.training.small_runs import SMALL, digest, lines_of


def trained(home: Path, **settings: Any) -> Path:
    return mv.train("CartPole-v1", run_dir=home, **{**SMALL, "env_steps": 100, **settings}).path


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("plain") / "run")


def resumed(run: Path) -> None:
    mv.resume(run, env_steps=200)


# -- links -----------------------------------------------------------------------------------------------------------
OWN_FILES = (
    "run.lock", "episodes.jsonl", "metrics.jsonl", "metrics.csv", "config.yaml", "summary.json", "provenance.json",
    "spaces.json", "origin.json", "advice.jsonl", "num_envs.jsonl", "checkpoints/best/state.json",
    "checkpoints/step-000000000100/manifest.json",
)  # fmt: skip
OWN_FOLDERS = ("checkpoints", "checkpoints/best", "checkpoints/step-000000000100", "tensorboard")
ASIDE = ("checkpoints/.replaced-best", "checkpoints/.saving-best-01234567", "checkpoints/step-000000000100.broken")


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def linked(run: Path, name: str, target: Path) -> None:
    if (run / name).is_dir():
        shutil.rmtree(run / name)
    (run / name).unlink(missing_ok=True)
    (run / name).symlink_to(target)


@pytest.mark.fault("E7")
@pytest.mark.parametrize("name", [*OWN_FILES, *OWN_FOLDERS, *ASIDE])
@pytest.mark.parametrize("go", [resumed, mv.load, evaluate])
def test_symbolic_link_in_a_run_is_refused(go: Callable[..., Any], name: str, plain: Path, tmp_path: Path) -> None:
    """It leads to files of the user that look like those of a run."""
    run, victim = (Path(shutil.copytree(plain, tmp_path / place)) for place in ("run", "victim"))
    other = victim / ("metrics.jsonl" if name in OWN_FILES else "checkpoints/best")
    linked(run, name, victim / name if (victim / name).exists() else other)
    before = contents(victim), contents(run)
    with pytest.raises(mv.errors.InvalidRequest, match="is a symbolic link, which is not followed") as refused:
        go(run)
    assert str(run / name) in str(refused.value) and "\n" not in str(refused.value)
    assert (contents(victim), contents(run)) == before


@pytest.mark.fault("E7")
def test_checkpoint_that_is_a_symbolic_link_is_refused(plain: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(plain, tmp_path / "run"))
    linked(run, "checkpoints/best", plain / "checkpoints" / "best")
    with pytest.raises(mv.errors.InvalidRequest, match="is a symbolic link"):
        mv.resume(run / "checkpoints" / "best", env_steps=200)


@pytest.mark.fault("E7")
def test_symbolic_link_created_later_is_refused(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("mine\n")
    (tmp_path / "metrics.jsonl").symlink_to(tmp_path / "victim")
    for touch in (LineFile, lambda path: cut(path, 0), lambda path: list(read_lines(path))):
        with pytest.raises(OSError, match="it is a symbolic link, which is not followed"):
            touch(tmp_path / "metrics.jsonl")
    (tmp_path / "run.lock").symlink_to(tmp_path / "victim")
    with pytest.raises(OSError, match="it is a symbolic link"):
        RunLock(tmp_path)
    assert (tmp_path / "victim").read_text() == "mine\n"


@pytest.mark.fault("E7")
@pytest.mark.parametrize("exists", [True, False])
@pytest.mark.parametrize("command", ["resume", "evaluate", "mv.resume"])
def test_seed_directory_that_is_a_symbolic_link_is_refused(
    command: str, exists: bool, plain: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    elsewhere, several = Path(shutil.copytree(plain, tmp_path / "elsewhere")), tmp_path / "several"
    settings = {**SMALL, "env_steps": 100, "progress": False}
    mv.train("CartPole-v1", run_dir=several, seeds=2, **settings)
    shutil.rmtree(several / "seed-6")
    (several / "seed-6").symlink_to(elsewhere if exists else tmp_path / "gone")
    before = contents(elsewhere), contents(several)
    message = "seed-6 is a symbolic link, which is not followed"
    if command == "mv.resume":
        with pytest.raises(mv.errors.InvalidRequest, match=message):
            mv.resume(several, env_steps=200)
    else:
        assert main([command, str(several), *(["--env-steps", "200"] if command == "resume" else [])]) == 2
        assert message in capsys.readouterr().err
    assert (contents(elsewhere), contents(several)) == before and not (tmp_path / "gone").exists()


@pytest.mark.fault("E7")
@pytest.mark.parametrize("name", ["config.yaml", "seeds.json", "origin.json"])
def test_file_of_a_seed_set_that_is_a_symbolic_link_is_refused(
    name: str, plain: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    several, elsewhere = tmp_path / "several", tmp_path / "elsewhere"
    shutil.copytree(plain, several / "seed-5")
    shutil.copyfile(plain / "config.yaml", several / "config.yaml")
    (several / "seeds.json").write_text('{"seeds": [5]}')
    elsewhere.write_bytes((several / name).read_bytes() if (several / name).exists() else b"")
    (several / name).unlink(missing_ok=True)
    (several / name).symlink_to(elsewhere)
    assert main(["resume", str(several), "--env-steps", "200"]) == 2
    assert f"{name} is a symbolic link, which is not followed" in capsys.readouterr().err


def test_symbolic_link_to_a_run_is_followed(plain: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(plain, tmp_path / "run"))
    (tmp_path / "latest").symlink_to(run)
    assert mv.resume(tmp_path / "latest", env_steps=200).summary["env_steps"] == 200
    (tmp_path / "one").symlink_to(run / "checkpoints" / "step-000000000100")
    assert mv.load(tmp_path / "one").act(np.zeros(4, np.float32)) in (0, 1)


@pytest.mark.fault("E7")
@pytest.mark.parametrize("name", OWN_FILES)
@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
def test_special_file_in_a_run_is_refused_in_one_line(
    make: Callable[[Path], None], name: str, plain: Path, tmp_path: Path
) -> None:
    run = Path(shutil.copytree(plain, tmp_path / "run"))
    (run / name).unlink(missing_ok=True)
    make(run / name)
    with pytest.raises(mv.errors.InvalidRequest, match=r"no run here|a run has a plain file there") as refused:
        mv.resume(run, env_steps=200)
    assert "\n" not in str(refused.value)


# -- only what we wrote ----------------------------------------------------------------------------------------------
@pytest.mark.fault("E7")
def test_foreign_files_beside_checkpoints_are_neither_read_nor_removed(plain: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(plain, tmp_path / "run"))
    folder = run / "checkpoints"
    ours = contents(run)
    for name in ("backup-20261231", "step-999", "step-0000000009999", "best-2", "step-000000000900.bak"):
        shutil.copytree(folder / "best", folder / name)
    for name in ("notes-1", ".saving-mine", ".replaced-mine", ".removing-it", ".saving-best-now", "thesis.broken"):
        (folder / name).mkdir()
        (folder / name / "note.txt").write_text(name)
    (run / ".writing-mine").mkdir()
    (run / ".writing-summary.json-thoughts").write_text("mine")
    theirs = contents(run).items() - ours.items()
    begun = Begins()
    for steps in (200, 300, 400, 500):
        mv.resume(run, env_steps=steps, hooks=[begun])
    assert begun.env_steps == [100, 200, 300, 400]
    assert theirs <= contents(run).items() and (run / ".writing-mine").is_dir()
    assert "step-000000000100" not in os.listdir(folder)


@pytest.mark.fault("E7")
def test_foreign_files_inside_a_checkpoint_are_kept(
    plain: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Path(shutil.copytree(plain, tmp_path / "run"))
    for name in ("best", "step-000000000100"):
        (run / "checkpoints" / name / "note.txt").write_text(name)
    monkeypatch.setattr(
        "multiverse.training.env_states.evaluate", lambda *_, **more: Evaluation((1e9,), (1,))
    )  # a new best
    for steps in (200, 300, 400, 500):
        mv.resume(run, env_steps=steps)
    names = {path.name for path in (run / "checkpoints").iterdir()}
    assert {"best.leftovers", "step-000000000100.leftovers"} <= names and "step-000000000100" not in names
    for name in ("best", "step-000000000100"):
        left = run / "checkpoints" / f"{name}.leftovers"
        assert {path.name: path.read_text() for path in left.iterdir()} == {"note.txt": name}
        assert f"{left}: " in caplog.text


# -- which checkpoint ------------------------------------------------------------------------------------------------
class Begins(mv.Hook):
    """Hook that notes where each part of a run begins."""

    def __init__(self) -> None:
        self.env_steps: list[int] = []
        self.checkpoints: list[list[str]] = []

    def on_start(self, trainer: Any) -> None:
        self.env_steps.append(trainer.clock.env_steps)
        self.checkpoints.append(os.listdir(trainer.directory.checkpoints))


class Saves(mv.Hook):
    """Hook that saves a checkpoint after every update."""

    def on_update(self, trainer: Any, report: Any) -> None:
        trainer.save()


@pytest.fixture
def long(tmp_path: Path) -> Path:
    """A run with checkpoints at 200, 300 and 400 env steps; the last one is the best too."""
    return trained(tmp_path / "long", hooks=(Saves(),), env_steps=400)


@pytest.mark.fault("D5")
def test_run_resumes_from_a_named_checkpoint(long: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    whole = Path(shutil.copytree(long, tmp_path / "whole"))
    begun = Begins()
    again = mv.resume(long / "checkpoints" / "step-000000000200", hooks=[begun])
    assert (begun.env_steps, begun.checkpoints) == ([200], [["step-000000000200"]]) and again.path == long
    assert "(step-000000000400, step-000000000300, best)" in caplog.text
    assert digest(long) == digest(whole)
    assert lines_of(long, "metrics.jsonl") == lines_of(whole, "metrics.jsonl")


@pytest.mark.fault("D5")
def test_run_resumes_from_its_best_checkpoint(long: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(
            "multiverse.training.env_states.evaluate", lambda *_, **more: Evaluation((-1.0,), (1,))
        )  # none better
        mv.resume(long, env_steps=600)
    begun = Begins()
    mv.resume(long / "checkpoints" / "best", hooks=[begun])
    assert begun.env_steps == [400]
    assert {"best", "step-000000000600"} <= set(os.listdir(long / "checkpoints"))


@pytest.mark.fault("D3")
def test_broken_named_checkpoint_is_an_error_and_changes_nothing(long: Path) -> None:
    (long / "checkpoints" / "step-000000000300" / "state.json").write_text("{}")
    before = contents(long)
    with pytest.raises(CheckpointBroken, match="step-000000000300"):
        mv.resume(long / "checkpoints" / "step-000000000300", env_steps=900)
    assert contents(long) == before


@pytest.mark.fault("D3")
def test_run_that_lost_its_checkpoints_is_an_error_and_no_fresh_start(plain: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(plain, tmp_path / "run"))
    for path in (run / "checkpoints").iterdir():
        shutil.rmtree(path)
    for _ in range(2):
        before = contents(run)
        with pytest.raises(
            CheckpointBroken, match=r"none of those that this run had is left.* --config .*config\.yaml"
        ):
            mv.resume(run, env_steps=500)
        assert contents(run) == before
        (run / "summary.json").unlink(missing_ok=True)  # as one that was killed
    with pytest.raises(mv.errors.InvalidRequest, match="no checkpoint any more"):
        mv.load(run)


@pytest.mark.fault("D3")
def test_summary_of_an_older_version_shows_that_a_checkpoint_existed(plain: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(plain, tmp_path / "run"))
    shutil.rmtree(run / "checkpoints")
    (run / "checkpoints").mkdir()
    (run / "provenance.json").unlink()
    with pytest.raises(CheckpointBroken, match="none of those"):
        mv.resume(run)


@pytest.mark.fault("D3")
def test_run_that_never_had_a_checkpoint_starts_again_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Stumbles(mv.Hook):
        def on_rollout(self, trainer: Any, collected: Any) -> None:
            trainer._whole = False  # as in the middle of an update
            raise LookupError("a hook of mine")

    with pytest.raises(LookupError):
        trained(tmp_path / "run", hooks=(Stumbles(),))
    assert list((tmp_path / "run" / "checkpoints").iterdir()) == []
    assert mv.resume(tmp_path / "run").summary["env_steps"] == 100
    assert "ended before its first checkpoint: it starts from the beginning" in caplog.text

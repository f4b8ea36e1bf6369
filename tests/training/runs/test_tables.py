"""Tables beside the checkpoints: a checkpoint writes only new records and keeps those that it names."""

from __future__ import annotations

import functools
import itertools
import logging
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from multiverse.core.errors import CheckpointBroken
from multiverse.core.tables import Table
from multiverse.training.runs import tables
from multiverse.training.runs.checkpoint import Checkpoints, load, load_latest
from multiverse.training.runs.tables import TABLES
from tests.training.runs.disk_faults import NEVER, FullDisk, moments, survives

DTYPE = np.dtype([("number", np.int64), ("words", np.uint8, (3, 4))])


def records(first: int, last: int) -> Any:
    found = np.zeros(last - first, DTYPE)
    found["number"] = np.arange(first, last)
    found["words"] = (found["number"] * 7 % 251)[:, None, None]
    return found


def state(first: int, last: int, records: Callable[[int, int], Any] = records) -> dict[str, Any]:
    return {"algorithm": {"rows": Table(DTYPE, first, last, records), "count": last}}


def held(path: Path) -> tuple[int, int]:
    """Return the range of records of a checkpoint's table, after comparing them with the saved ones."""
    found = load(path).state["algorithm"]
    pieces = list(found["rows"].pieces(DTYPE))
    whole = np.concatenate([np.zeros(0, DTYPE), *pieces])
    assert found["count"] == found["rows"].last
    assert (whole == records(found["rows"].first, found["rows"].last)).all()
    return found["rows"].first, found["rows"].last


def files(folder: Path) -> list[Path]:
    return sorted((folder / TABLES).iterdir()) if (folder / TABLES).exists() else []


def total(folder: Path) -> int:
    return sum(path.stat().st_size for path in files(folder))


def test_checkpoint_writes_only_new_records_of_a_table(tmp_path: Path) -> None:
    checkpoints, asked = Checkpoints(tmp_path, keep=3), list[tuple[int, int]]()

    def watched(first: int, last: int) -> Any:
        asked.append((first, last))
        return records(first, last)

    for number in range(1, 9):
        before = total(tmp_path)
        checkpoints.save(state(0, 100 * number, watched), {}, number)
        assert total(tmp_path) - before == 100 * DTYPE.itemsize
    assert asked == [(100 * k, 100 * k + 100) for k in range(8)] and len(files(tmp_path)) == 1
    assert [held(tmp_path / f"step-{number:012d}") for number in (6, 7, 8)] == [(0, 600), (0, 700), (0, 800)]
    checkpoints.save(state(0, 800, watched), {}, 9)  # nothing is new
    assert len(asked) == 8 and held(tmp_path / "step-000000000009") == (0, 800)


@pytest.mark.fault("D2")
@pytest.mark.parametrize("letters", [100, 220, 5000])
def test_table_whose_name_is_too_long_for_a_file_is_saved(tmp_path: Path, letters: int) -> None:
    checkpoints = Checkpoints(tmp_path)
    names = ("x" * letters + "a", "x" * letters + "b")
    many = {"algorithms": {name: state(0, count)["algorithm"] for name, count in zip(names, (3, 5))}}
    path = checkpoints.save(many, {}, 1, final=True)
    assert path is not None
    saved = load(path).state["algorithms"]
    for name, count in zip(names, (3, 5)):
        assert (np.concatenate([*saved[name]["rows"].pieces(DTYPE)]) == records(0, count)).all()
    assert all(len(file.name) <= 143 for file in files(tmp_path)) and len(files(tmp_path)) == 2
    checkpoints.save({"algorithms": {}}, {}, 2)
    shutil.rmtree(path)
    Checkpoints(tmp_path).save({}, {}, 3)
    assert files(tmp_path) == []  # they are ours to remove


def test_table_file_keeps_its_name_of_earlier_versions(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(state(0, 3), {}, 1)
    (file,) = files(tmp_path)
    assert re.fullmatch(r"algorithm-rows-0{12}-[0-9a-f]{8}\.rows", file.name)


@pytest.mark.fault("D1")
def test_table_files_without_a_checkpoint_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "FULL_BYTES", 50 * DTYPE.itemsize)
    checkpoints = Checkpoints(tmp_path, keep=2)
    for number in range(1, 30):
        checkpoints.save(state(max(0, 60 * number - 200), 60 * number), {}, number, best=number == 4)
        assert held(tmp_path / f"step-{number:012d}") == (max(0, 60 * number - 200), 60 * number)
    assert held(tmp_path / "best") == (40, 240)
    windows = [(40, 240), (1480, 1680), (1540, 1740)]
    kept = {piece for first, last in windows for piece in range(first // 50, last // 50)}
    assert len(kept) <= len(files(tmp_path)) <= len(kept) + 3
    shutil.rmtree(tmp_path / "best")
    (tmp_path / TABLES / "notes.txt").write_text("not written by a run")
    checkpoints.save(state(1_700, 1_740), {}, 30)
    checkpoints.save(state(1_700, 1_740), {}, 31)
    assert len(files(tmp_path)) <= 3 and (tmp_path / TABLES / "notes.txt").exists()


def test_records_dropped_between_saves_are_not_written(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=1)
    checkpoints.save(state(0, 100), {}, 1)
    checkpoints.save(state(5_000, 5_100), {}, 2)
    assert held(tmp_path / "step-000000000002") == (5_000, 5_100) and len(files(tmp_path)) == 1


def test_resumed_run_starts_a_new_table_file_and_rewrites_nothing(tmp_path: Path) -> None:
    Checkpoints(tmp_path).save(state(0, 1_000), {}, 1)
    (old,) = files(tmp_path)
    with old.open("ab") as file:
        file.write(b"torn")  # as a killed process leaves it
    again = Checkpoints(tmp_path)
    again.cut_back(1)
    again.save(state(10, 1_100), {}, 2)
    assert held(tmp_path / "step-000000000002") == (10, 1_100) and held(tmp_path / "step-000000000001") == (0, 1_000)
    assert [path.stat().st_size // DTYPE.itemsize for path in files(tmp_path)] == [1_000, 100]


@pytest.mark.fault("D3")
def test_checkpoint_with_a_damaged_table_is_skipped_for_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tables, "FULL_BYTES", 100 * DTYPE.itemsize)
    checkpoints = Checkpoints(tmp_path)
    for number in (1, 2):
        checkpoints.save(state(0, 100 * number), {}, number)
    damaged = bytearray(files(tmp_path)[1].read_bytes())
    damaged[40] ^= 1
    files(tmp_path)[1].write_bytes(damaged)
    with pytest.raises(CheckpointBroken, match="other bytes than were written"):
        held(tmp_path / "step-000000000002")
    latest = load_latest(tmp_path)  # acting does not read the table
    assert latest is not None and latest.state["algorithm"]["count"] == 200
    found = Checkpoints(tmp_path).load_latest()
    assert found is not None and found.state["algorithm"]["count"] == 100
    assert "Trying the one before" in caplog.text and (tmp_path / "step-000000000002.broken").exists()


@pytest.mark.fault("E7")
def test_table_files_elsewhere_are_not_read(tmp_path: Path) -> None:
    Checkpoints(tmp_path).save(state(0, 10), {}, 1)
    (file,) = files(tmp_path)
    file.rename(tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CheckpointBroken, match="symbolic link"):
        held(tmp_path / "step-000000000001")
    with pytest.raises(ValueError, match="is not a file of a table"):
        tables._pieces([{"file": "../elsewhere", "first": 0, "count": 1, "bytes": 1, "sha256": ""}])


# -- faults ------------------------------------------------------------------------------------------------------
def begun(folder: Path) -> Checkpoints:
    """Return checkpoints of which one is saved."""
    checkpoints = Checkpoints(folder, keep=1)
    checkpoints.save(state(0, 30), {}, 100)
    return checkpoints


def one_more(checkpoints: Checkpoints, best: bool = False) -> None:
    """Save records beyond the existing file, and forget some."""
    checkpoints.save(state(20, 130), {}, 200, best=best)


@pytest.mark.fault("D1", "D4")
@pytest.mark.parametrize("fault", ["kill", "tear", "power", "power, names lost"])
@pytest.mark.parametrize("best", [False, True])
def test_crash_at_any_call_leaves_every_checkpoint_with_its_table(
    tmp_path: Path, fault: str, best: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "FULL_BYTES", 50 * DTYPE.itemsize)
    seen, at = set(), moments(functools.partial(one_more, begun(tmp_path / "all"), best), fault)
    for calls in (*at, NEVER):
        folder = tmp_path / str(calls)
        done = survives(functools.partial(one_more, begun(folder), best), calls, fault)
        assert done == (calls == NEVER)
        for path in folder.glob("[sb]*"):
            seen.add(held(path))
        checkpoints = Checkpoints(folder, keep=1)
        found = checkpoints.load_latest()
        assert found is not None
        checkpoints.cut_back(found.manifest["env_steps"])
        checkpoints.save(state(40, 160), {}, 300)
        assert held(folder / "step-000000000300") == (40, 160)
        assert all(held(path) for path in folder.glob("[sb]*"))
    assert len(at) > (20 if fault == "kill" else 0)
    assert seen == {(0, 30), (20, 130)}


@pytest.mark.fault("D2")
@pytest.mark.parametrize("stays", [False, True], ids=["once", "for good"])
def test_full_disk_at_any_call_costs_only_this_save(
    tmp_path: Path, stays: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tables, "FULL_BYTES", 50 * DTYPE.itemsize)
    caplog.set_level(logging.WARNING, "multiverse")
    for calls in itertools.count():
        folder = tmp_path / str(calls)
        checkpoints = begun(folder)
        before = total(folder)
        caplog.clear()
        with pytest.MonkeyPatch.context() as patch:
            full = FullDisk(patch, calls, stays)
            one_more(checkpoints)
        if not full.struck:
            break
        assert re.search(r"not (saved|be removed) \(No space left on device\)", caplog.text)
        if (folder / "step-000000000100").exists():
            assert held(folder / "step-000000000100") == (0, 30)
        assert total(folder) in (before, 130 * DTYPE.itemsize)  # all new records, or none of them
        one_more(checkpoints)
        assert held(folder / "step-000000000200") == (20, 130)
    assert calls > 10

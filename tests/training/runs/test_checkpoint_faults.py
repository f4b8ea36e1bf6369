"""Rows D1, D2 and D4: whatever interrupts a save, and wherever, a good checkpoint exists afterwards."""

from __future__ import annotations

import errno
import functools
import itertools
import logging
import os
import re
import resource
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from multiverse.training.runs.checkpoint import Checkpoints, load, load_latest
from tests.training.runs.disk_faults import NEVER, FullDisk, moments, survives
from tests.training.runs.states import SMALL, same

MOST_CALLS = 200
FIRST, SECOND = ({**SMALL, "note": note * 100} for note in ("first", "second"))


@pytest.fixture
def begun(tmp_path: Path, save: Callable[[Checkpoints], None]) -> Callable[[int], Path]:
    """Folders with one checkpoint each; only where the best is saved again there is one, for it would do for others."""
    Checkpoints(tmp_path / "begun").save(FIRST, {}, 100, best=save is a_better_one)
    return lambda number: shutil.copytree(tmp_path / "begun", tmp_path / str(number))


def one_more(checkpoints: Checkpoints) -> None:
    """A save under a new name, which removes the one before."""
    checkpoints.save(SECOND, {}, 200)


def the_same_again(checkpoints: Checkpoints) -> None:
    """A save in the place of the one before."""
    checkpoints.save(SECOND, {}, 100)


def a_better_one(checkpoints: Checkpoints) -> None:
    """A better checkpoint in the place of the best, and under a new name."""
    checkpoints.save(SECOND, {}, 200, best=True)


SAVES = [one_more, the_same_again, a_better_one]


@pytest.mark.fault("D1", "D4")
@pytest.mark.parametrize("fault", ["kill", "tear", "power", "power, names lost"])
@pytest.mark.parametrize("save", SAVES, ids=lambda save: save.__name__)
def test_crash_at_any_call_of_a_save_leaves_the_old_or_the_new_checkpoint(
    begun: Callable[[int], Path], save: Callable[[Checkpoints], None], fault: str
) -> None:
    """In a child for each call, which is killed at its first call, its second, and so on, until it finishes."""
    seen, at = set(), moments(functools.partial(save, Checkpoints(begun(MOST_CALLS), keep=1)), fault)
    for calls in (*at, NEVER):
        folder = begun(calls)
        done = survives(functools.partial(save, Checkpoints(folder, keep=1)), calls, fault)
        assert done == (calls == NEVER)
        seen.add(whole(folder))
        goes_on_after_the_sweep(folder)
    assert len(at) > (15 if fault == "kill" else 0)
    assert seen == {"first", "second"}


def whole(folder: Path) -> str:
    """The state of the latest checkpoint; all others that exist are complete too."""
    for path in folder.glob("[!.]*"):
        assert any(same(load(path).state, state) for state in (FIRST, SECOND))
    latest = load_latest(folder)
    assert latest is not None and (latest.manifest["env_steps"] == 100 or same(latest.state, SECOND))
    return "first" if same(latest.state, FIRST) else "second"


def goes_on_after_the_sweep(folder: Path) -> None:
    before = load_latest(folder)
    checkpoints = Checkpoints(folder, keep=1)
    assert [path for path in folder.iterdir() if path.name.startswith(".")] == []
    after = load_latest(folder)
    assert before is not None and after is not None and same(before.state, after.state)
    assert checkpoints.save(SMALL, {}, 300) is not None
    assert sorted({path.name for path in folder.iterdir()} - {"best"}) == ["step-000000000300"]


@pytest.mark.fault("D1")
def test_kill_during_the_first_save_leaves_no_partial_checkpoint(tmp_path: Path) -> None:
    found: list[Any] = []
    for calls in range(MOST_CALLS):
        folder = tmp_path / str(calls)
        done = survives(functools.partial(one_more, Checkpoints(folder)), calls, "kill")
        found.append(load_latest(folder))
        if done:
            break
    assert found[0] is None and same(found[-1].state, SECOND)
    assert [one is None for one in found] == sorted([one is None for one in found], reverse=True)


@pytest.mark.fault("D2")
@pytest.mark.parametrize("stays", [False, True], ids=["once", "for good"])
@pytest.mark.parametrize("save", SAVES, ids=lambda save: save.__name__)
def test_full_disk_at_any_call_costs_only_this_save(
    begun: Callable[[int], Path], save: Callable[[Checkpoints], None], stays: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "multiverse")
    for calls in itertools.count():
        folder = begun(calls)
        checkpoints = Checkpoints(folder, keep=1)
        caplog.clear()
        with pytest.MonkeyPatch.context() as patch:
            full = FullDisk(patch, calls, stays)
            save(checkpoints)
        if not full.struck:
            break
        assert re.search(r"not (saved|be removed) \(No space left on device\)", caplog.text)
        assert [path.name for path in folder.iterdir() if path.name.startswith(".saving-")] == []
        whole(folder)
        save(checkpoints)
        latest = load_latest(folder)
        assert latest is not None and same(latest.state, SECOND)
    assert calls > 8


@pytest.mark.fault("D2")
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EDQUOT, errno.EIO])
def test_failed_save_is_logged_and_a_failed_final_save_raises(
    tmp_path: Path, code: int, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoints = Checkpoints(tmp_path)
    path = checkpoints.save(FIRST, {}, 100)
    with pytest.MonkeyPatch.context() as patch:
        FullDisk(patch, 0, stays=True, code=code)
        assert checkpoints.save(SECOND, {}, 200) is None
        assert os.strerror(code) in caplog.text and "200 env steps" in caplog.text
        with pytest.raises(OSError, match=os.strerror(code)):
            checkpoints.save(SECOND, {}, 200, final=True)
    assert list(tmp_path.iterdir()) == [path]
    assert checkpoints.save(SECOND, {}, 200) is not None


@pytest.mark.fault("D2")
def test_file_size_limit_is_handled_as_a_full_disk(tmp_path: Path) -> None:
    Checkpoints(tmp_path).save(FIRST, {}, 100)
    pid = os.fork()
    if pid == 0:
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (150, 150))
            os._exit(0 if Checkpoints(tmp_path).save(SECOND, {}, 200) is None else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000000100"]
    latest = load_latest(tmp_path)
    assert latest is not None and same(latest.state, FIRST)


@pytest.mark.fault("D2")
def test_old_checkpoint_that_cannot_be_removed_is_reported_and_costs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoints = Checkpoints(tmp_path, keep=1)
    checkpoints.save(FIRST, {}, 100)
    rename = os.rename

    def stubborn(source: Path, target: Path) -> None:
        if Path(target).name.startswith(".removing-"):
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
        rename(source, target)

    monkeypatch.setattr(os, "rename", stubborn)
    assert checkpoints.save(SECOND, {}, 200) is not None
    assert "could not be removed" in caplog.text
    assert len(list(tmp_path.iterdir())) == 2

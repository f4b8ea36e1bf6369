"""Row D7: one directory, one writer; a lock whose holder has ended is taken over."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from multiverse.core.errors import RunLocked
from multiverse.training.runs import files
from multiverse.training.runs.files import Holder, RunLock


class Child:
    """A forked process that does one thing, reports the result and waits to be ended."""

    def __init__(self, work: Callable[[], str]) -> None:
        said, says = os.pipe()
        waits, self._go = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.close(self._go)
                os.write(says, work().encode())
                os.close(says)
                os.read(waits, 1)
            finally:
                os._exit(0)
        os.close(says)
        os.close(waits)
        with os.fdopen(said, "rb") as pipe:
            self.said = pipe.read().decode()
        self.ended = False

    def end(self, how: int | None = None) -> None:
        if not self.ended:
            self.ended = True
            if how is not None:
                os.kill(self.pid, how)
            os.close(self._go)
            os.waitpid(self.pid, 0)


@pytest.fixture
def child() -> Iterator[Callable[[Callable[[], str]], Child]]:
    children: list[Child] = []

    def start(work: Callable[[], str]) -> Child:
        children.append(Child(work))
        return children[-1]

    yield start
    for one in children:
        one.end(signal.SIGKILL)


def locked(path: Path) -> str:
    """Take the lock in a child, which keeps it until it ends; return the result."""
    try:
        KEPT.append(RunLock(path))
    except RunLocked as error:
        return f"refused: {error.pid}"
    return "locked"


KEPT: list[RunLock] = []  # so that no collector ends them
Start = Callable[[Callable[[], str]], Child]


@pytest.mark.fault("D7")
def test_second_process_is_refused_with_the_pid_of_the_first(tmp_path: Path, child: Start) -> None:
    first = child(lambda: locked(tmp_path))
    assert first.said == "locked"
    with pytest.raises(RunLocked, match=f"in use by process {first.pid} on .* since 20") as refused:
        RunLock(tmp_path)
    assert (refused.value.pid, refused.value.path) == (first.pid, tmp_path.resolve())


@pytest.mark.fault("D7")
@pytest.mark.parametrize("kernel", [True, False], ids=["kernel's locks", "no locks"])
def test_lock_of_a_killed_process_is_taken_over_with_a_warning(
    tmp_path: Path, child: Start, kernel: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if not kernel:
        monkeypatch.setattr(files, "fcntl", None)
    first = child(lambda: locked(tmp_path))
    with pytest.raises(RunLocked, match=str(first.pid)):
        RunLock(tmp_path)
    first.end(signal.SIGKILL)
    lock = RunLock(tmp_path)
    assert f": process {first.pid}" in caplog.text
    lock.release()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.fault("D7")
@pytest.mark.parametrize("kernel", [True, False], ids=["kernel's locks", "no locks"])
def test_one_process_cannot_hold_a_lock_twice(tmp_path: Path, kernel: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not kernel:
        monkeypatch.setattr(files, "fcntl", None)
    lock = RunLock(tmp_path)
    for path in (tmp_path, tmp_path / ".." / tmp_path.name):
        with pytest.raises(RunLocked, match=f"this process .{os.getpid()}."):
            RunLock(path)
    lock.release()
    lock.release()
    RunLock(tmp_path).release()


@pytest.mark.fault("D7")
def test_refused_attempt_does_not_release_the_holders_lock(tmp_path: Path, child: Start) -> None:
    """The kernel would release a process's lock as soon as it closes any descriptor of the file."""
    lock = RunLock(tmp_path)
    with pytest.raises(RunLocked):
        RunLock(tmp_path)
    os.truncate(tmp_path / "run.lock", 0)  # so that only the kernel knows
    assert child(lambda: locked(tmp_path)).said == "refused: None"
    lock.release()
    assert child(lambda: locked(tmp_path)).said == "locked"


@pytest.mark.fault("D7")
def test_forked_child_neither_holds_nor_releases_its_parents_lock(tmp_path: Path, child: Start) -> None:
    lock = RunLock(tmp_path)

    def release_and_take() -> str:
        lock.release()
        return locked(tmp_path)

    first = child(release_and_take)
    assert first.said == f"refused: {os.getpid()}"
    assert child(lambda: locked(tmp_path)).said == f"refused: {os.getpid()}"
    lock.release()  # the children live, and hold nothing
    RunLock(tmp_path).release()


def signed(path: Path, holder: Holder) -> None:
    (path / "run.lock").write_text(json.dumps(asdict(holder)))


def child_as_holder(first: Child) -> Holder:
    return replace(Holder.me(), pid=first.pid, started=files.started(first.pid) or 0.0)


@pytest.mark.fault("D7")
@pytest.mark.parametrize("stale", ["pid used again", "another boot", "garbage", "empty"])
def test_stale_lock_is_distinguished_from_a_living_holder(
    tmp_path: Path, child: Start, stale: str, caplog: pytest.LogCaptureFixture
) -> None:
    holder = child_as_holder(child(lambda: "lives"))
    signed(tmp_path, holder)
    with pytest.raises(RunLocked, match=str(holder.pid)):  # though it does not have the kernel's lock
        RunLock(tmp_path)
    if stale == "pid used again":
        signed(tmp_path, replace(holder, started=holder.started - 1))
    elif stale == "another boot":
        signed(tmp_path, replace(holder, boot_id="00000000-0000-0000-0000-000000000000"))
    else:
        (tmp_path / "run.lock").write_text('{"pid": 12' if stale == "garbage" else "")
    RunLock(tmp_path).release()
    assert ("left a stale lock" in caplog.text) == (stale in ("pid used again", "another boot"))


@pytest.mark.fault("D7")
@pytest.mark.parametrize("kernel", [True, False], ids=["kernel's locks", "no locks"])
def test_lock_of_a_zombie_is_taken_over(
    tmp_path: Path, child: Start, kernel: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A killed process keeps its pid until its parent waits for it, which some parents never do."""
    if not kernel:
        monkeypatch.setattr(files, "fcntl", None)
    first = child(lambda: locked(tmp_path))
    assert first.said == "locked"
    os.kill(first.pid, signal.SIGKILL)
    os.waitid(os.P_PID, first.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and stays a zombie
    RunLock(tmp_path).release()


@pytest.mark.fault("D7")
def test_exactly_one_of_many_processes_takes_over_a_stale_lock(tmp_path: Path) -> None:
    """All start at once, and keep the result until all have reported."""
    signed(tmp_path, replace(Holder.me(), boot_id="another"))
    go, let_go = os.pipe()
    heard, say = os.pipe()
    end, let_end = os.pipe()
    children = []
    for _ in range(8):
        pid = os.fork()
        if pid == 0:
            try:
                for other in (let_go, let_end):
                    os.close(other)
                os.read(go, 1)
                os.write(say, b"1" if locked(tmp_path) == "locked" else b"0")
                os.read(end, 1)
            finally:
                os._exit(0)
        children.append(pid)
    os.close(let_go)
    message = b""
    while len(message) < 8:
        message += os.read(heard, 8)
    os.close(let_end)
    for pid in children:
        os.waitpid(pid, 0)
    for descriptor in (go, heard, say, end):
        os.close(descriptor)
    assert sorted(message.decode()) == list("00000001")


def test_process_is_identified_by_its_start_time() -> None:
    assert files.started(os.getpid()) == Holder.me().started
    assert Holder.me().is_alive()
    assert files.started(2**22 + 5) is None

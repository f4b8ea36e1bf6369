"""Row F5: deadlines use a monotonic clock; jumps of the wall clock cause no timeouts."""

from __future__ import annotations

import ast
import datetime
import itertools
import time
from pathlib import Path

import pytest

import multiverse
from tests.envs import Walk
from tests.equality import assert_same
from tests.vector.configurations import FORK, FORKSERVER, HYBRID, SERIAL, SPAWN, THREAD, Configuration
from tests.vector.conftest import Make
from tests.vector.runs import lock_step

SOURCE = Path(multiverse.__file__).parent
ROOMS = [path for path in sorted(SOURCE.rglob("*.py")) if path.relative_to(SOURCE).parts[0] != "cli"]
WALL_CLOCKS: set[tuple[str | None, str]] = {
    ("time", "time"), ("time", "time_ns"), ("time", "localtime"), ("time", "gmtime"), ("time", "ctime"),
    ("datetime", "now"), ("datetime", "utcnow"), ("datetime", "today"), ("date", "today"),
}  # fmt: skip


@pytest.mark.fault("F5")
def test_engine_does_not_read_the_wall_clock() -> None:
    found = {str(path.relative_to(SOURCE)): clocks_of(path) for path in ROOMS}
    # The date of TensorBoard's events.
    assert found.pop("training/runs/metric_sinks.py") == {("time", "time")}
    assert {name: clocks for name, clocks in found.items() if clocks} == {}
    assert "executors/executor.py" in found


def clocks_of(path: Path) -> set[tuple[str | None, str]]:
    """The wall clocks that a module imports or reads."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    imported = {(node.module, name.name) for node in nodes if isinstance(node, ast.ImportFrom) for name in node.names}
    asked = {
        (node.value.id if isinstance(node.value, ast.Name) else node.value.attr, node.attr)
        for node in nodes
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name | ast.Attribute)
    }
    return (imported | asked) & WALL_CLOCKS


@pytest.mark.fault("F5")
@pytest.mark.parametrize("config", [SERIAL, THREAD, FORKSERVER, FORK, SPAWN, HYBRID], ids=str)
def test_jumping_wall_clock_causes_no_timeouts(
    make: Make, config: Configuration, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forward and back at every reading, in this process and, forked from it, in workers."""
    with SERIAL.make(Walk, config.num_envs) as oracle:
        expected = lock_step(oracle, 8)
    jumps, true_time = itertools.cycle((0.0, 1e6, -1e6)), time.time

    def jumping() -> float:
        return true_time() + next(jumps)

    monkeypatch.setattr(time, "time", jumping)
    monkeypatch.setattr(time, "time_ns", lambda: int(jumping() * 1e9))
    assert len({round(time.time()) // 100_000 for _ in range(3)}) == 3
    envs = make(
        Walk, timeouts=multiverse.Timeouts(reply_s=30, reset_s=30), workers=multiverse.WorkerOptions(waiting="park")
    )  # so that it has to wait
    assert_same(lock_step(envs, 8), expected)
    assert (envs.failures.timeouts, envs.failures.late_replies) == (0, 0)


def test_listed_wall_clocks_exist() -> None:
    for module, name in WALL_CLOCKS:
        owner = {"time": time, "datetime": datetime.datetime, "date": datetime.date}[str(module)]
        assert callable(getattr(owner, name))

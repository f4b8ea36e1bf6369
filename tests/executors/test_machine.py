"""Resources of the machine: the lowest of its limits, read from directories made for the test."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from multiverse.executors import machine


def write(directory: Path, **files: str) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (directory / name.replace("__", ".")).write_text(text + "\n")


@pytest.mark.parametrize(
    ("text", "cores"), [("max 100000", None), ("150000 100000", 1.5), ("50000 100000", 0.5), ("200000", 2.0)]
)
def test_quota_of_cgroup_v2_is_read(tmp_path: Path, text: str, cores: float | None) -> None:
    write(tmp_path, cpu__max=text)
    assert machine.cpu_quota(tmp_path) == cores


@pytest.mark.parametrize(("quota", "cores"), [("-1", None), ("250000", 2.5)])
def test_quota_of_cgroup_v1_is_read(tmp_path: Path, quota: str, cores: float | None) -> None:
    write(tmp_path / "cpu", cpu__cfs_quota_us=quota, cpu__cfs_period_us="100000")
    assert machine.cpu_quota(tmp_path) == cores


def test_machine_without_cgroups_has_no_quota(tmp_path: Path) -> None:
    assert machine.cpu_quota(tmp_path) is None
    assert machine.cpu_quota(tmp_path / "nowhere") is None
    (tmp_path / "cpu.max").write_text("")
    assert machine.cpu_quota(tmp_path) is None


def test_busy_seconds_of_usable_cores_include_stolen_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.os, "sysconf", lambda name: 100)
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda pid: {1, 3}, raising=False)
    lines = ["cpu  0 0 0 0 0 0 0 0 0 0", "cpu0 900 0 0 0 0 0 0 0 0 0", "cpu1 100 2 30 4000 500 6 7 80 9 9"]
    (tmp_path / "stat").write_text("\n".join([*lines, "cpu3 0 0 0 0 0 0 0 100 0 0", "intr 1 2 3"]))
    assert machine.busy_s(tmp_path / "stat") == pytest.approx((100 + 2 + 30 + 6 + 7 + 80 + 100) / 100)
    assert machine.busy_s(tmp_path / "nowhere") is None


@pytest.fixture
def nested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """This process is in a group inside another group."""
    inner = tmp_path / "outer" / "inner"
    monkeypatch.setattr(machine, "_own_directories", lambda root: [inner, inner.parent, root])
    return inner, inner.parent


def test_tightest_quota_of_all_levels_counts(nested: tuple[Path, Path], tmp_path: Path) -> None:
    inner, outer = nested
    write(inner, cpu__max="max 100000")
    write(outer, cpu__max="300000 100000")
    assert machine.cpu_quota(tmp_path) == 3.0
    write(inner, cpu__max="800000 100000")
    assert machine.cpu_quota(tmp_path) == 3.0


def test_tightest_memory_limit_counts(nested: tuple[Path, Path], tmp_path: Path) -> None:
    inner, outer = nested
    write(inner, memory__max="max", memory__current="10")
    write(outer, memory__max="1000", memory__current="400")
    assert machine.memory_available(tmp_path) == 600
    write(inner, memory__max="500", memory__current="450")
    assert machine.memory_available(tmp_path) == 50
    write(outer, memory__max="1000", memory__current="2000")
    assert machine.memory_available(tmp_path) == 0


def test_machine_without_memory_limit_uses_its_available_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: type("Memory", (), {"available": 12345}))
    write(tmp_path, memory__max="max", memory__current="10")
    assert machine.memory_available(tmp_path) == 12345


@pytest.mark.parametrize(
    ("affinity", "quota", "cores"), [(8, None, 8), (8, 2.0, 2), (8, 1.5, 2), (2, 6.0, 2), (4, 0.2, 1)]
)
def test_usable_cores_are_the_smaller_of_affinity_and_quota(
    monkeypatch: pytest.MonkeyPatch, affinity: int, quota: float | None, cores: int
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(affinity)))
    monkeypatch.setattr(machine, "cpu_quota", lambda: quota)
    assert machine.usable_cores() == cores


def test_own_cgroup_and_its_parents_are_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_CGROUP", tmp_path)
    monkeypatch.setattr(machine, "_first_line", lambda path: "0::/a/b" if str(path) == "/proc/self/cgroup" else None)
    assert machine._own_directories(tmp_path) == [tmp_path / "a" / "b", tmp_path / "a", tmp_path]


def test_open_descriptors_are_counted() -> None:
    import os

    before = machine.open_descriptors()
    fd = os.open("/dev/null", os.O_RDONLY)
    assert machine.open_descriptors() == before + 1
    os.close(fd)

"""Resources of this machine within the limits of a container: cores, memory and file descriptors."""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path

import psutil

_CGROUP = Path("/sys/fs/cgroup")
UNKNOWN = sys.maxsize
"""Bytes of memory if the system does not report them."""


def usable_cores() -> int:
    """The smaller of CPU affinity and the container's quota, at least 1."""
    affinity, quota = affinity_cores(), cpu_quota()
    return max(1, min(affinity, math.ceil(quota) if quota is not None else affinity))


def affinity_cores() -> int:
    """Number of cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def waited_for_core_s() -> float | None:
    """Seconds that this process was ready to run and waited for a core; None if the system does not count them."""
    numbers = (_first_line(Path("/proc/self/schedstat")) or "").split()
    return int(numbers[1]) / 1e9 if len(numbers) == 3 else None


def busy_s(stat: Path = Path("/proc/stat")) -> float | None:
    """Total seconds that the cores of this process were busy, including a hypervisor's time (steal); None if the system
    does not count them."""
    usable = {f"cpu{number}" for number in os.sched_getaffinity(0)} if hasattr(os, "sched_getaffinity") else set()
    ticks = [fields[1:] for line in _lines(stat) if (fields := line.split()) and fields[0] in usable]
    if not ticks:
        return None
    user, nice, system, _, _, irq, softirq, steal = (sum(map(int, column)) for column in list(zip(*ticks))[:8])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def cpu_quota(root: Path = _CGROUP) -> float | None:
    """Cores the container may use, or None without a limit: the tightest of this group and all above it, v2 or v1."""
    quotas = [_quota_v2(directory) for directory in _own_directories(root)]
    quotas += [_quota_v1(directory) for directory in _own_directories_v1(root)]
    return min((quota for quota in quotas if quota is not None), default=None)


def _quota_v2(directory: Path) -> float | None:
    quota, _, period = (_first_line(directory / "cpu.max") or "max").partition(" ")
    return None if quota == "max" else int(quota) / int(period or 100_000)


def _quota_v1(directory: Path) -> float | None:
    quota = int(_first_line(directory / "cpu.cfs_quota_us") or -1)
    period = int(_first_line(directory / "cpu.cfs_period_us") or 0)
    return quota / period if quota > 0 and period > 0 else None


def memory_available(root: Path = _CGROUP) -> int:
    """Available bytes: the smaller of the machine's and the container's."""
    try:
        available = int(psutil.virtual_memory().available)
    except (OSError, psutil.Error):  # no /proc
        available = UNKNOWN
    for directory in _own_directories(root):
        limit, used = _first_line(directory / "memory.max"), _first_line(directory / "memory.current")
        if limit is not None and used is not None and limit != "max":
            available = min(available, max(0, int(limit) - int(used)))
    return available


def descriptor_limits() -> tuple[int, int] | None:
    """(soft, hard) limit of open files; None without a limit."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    return resource.getrlimit(resource.RLIMIT_NOFILE)


def open_descriptors() -> int:
    try:
        return psutil.Process().num_fds()
    except (AttributeError, OSError, psutil.Error):
        return 0


def _own_directories(root: Path) -> list[Path]:
    """This process's cgroup (v2) and all its parents: the lowest of their limits applies."""
    own = _first_line(Path("/proc/self/cgroup")) if root == _CGROUP else None
    return _upwards(root, own.partition("::")[2] if own and own.startswith("0::") else "")


def _own_directories_v1(root: Path) -> list[Path]:
    """Likewise for processor time in cgroups v1, which have a separate tree for it."""
    fields = [line.split(":", 2) for line in _lines(Path("/proc/self/cgroup"))] if root == _CGROUP else []
    own = next((group for _, controllers, group in fields if "cpu" in controllers.split(",")), "")
    return _upwards(root / "cpu", own)


def _upwards(root: Path, relative: str) -> list[Path]:
    directory = root / relative.strip("/")
    directories = [directory]
    while directory != root and root in directory.parents:
        directory = directory.parent
        directories.append(directory)
    return directories


def _first_line(path: Path) -> str | None:
    return next((line.strip() for line in _lines(path)), None)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []

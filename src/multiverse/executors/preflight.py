"""Checks before anything is started; each failed requirement is explained in one message."""

from __future__ import annotations

import functools
import logging
import os
import sys

from multiverse.core.errors import PreflightError
from multiverse.core.plan import StartMethod
from multiverse.executors import machine
from multiverse.ipc.doorbell import descriptors_per_doorbell

log = logging.getLogger("multiverse")
SPARE_DESCRIPTORS = 64
DOORBELLS_PER_THREAD = 3  # one for each direction, and one for its end


def descriptors_per_worker() -> int:
    """Number of the caller's descriptors: link, sentinel, two doorbells and, at the start, the link's other end."""
    return 3 + 2 * descriptors_per_doorbell()


def check_processes(workers: int, start_method: StartMethod) -> None:
    """Check that this number of worker processes can be started in this way."""
    check_platform()
    check_fork(start_method)
    check_descriptors(workers)
    advise_workers(workers)


def check_threads(workers: int) -> None:
    """Check that this number of worker threads can be started."""
    check_descriptors(workers, "worker threads", DOORBELLS_PER_THREAD * descriptors_per_doorbell())


def check_platform() -> None:
    if os.name != "posix":
        raise PreflightError(
            f"worker processes need Linux or macOS; on {sys.platform} use executor='thread' or executor='serial'"
        )


def check_fork(start_method: StartMethod) -> None:
    """Refuse a fork after CUDA was used: the child's first call to CUDA would fail or hang."""
    if start_method != "fork":
        return
    cuda = getattr(sys.modules.get("torch"), "cuda", None)  # None while torch is being imported
    if cuda is not None and getattr(cuda, "is_initialized", bool)():  # guard: no-fork-after-cuda
        raise PreflightError(
            "CUDA is already in use in this process and does not survive start_method='fork'; "
            "use start_method='forkserver' (the default), or make the vector env before the first CUDA call"
        )


def check_descriptors(workers: int, kind: str = "worker processes", each: int | None = None) -> None:
    """Check the limit of open files: raise the soft limit if it is too low, and refuse if the hard limit is."""
    limits = machine.descriptor_limits()
    if limits is None:
        return
    import resource

    soft, hard = limits
    for_workers = workers * (descriptors_per_worker() if each is None else each)
    opened = machine.open_descriptors()
    needed = for_workers + opened + SPARE_DESCRIPTORS
    unlimited = resource.RLIM_INFINITY
    if soft == unlimited or needed <= soft:
        return
    if hard != unlimited and needed > hard:  # guard: a-hard-limit-is-refused
        raise PreflightError(
            f"{workers} {kind} need {needed} open files in total ({for_workers} for the workers, {opened} already "
            f"open, {SPARE_DESCRIPTORS} to spare), but the hard limit of this process is {hard}; use fewer workers "
            f"with more envs each, close files, or raise the limit (ulimit -Hn {needed}, as root)"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))  # guard: a-soft-limit-is-raised


def advise_workers(workers: int) -> None:
    """Warn of more workers than cores, which is allowed but rarely useful: one worker can host many envs."""
    if workers > (cores := machine.usable_cores()):
        _advise(workers, cores)


@functools.cache  # only once, because evaluation envs, for example, have as many workers again
def _advise(workers: int, cores: int) -> None:
    log.warning(
        "%d worker processes share %d usable core%s: a worker can host many envs, so workers=%d is usually faster",
        workers,
        cores,
        "s" * (cores != 1),
        cores,
    )


def check_memory(size: int) -> None:
    """Refuse a block that does not fit in memory: a container's out-of-memory killer would give no reason."""
    available = machine.memory_available()
    if size > available:  # guard: memory-is-asked-for-first
        raise PreflightError(
            f"the shared block needs {size:,} bytes and {available:,} are available; use fewer envs, smaller "
            "observations, shorter rollouts, or raise the container's memory limit"
        )

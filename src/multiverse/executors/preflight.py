"""What must hold before anything is started; each thing that does not is explained in one plain message."""

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
DOORBELLS_PER_THREAD = 3  # one for each side, and one that says that it has ended


def descriptors_per_worker() -> int:
    """Ours while it runs (link, sentinel, two bells), plus the worker's end of the link while it starts."""
    return 3 + 2 * descriptors_per_doorbell()


def check_processes(workers: int, start_method: StartMethod) -> None:
    """Worker processes can be started here, that many, that way."""
    check_platform()
    check_fork(start_method)
    check_descriptors(workers)
    advise_workers(workers)


def check_threads(workers: int) -> None:
    """Worker threads can be started here, that many."""
    check_descriptors(workers, "worker threads", DOORBELLS_PER_THREAD * descriptors_per_doorbell())


def check_platform() -> None:
    if os.name != "posix":
        raise PreflightError(
            f"worker processes need Linux or macOS; on {sys.platform} use executor='thread' or executor='serial'"
        )


def check_fork(start_method: StartMethod) -> None:
    """CUDA does not survive a fork: the child's first call to it fails or hangs."""
    if start_method != "fork":
        return
    cuda = getattr(sys.modules.get("torch"), "cuda", None)  # not there while torch is being imported
    if cuda is not None and getattr(cuda, "is_initialized", bool)():  # guard: no-fork-after-cuda
        raise PreflightError(
            "CUDA is already in use in this process and does not survive start_method='fork'; "
            "use start_method='forkserver' (the default), or make the vector env before the first CUDA call"
        )


def check_descriptors(workers: int, kind: str = "worker processes", each: int | None = None) -> None:
    """Enough open files for the workers: raise the soft limit where it is too low, refuse where the hard one is."""
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
            f"{workers} {kind} need {needed} open files in all ({for_workers} for the workers, {opened} open already, "
            f"{SPARE_DESCRIPTORS} to spare) and this process may have {hard} (hard limit); use fewer workers with more "
            f"envs each, close files, or raise the limit (ulimit -Hn {needed}, as root)"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))  # guard: a-soft-limit-is-raised


def advise_workers(workers: int) -> None:
    """More workers than cores is allowed, and hardly ever what one wants: envs may be many, workers should not."""
    if workers > (cores := machine.usable_cores()):
        _advise(workers, cores)


@functools.cache  # the envs of evaluations, say, have as many again: once is enough
def _advise(workers: int, cores: int) -> None:
    log.warning(
        "%d worker processes share %d usable core%s: a worker can host many envs, so workers=%d is usually faster",
        workers,
        cores,
        "s" * (cores != 1),
        cores,
    )


def check_memory(size: int) -> None:
    """A container's memory killer gives no reason; so ask first."""
    available = machine.memory_available()
    if size > available:  # guard: memory-is-asked-for-first
        raise PreflightError(
            f"the shared block needs {size:,} bytes and {available:,} are available; use fewer envs, smaller "
            "observations, shorter rollouts, or raise the container's memory limit"
        )

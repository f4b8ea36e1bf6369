"""Registry of executors: their workers, and whether the caller steps a share of the envs itself.

A new executor is a file with its workers, a row here, and its name in `core.plan.PlannedExecutor`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from multiverse.core.errors import InvalidRequest
from multiverse.core.layout import Array, Field, FieldName, Views
from multiverse.core.plan import Plan, PlannedExecutor, RayOptions
from multiverse.executors import machine, ray_cluster
from multiverse.executors.process import Processes
from multiverse.executors.ray_workers import RayWorkers
from multiverse.executors.thread import Threads
from multiverse.executors.worker_host import WorkerHost
from multiverse.executors.worker_loop import Assignment


class Workers(Protocol):
    """The workers of one vector env, from start to end."""

    hosts: list[WorkerHost]  # the workers that have been started, in order

    def start(self, assignments: Sequence[Assignment], plan: Plan) -> None:
        """Start a worker for each assignment, in parallel. `hosts` has the started ones, also if this raises."""

    def arrays(self, fields: Sequence[Field]) -> dict[FieldName, Array]:
        """Memory that all workers will share with the caller."""

    def connect(self, views: Views) -> None:
        """Send the layout of that memory to all workers."""

    def start_again(self, host: WorkerHost, views: Views, check: Callable[[WorkerHost], None]) -> WorkerHost:
        """Start a worker in place of a lost one, and connect it if `check` does not raise. Only if `replaceable`."""

    def abandon(self) -> None:
        """Tell started workers that they will not be connected."""

    def close(self) -> None:
        """Release what the workers shared. Called after every host was closed."""


CORES_TO_FREE_ONE = 4
"""With fewer cores, one core less for the envs costs more time than the caller spends waiting for a core."""


@dataclass(frozen=True, slots=True)
class Backend:
    """Properties of an executor."""

    workers: Callable[[], Workers] | None = None  # None: no workers
    own_share: bool = False  # the caller steps envs too
    processes: bool = False  # its workers have start methods, and may spin before they sleep
    replaceable: bool = False  # a worker that dies or hangs can be ended and started again
    remote: bool = False  # its workers may be on other machines: every request takes at least a millisecond
    cores: Callable[[RayOptions], int] = lambda _: machine.usable_cores()  # number of cores for its workers

    def most_workers(self, num_envs: int) -> int:
        """Maximum number of workers: each needs an env, and so does the caller if it has an own share."""
        return num_envs - self.own_share if self.workers is not None else 0

    def default_workers(self, cores: int, num_envs: int) -> int:
        """Number of workers if the caller does not choose it."""
        if self.workers is None:
            return 0
        return max(1, cores - (self.own_share or self.frees_a_core(cores, num_envs)))

    def frees_a_core(self, cores: int, num_envs: int) -> bool:
        """Whether the workers leave a core to the caller, which would otherwise take it from one of them at every
        step. So if there are enough cores, unless every env can have its own."""
        return self.processes and not self.own_share and CORES_TO_FREE_ONE <= cores < num_envs


BACKENDS: dict[PlannedExecutor, Backend] = {
    "serial": Backend(own_share=True),
    "thread": Backend(Threads),
    "process": Backend(Processes, processes=True, replaceable=True),
    "hybrid": Backend(Processes, processes=True, replaceable=True, own_share=True),
    "ray": Backend(RayWorkers, replaceable=True, remote=True, cores=ray_cluster.cores),
}


def backend_of(name: Any) -> Backend:
    """The executor of this name; `InvalidRequest` if there is none."""
    if name not in BACKENDS:
        raise InvalidRequest(f"executor={name!r}: expected one of auto, {', '.join(BACKENDS)}")
    return BACKENDS[name]

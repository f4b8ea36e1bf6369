"""Every executor by name: who its workers are, and whether the caller steps envs of its own beside them.

A new executor is a file with its workers, a row here, and its name in `core.plan.PlannedExecutor`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from multiverse.core.errors import InvalidRequest
from multiverse.core.layout import Field, FieldName
from multiverse.core.plan import Plan, PlannedExecutor, RayOptions
from multiverse.core.views import Array, Views
from multiverse.executors import machine, ray_cluster
from multiverse.executors.hosts import WorkerHost
from multiverse.executors.process import Processes
from multiverse.executors.ray_workers import RayWorkers
from multiverse.executors.thread import Threads
from multiverse.executors.worker_loop import Assignment


class Workers(Protocol):
    """The workers of one vector env, from their start to their end."""

    hosts: list[WorkerHost]  # those that have been started, in order

    def start(self, assignments: Sequence[Assignment], plan: Plan) -> None:
        """Start one for each assignment, side by side. What has been started is in `hosts`, also if this raises."""

    def arrays(self, fields: Sequence[Field]) -> dict[FieldName, Array]:
        """Memory that all of them will share with the caller."""

    def connect(self, views: Views) -> None:
        """Tell all of them what lies where in it."""

    def start_again(self, host: WorkerHost, views: Views, check: Callable[[WorkerHost], None]) -> WorkerHost:
        """A new worker in place of a lost one, connected after `check` has passed it; where `replaceable`."""

    def abandon(self) -> None:
        """They have been started and will not be connected."""

    def close(self) -> None:
        """Every host is closed: give back what they shared."""


CORES_TO_FREE_ONE = 4
"""With fewer, a core less for the envs costs more than the caller's waiting for one."""


@dataclass(frozen=True, slots=True)
class Backend:
    """What the name of an executor stands for."""

    workers: Callable[[], Workers] | None = None  # None: it has none
    own_share: bool = False  # the caller steps envs too
    processes: bool = False  # its workers have start methods, and may look for a while before they sleep
    replaceable: bool = False  # a worker that dies or hangs can be ended and started again
    remote: bool = False  # its workers may be on other machines: every request takes a millisecond or more
    cores: Callable[[RayOptions], int] = lambda _: machine.usable_cores()  # that its workers can have

    def most_workers(self, num_envs: int) -> int:
        """Everybody who steps needs an env."""
        return num_envs - self.own_share if self.workers is not None else 0

    def default_workers(self, cores: int, num_envs: int) -> int:
        if self.workers is None:
            return 0
        return max(1, cores - (self.own_share or self.frees_a_core(cores, num_envs)))

    def frees_a_core(self, cores: int, num_envs: int) -> bool:
        """Whether its workers leave a core to the caller, who would else take it from one of them at every step:
        where there are enough others, and unless every env can have a core to itself."""
        return self.processes and not self.own_share and CORES_TO_FREE_ONE <= cores < num_envs


BACKENDS: dict[PlannedExecutor, Backend] = {
    "serial": Backend(own_share=True),
    "thread": Backend(Threads),
    "process": Backend(Processes, processes=True, replaceable=True),
    "hybrid": Backend(Processes, processes=True, replaceable=True, own_share=True),
    "ray": Backend(RayWorkers, replaceable=True, remote=True, cores=ray_cluster.cores),
}


def backend_of(name: Any) -> Backend:
    """By its name; refused if there is none."""
    if name not in BACKENDS:
        raise InvalidRequest(f"executor={name!r}: one of auto, {', '.join(BACKENDS)}")
    return BACKENDS[name]

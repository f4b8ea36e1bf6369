"""Start-up: from a plan to a running executor, in two halves.

`start_hosts` starts the workers in parallel and compares their envs; `StartedHosts.bind` allocates the block and
connects all hosts to it. In between the spaces are known, so the caller can add further fields to the block.
"""

from __future__ import annotations

import importlib.util
import itertools
import logging
import re
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from multiverse.adapters.env_source import Recipe
from multiverse.adapters.registered import with_code
from multiverse.core.env import EnvDescription
from multiverse.core.errors import EnvFailed, InvalidRequest, MultiverseError, RemoteError, SpacesDiffer
from multiverse.core.imports import refuse_in_import
from multiverse.core.layout import EPISODES, Field, Layout, Views
from multiverse.core.plan import DEFAULT_TIMEOUTS, Plan, Timeouts, autoreset_for
from multiverse.executors import machine, preflight
from multiverse.executors.backends import backend_of
from multiverse.executors.env_range import EnvRange, RangeConfig
from multiverse.executors.executor import Executor
from multiverse.executors.hosts import Host, LocalHost
from multiverse.executors.launch import crash_report, output
from multiverse.executors.supervisor import Supervisor
from multiverse.executors.worker_host import WorkerHost
from multiverse.executors.worker_loop import Assignment, Described, difference_between
from multiverse.executors.worker_memory import WorkerMemory
from multiverse.executors.worker_waits import Patience
from multiverse.ipc.block import private_arrays, size_of
from multiverse.ipc.interrupts import stop_waiting
from multiverse.ipc.mailbox import control_field

log = logging.getLogger("multiverse")
PROGRESS_AFTER_S = 5.0
LOOK_EVERY_S = 0.02


def ranges(num_envs: int, parts: int) -> list[range]:
    """Contiguous ranges of nearly equal size. Later ranges get the remainder, because the caller's share is first."""
    bounds = [num_envs * i // parts for i in range(parts + 1)]
    return [range(a, b) for a, b in itertools.pairwise(bounds)]


def start_hosts(
    plan: Plan,
    recipes: Sequence[Recipe],
    config: RangeConfig | None = None,
    *,
    timeouts: Timeouts = DEFAULT_TIMEOUTS,
    bounds_may_differ: bool = False,
    patience_s: float | None = None,
) -> StartedHosts:
    """Build and describe the envs; bind or close the result. An error leaves nothing behind; `TooSlow` is raised if
    building takes longer than `patience_s`.

    `config`: for all envs; each worker gets its part, with all tasks. `bounds_may_differ`: observation spaces need
    equal shapes and dtypes only; the description is that of env 0.
    """
    config = config or RangeConfig(env_ids=range(len(recipes)))
    backend = backend_of(plan.executor)
    if backend.workers is not None:
        refuse_in_import("starts workers")
    output.hold_standard_descriptors()  # guard: what-envs-print-reaches-no-pipe-of-ours
    shares = ranges(len(recipes), plan.workers + backend.own_share)
    cores = machine.usable_cores()
    awake = cores - 1 if backend.processes and not backend.own_share and plan.workers <= cores else 0
    assignments = [
        Assignment(
            worker - backend.own_share,
            replace(config, env_ids=ids),
            [recipes[i] for i in ids],
            plan.waiting,
            bounds_may_differ,
            spare_core=worker < awake,
        )
        for worker, ids in enumerate(shares)
    ]
    return StartedHosts(plan, assignments, timeouts, patience_s)


class TooSlow(MultiverseError):
    """Building the envs takes longer than `patience_s`."""


class StartedHosts:
    """Hosts whose envs are built, and the envs' `description`. `bind` or `close` them."""

    description: EnvDescription

    def __init__(self, plan: Plan, shares: list[Assignment], timeouts: Timeouts, patience_s: float | None) -> None:
        self.plan, self._shares, self._timeouts = plan, shares, timeouts
        self._began_at, self._patience_s = time.monotonic(), patience_s
        self._backend = backend_of(plan.executor)
        self._own = shares[0] if self._backend.own_share else None
        assignments = shares[1:] if self._backend.own_share else shares
        self._config = shares[0].config  # the same for all hosts, except for the env ids
        self._team = self._backend.workers() if self._backend.workers is not None and assignments else None
        self._local: LocalHost | None = None
        with self._abandoned_on_error():
            if self._team is not None:
                self._team.start(assignments, plan)
            if self._own is not None:  # while the workers build their envs
                self._local = LocalHost(_build_here(self._own))
            description = self._compared(self._descriptions())
            self.description = replace(description, spec=with_code(description.spec))

    def bind(self, fields: Sequence[Field] = ()) -> Executor:
        """The executor, over one block with these additional `fields`."""
        num_envs, description = sum(len(share.recipes) for share in self._shares), self.description
        same_step = autoreset_for(self._config.autoreset, description.kind) == "same_step"
        with self._abandoned_on_error():
            if self._shares[0].recipes[0].agents.state and description.state_space is None:
                raise InvalidRequest(
                    "state=True: the env has no state() with a `state_space` of numbers, as PettingZoo's"
                )
            layout = Layout(num_envs, description.groups, same_step, tuple(fields), description.state_space)
            views = self._lay_out(layout)
            hosts: list[Host] = [*([self._local] if self._local else []), *self._workers]
            executor = Executor(hosts, views, self.plan.waiting, self._team)
            policy, tasks = self._config.failures, self._config.tasks
            executor.timeouts, executor.known_tasks = self._timeouts, None if tasks is None else len(tasks)
            # Steps of Ray actors are not timed here, and threads are not replaced.
            adapts = self._timeouts.adapts and self._backend.processes and policy.restarts
            executor.patience = Patience(self._timeouts.step_s, adapts)
            executor.memory = WorkerMemory(policy.worker_memory_bytes)
            executor.memory.check_start(executor.workers)
            for worker in executor.workers:
                worker.patience_s = self._timeouts.step_s
            if self._team is not None and self._backend.replaceable and policy.restarts:
                executor.supervisor = Supervisor(self._team, policy.restarts_per_minute, description)
            return executor

    def close(self) -> None:
        """End the hosts. Only before `bind`; afterwards close the executor."""
        self._abandon(time.monotonic() + self._timeouts.close_s)

    @property
    def _workers(self) -> list[WorkerHost]:
        return [] if self._team is None else self._team.hosts

    @contextmanager
    def _abandoned_on_error(self) -> Iterator[None]:
        """End all hosts if there is an error."""
        try:
            yield
        except (TooSlow, KeyboardInterrupt):
            self._abandon(time.monotonic())
            raise
        except BaseException:
            self.close()  # guard: nothing-half-built
            raise

    def _descriptions(self) -> list[Described]:
        """Each host's description of its envs, with progress messages if it takes long."""
        received: dict[int, Described] = {}
        waiting = list(self._workers)
        report_at = time.monotonic() + PROGRESS_AFTER_S
        while waiting:
            stop_waiting()
            waiting[0].link.poll(LOOK_EVERY_S)
            for worker in [w for w in waiting if w.link.poll(0)]:
                received[worker.worker] = worker.described("could not be built", _import_hint)
                waiting.remove(worker)
            if waiting:
                self._check_patience(waiting[0])
            if waiting and time.monotonic() > report_at:
                log.warning("starting: %d of %d workers ready", len(self._workers) - len(waiting), len(self._workers))
                report_at += PROGRESS_AFTER_S
        own = [self._local.described(self._own.bounds_may_differ)] if self._local and self._own else []
        return own + [received[w.worker] for w in self._workers]

    def _check_patience(self, worker: WorkerHost) -> None:
        """Raise if building takes too long: it has the time limit of a reset."""
        waited_s, limit_s = time.monotonic() - self._began_at, self._timeouts.reset_s
        if self._patience_s is not None and waited_s > self._patience_s:
            raise TooSlow(f"the worker did not answer within {self._patience_s:.0f} s")
        if limit_s is not None and waited_s > limit_s:
            raise worker.hung(limit_s)

    def _compared(self, described: list[Described]) -> EnvDescription:
        """The description that all envs share; `SpacesDiffer` if they differ."""
        first = described[0].first
        for share, part in zip(self._shares, described):
            ids = share.config.env_ids
            difference = difference_between(first, part.first, share.bounds_may_differ)
            differences = {ids.start: difference} if difference else part.differences
            for env_id, text in differences.items():
                kind = text.partition(" ")[0]
                message = f"env {env_id} has {text} (env 0's); the envs of one batch must have equal spaces"
                raise SpacesDiffer(message, kind)
        return first

    def _lay_out(self, layout: Layout) -> Views:
        fields = [control_field(len(self._workers)), *layout.fields()]
        preflight.check_memory(size_of(fields))
        views = Views.over(layout, private_arrays(fields) if self._team is None else self._team.arrays(fields))
        views[EPISODES][...] = -1  # no episode has begun
        if self._local is not None:
            self._local.bind(views)
        if self._team is not None:
            self._team.connect(views)
        return views

    def _abandon(self, deadline: float) -> None:
        if self._team is not None:
            self._team.abandon()
        for worker in self._workers:
            worker.close(deadline)
        if self._local is not None:
            self._local.close(deadline)
        if self._team is not None:
            self._team.close()


def _build_here(own: Assignment) -> EnvRange:
    crash_report.watch(None)
    try:
        return EnvRange(own.config, [recipe.build for recipe in own.recipes])
    except Exception as error:
        raise EnvFailed("could not be built", None, [RemoteError.of(error)]) from error
    finally:
        crash_report.unwatch(None)


def _import_hint(error: RemoteError) -> str:
    """A hint for a failed import if the caller can import the module; '' otherwise."""
    missing = re.search(r"No module named '(\w+)", error.message)
    here = missing is not None and (missing[1] in sys.modules or importlib.util.find_spec(missing[1]) is not None)
    if here:  # guard: a-failing-import-comes-with-a-hint
        return "Hint: workers import modules from this program's sys.path. Check that the package is installed there."
    return ""

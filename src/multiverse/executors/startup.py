"""From a plan to a running executor: start the workers side by side, compare their envs, lay out the block, bind."""

from __future__ import annotations

import importlib.util
import itertools
import logging
import re
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from multiverse.adapters.env_source import Recipe
from multiverse.contracts.env import EnvDescription
from multiverse.contracts.errors import EnvFailed, InvalidRequest, MultiverseError, RemoteError, SpacesDiffer
from multiverse.contracts.failures import DEFAULT_POLICY, FailurePolicy
from multiverse.contracts.imports import refuse_in_import
from multiverse.contracts.layout import EPISODES, Field, Layout
from multiverse.contracts.plan import DEFAULT_TIMEOUTS, Autoreset, Plan, Timeouts, autoreset_for
from multiverse.contracts.reset_plan import ResetPlan
from multiverse.contracts.views import Views
from multiverse.executors import machine, preflight
from multiverse.executors.backends import backend_of
from multiverse.executors.env_range import EnvRange, RangeConfig
from multiverse.executors.executor import Executor
from multiverse.executors.hosts import Host, LocalHost, WorkerHost
from multiverse.executors.launch import crash_report
from multiverse.executors.patience import Patience
from multiverse.executors.supervisor import Supervisor
from multiverse.executors.worker_loop import Assignment, Described, difference_between
from multiverse.executors.worker_memory import WorkerMemory
from multiverse.memory.block import private_arrays, size_of
from multiverse.memory.interrupts import stop_waiting
from multiverse.memory.mailbox import control_field

log = logging.getLogger("multiverse")
PROGRESS_AFTER_S = 2.0
LOOK_EVERY_S = 0.02


def ranges(num_envs: int, parts: int) -> list[range]:
    """Contiguous, as equal as can be; the later parts get the remainder, for the caller's own share comes first."""
    bounds = [num_envs * i // parts for i in range(parts + 1)]
    return [range(a, b) for a, b in itertools.pairwise(bounds)]


Started = tuple[Executor, EnvDescription]
MoreFields = Callable[[EnvDescription], Sequence[Field]]
"""What else the caller shares with the hosts, once it is known what the envs are."""


def start(
    plan: Plan,
    recipes: Sequence[Recipe],
    autoreset: Autoreset | None,
    with_infos: bool,
    reset_plan: ResetPlan | None,
    *,
    failure_policy: FailurePolicy = DEFAULT_POLICY,
    timeouts: Timeouts = DEFAULT_TIMEOUTS,
    bounds_may_differ: bool = False,
    tasks: Sequence[Any] | None = None,
    patience_s: float | None = None,
    fields: MoreFields | None = None,
) -> Started:
    """Everything running and bound, or an error and nothing left behind: `TooSlow` if building outlasts `patience_s`.

    `bounds_may_differ`: observation spaces need equal shapes and dtypes only; the description is env 0's.
    `tasks`: sent to every worker now, once; resets then name them by index.
    """
    backend = backend_of(plan.executor)
    if backend.workers is not None:
        refuse_in_import("starts workers")
    shares = ranges(len(recipes), plan.workers + backend.own_share)
    cores = machine.usable_cores()
    awake = cores - 1 if backend.processes and not backend.own_share and plan.workers <= cores else 0
    assignments = [
        Assignment(
            worker - backend.own_share,
            RangeConfig(ids, autoreset, with_infos, reset_plan, failure_policy, tasks),
            [recipes[i] for i in ids],
            plan.waiting,
            bounds_may_differ,
            spare_core=worker < awake,
        )
        for worker, ids in enumerate(shares)
    ]
    return _Start(plan, assignments, timeouts, patience_s, fields or (lambda _: ())).run()


class TooSlow(MultiverseError):
    """Building the envs outlasts the caller's patience."""


class _Start:
    """One start-up, step by step; `abandon` undoes whatever has been done."""

    def __init__(
        self, plan: Plan, shares: list[Assignment], timeouts: Timeouts, patience_s: float | None, fields: MoreFields
    ) -> None:
        self.plan, self.shares, self.timeouts, self.fields = plan, shares, timeouts, fields
        self.began_at, self.patience_s = time.monotonic(), patience_s
        self.backend = backend_of(plan.executor)
        self.own = shares[0] if self.backend.own_share else None
        self.assignments = shares[1:] if self.backend.own_share else shares
        self.config = shares[0].config  # alike in all, but for the env ids
        self.team = self.backend.workers() if self.backend.workers is not None and self.assignments else None
        self.local: LocalHost | None = None

    @property
    def workers(self) -> list[WorkerHost]:
        return [] if self.team is None else self.team.hosts

    def run(self) -> Started:
        try:
            if self.team is not None:
                self.team.start(self.assignments, self.plan)
            if self.own is not None:  # while the workers build theirs
                self.local = LocalHost(_build_here(self.own))
            description = self._compared(self._descriptions())
            num_envs = sum(len(share.recipes) for share in self.shares)
            same_step = autoreset_for(self.config.autoreset, description.kind) == "same_step"
            more = tuple(self.fields(description))
            if self.shares[0].recipes[0].agents.state and description.state_space is None:
                raise InvalidRequest(
                    "state=True: the env has no state() with a `state_space` of numbers, as PettingZoo's"
                )
            views = self._lay_out(Layout(num_envs, description.groups, same_step, more, description.state_space))
            hosts: list[Host] = [*([self.local] if self.local else []), *self.workers]
            executor = Executor(hosts, views, self.plan.waiting, self.team)
            policy, tasks = self.config.failure_policy, self.config.tasks
            executor.timeouts, executor.known_tasks = self.timeouts, None if tasks is None else len(tasks)
            # A Ray actor's steps are not timed here, and a thread is not replaced.
            adapts = self.timeouts.adapts and self.backend.processes and policy.restarts
            executor.patience = Patience(self.timeouts.reply_s, adapts)
            executor.memory = WorkerMemory(policy.worker_memory_limit)
            executor.memory.check_start(executor.workers)
            for worker in executor.workers:
                worker.patience_s = self.timeouts.reply_s
            if self.team is not None and self.backend.replaceable and policy.restarts:
                executor.supervisor = Supervisor(self.team, policy.restarts_per_minute, description)
            return executor, description
        except (TooSlow, KeyboardInterrupt):
            self._abandon(time.monotonic())
            raise
        except BaseException:
            self._abandon(time.monotonic() + self.timeouts.close_s)  # guard: nothing-half-built
            raise

    def _descriptions(self) -> list[Described]:
        """Each host's first word, with a line of progress when it takes long."""
        words: dict[int, Described] = {}
        waiting = list(self.workers)
        report_at = time.monotonic() + PROGRESS_AFTER_S
        while waiting:
            stop_waiting()
            waiting[0].link.poll(LOOK_EVERY_S)
            for worker in [w for w in waiting if w.link.poll(0)]:
                words[worker.worker] = worker.described("could not be built", _import_hint)
                waiting.remove(worker)
            if waiting:
                self._check_patience(waiting[0])
            if waiting and time.monotonic() > report_at:
                log.warning("starting: %d of %d workers ready", len(self.workers) - len(waiting), len(self.workers))
                report_at += PROGRESS_AFTER_S
        own = [self.local.described(self.own.bounds_may_differ)] if self.local and self.own else []
        return own + [words[w.worker] for w in self.workers]

    def _check_patience(self, worker: WorkerHost) -> None:
        """An env whose constructor hangs must not hang the program: building gets the time of a reset."""
        waited_s, limit_s = time.monotonic() - self.began_at, self.timeouts.reset_s
        if self.patience_s is not None and waited_s > self.patience_s:
            raise TooSlow(f"the worker did not answer within {self.patience_s:.0f} s")
        if limit_s is not None and waited_s > limit_s:
            raise worker.hung(limit_s)

    def _compared(self, words: list[Described]) -> EnvDescription:
        """The one description all envs share."""
        first = words[0].first
        for share, word in zip(self.shares, words):
            ids = share.config.env_ids
            difference = difference_between(first, word.first, share.bounds_may_differ)
            found = {ids.start: difference} if difference else word.differences
            for env_id, text in found.items():
                kind = text.partition(" ")[0]
                message = f"env {env_id} has {text} (env 0's); the envs of one batch must have equal spaces"
                raise SpacesDiffer(message, kind)
        return first

    def _lay_out(self, layout: Layout) -> Views:
        fields = [control_field(len(self.workers)), *layout.fields()]
        preflight.check_memory(size_of(fields))
        views = Views.over(layout, private_arrays(fields) if self.team is None else self.team.arrays(fields))
        views[EPISODES][...] = -1  # no episode has begun
        if self.local is not None:
            self.local.bind(views)
        if self.team is not None:
            self.team.connect(views)
        return views

    def _abandon(self, deadline: float) -> None:
        if self.team is not None:
            self.team.abandon()
        for worker in self.workers:
            worker.close(deadline)
        if self.local is not None:
            self.local.close(deadline)
        if self.team is not None:
            self.team.close()


def _build_here(own: Assignment) -> EnvRange:
    crash_report.watch(None)
    try:
        return EnvRange(own.config, [recipe.build for recipe in own.recipes])
    except Exception as error:
        raise EnvFailed("could not be built", None, [RemoteError.of(error)]) from error
    finally:
        crash_report.unwatch(None)


def _import_hint(error: RemoteError) -> str:
    """Only where the caller has the module: elsewhere the error says all there is to say."""
    missing = re.search(r"No module named '(\w+)", error.message)
    here = missing is not None and (missing[1] in sys.modules or importlib.util.find_spec(missing[1]) is not None)
    if here:  # guard: a-failing-import-comes-with-a-hint
        return "Hint: the worker looks for modules where this program does (sys.path); is the package installed there?"
    return ""

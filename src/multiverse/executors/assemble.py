"""From a plan to a running executor: start the workers side by side, compare their envs, lay out the block, bind."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Sequence
from typing import Any, overload

from multiverse.adapters.env_source import Recipe
from multiverse.contracts.env import EnvDescription
from multiverse.contracts.errors import EnvFailed, RemoteError, SpacesDiffer, WorkerDied
from multiverse.contracts.failures import DEFAULT_POLICY, FailurePolicy
from multiverse.contracts.layout import EPISODES, Layout
from multiverse.contracts.plan import DEFAULT_TIMEOUTS, Autoreset, Plan, Timeouts, autoreset_for
from multiverse.contracts.reset_plan import ResetPlan
from multiverse.contracts.views import Views
from multiverse.executors import machine
from multiverse.executors.backends import backend_of
from multiverse.executors.env_range import EnvRange, RangeConfig
from multiverse.executors.executor import Executor
from multiverse.executors.hosts import Host, LocalHost, WorkerHost
from multiverse.executors.supervisor import Supervisor
from multiverse.executors.worker_loop import Assignment, Described, difference_between
from multiverse.memory.block import private_arrays
from multiverse.memory.mailbox import control_field

log = logging.getLogger("multiverse")
PROGRESS_AFTER_S = 2.0
LOOK_EVERY_S = 0.02


def ranges(num_envs: int, parts: int) -> list[range]:
    """Contiguous, as equal as can be; the later parts get the remainder, for the caller's own share comes first."""
    bounds = [num_envs * i // parts for i in range(parts + 1)]
    return [range(a, b) for a, b in itertools.pairwise(bounds)]


Started = tuple[Executor, EnvDescription]


@overload
def start(
    plan: Plan,
    recipes: Sequence[Recipe],
    autoreset: Autoreset | None,
    with_infos: bool,
    reset_plan: ResetPlan | None,
    *,
    policy: FailurePolicy = DEFAULT_POLICY,
    timeouts: Timeouts = DEFAULT_TIMEOUTS,
    bounds_may_differ: bool = False,
    tasks: Sequence[Any] | None = None,
) -> Started: ...


@overload
def start(
    plan: Plan,
    recipes: Sequence[Recipe],
    autoreset: Autoreset | None,
    with_infos: bool,
    reset_plan: ResetPlan | None,
    *,
    policy: FailurePolicy = DEFAULT_POLICY,
    timeouts: Timeouts = DEFAULT_TIMEOUTS,
    bounds_may_differ: bool = False,
    tasks: Sequence[Any] | None = None,
    patience_s: float,
) -> Started | None: ...


def start(
    plan: Plan,
    recipes: Sequence[Recipe],
    autoreset: Autoreset | None,
    with_infos: bool,
    reset_plan: ResetPlan | None,
    *,
    policy: FailurePolicy = DEFAULT_POLICY,
    timeouts: Timeouts = DEFAULT_TIMEOUTS,
    bounds_may_differ: bool = False,
    tasks: Sequence[Any] | None = None,
    patience_s: float | None = None,
) -> Started | None:
    """Everything running and bound, or None if building the envs outlasts `patience_s`; nothing is left behind then.

    `bounds_may_differ`: observation spaces need equal shapes and dtypes only; the description is env 0's.
    `tasks`: sent to every worker now, once; resets then name them by index.
    """
    backend = backend_of(plan.executor)
    shares = ranges(len(recipes), plan.workers + backend.own_share)
    assignments = [
        Assignment(
            worker - backend.own_share,
            RangeConfig(ids, autoreset, with_infos, reset_plan, policy, tasks),
            [recipes[i] for i in ids],
            plan.waiting,
            bounds_may_differ,
            spare_core=backend.processes and not backend.own_share and plan.workers < machine.usable_cores(),
        )
        for worker, ids in enumerate(shares)
    ]
    own = assignments.pop(0) if backend.own_share else None
    try:
        return _Start(plan, own, assignments, timeouts, patience_s).run(autoreset)
    except _TooSlow:
        return None


class _TooSlow(Exception):
    """Building the envs outlasts the caller's patience."""


class _Start:
    """One start-up, step by step; `abandon` undoes whatever has been done."""

    def __init__(
        self,
        plan: Plan,
        own: Assignment | None,
        assignments: list[Assignment],
        timeouts: Timeouts,
        patience_s: float | None,
    ) -> None:
        self.plan, self.own, self.assignments, self.timeouts = plan, own, assignments, timeouts
        self.began_at, self.patience_s = time.monotonic(), patience_s
        self.backend = backend_of(plan.executor)
        self.team = self.backend.workers() if self.backend.workers is not None and assignments else None
        self.local: LocalHost | None = None

    @property
    def workers(self) -> list[WorkerHost]:
        return [] if self.team is None else self.team.hosts

    def run(self, autoreset: Autoreset | None) -> Started:
        try:
            if self.team is not None:
                self.team.start(self.assignments, self.plan.start_method)
            if self.own is not None:  # while the workers build theirs
                self.local = LocalHost(_build_here(self.own))
            description = self._compared(self._descriptions())
            num_envs = sum(len(a.recipes) for a in (*([self.own] if self.own else []), *self.assignments))
            same_step = autoreset_for(autoreset, description.kind) == "same_step"
            views = self._lay_out(Layout(num_envs, description.groups, same_step))
            hosts: list[Host] = [*([self.local] if self.local else []), *self.workers]
            executor = Executor(hosts, views, self.plan.waiting, self.team)
            executor.timeouts, executor.known_tasks = self.timeouts, self._known_tasks()
            if self.team is not None and self.backend.replaceable and self.assignments[0].config.policy.restarts:
                rate = self.assignments[0].config.policy.restarts_per_minute
                executor.supervisor = Supervisor(self.team, rate, description)
            return executor, description
        except (_TooSlow, KeyboardInterrupt):
            self._abandon(time.monotonic())
            raise
        except BaseException:
            self._abandon(time.monotonic() + self.timeouts.close_s)  # guard: nothing-half-built
            raise

    def _known_tasks(self) -> int | None:
        tasks = (self.own or self.assignments[0]).config.tasks
        return None if tasks is None else len(tasks)

    def _descriptions(self) -> list[Described]:
        """Each host's first word, with a line of progress when it takes long."""
        words: dict[int, Described] = {}
        waiting = list(self.workers)
        report_at = time.monotonic() + PROGRESS_AFTER_S
        while waiting:
            waiting[0].link.poll(LOOK_EVERY_S)
            for worker in [w for w in waiting if w.link.poll(0)]:
                words[worker.worker] = _first_word(worker)
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
            raise _TooSlow
        if limit_s is not None and waited_s > limit_s:
            raise worker.hung(limit_s)

    def _compared(self, words: list[Described]) -> EnvDescription:
        """The one description all envs share."""
        first = words[0].first
        shares = [*([self.own] if self.own else []), *self.assignments]
        for share, word in zip(shares, words):
            ids = share.config.env_ids
            difference = difference_between(first, word.first, share.bounds_may_differ)
            found = {ids.start: difference} if difference else word.differences
            for env_id, text in found.items():
                kind = text.partition(" ")[0]
                told = f"env {env_id} has {text} (env 0's); the envs of one batch must have equal spaces"
                raise SpacesDiffer(told, kind)
        return first

    def _lay_out(self, layout: Layout) -> Views:
        fields = [control_field(len(self.workers)), *layout.fields()]
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
    try:
        return EnvRange(own.config, [recipe.build for recipe in own.recipes])
    except Exception as error:
        raise EnvFailed("could not be built", None, [RemoteError.of(error)]) from error


def _first_word(worker: WorkerHost) -> Described:
    word = worker.first_word()
    if isinstance(word, RemoteError):
        raise EnvFailed("could not be built", worker.worker, [word], _import_hint(word))
    if not isinstance(word, Described):
        raise WorkerDied(worker.worker, worker.env_ids, f"sent {type(word).__name__} instead of a description")
    return word


def _import_hint(error: RemoteError) -> str:
    if error.type_name in ("ModuleNotFoundError", "ImportError"):  # guard: a-failing-import-comes-with-a-hint
        return "Hint: the worker looks for modules where this program does (sys.path); is the package installed there?"
    return ""

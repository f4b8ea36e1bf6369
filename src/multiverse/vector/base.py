"""Base class of all vector envs: steps, resets, calls, counters and closing, for envs of any kind.

A subclass defines how actions are written and what a batch looks like to the caller.
"""

from __future__ import annotations

import os
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NoReturn, Self, SupportsIndex, TypeVar

import numpy as np

from multiverse.core.env import EnvDescription, MaskSource
from multiverse.core.errors import (
    ClosedError,
    EnvFailed,
    InvalidRequest,
    NothingPending,
    ReceiveTimeout,
    RequestPending,
)
from multiverse.core.failures import FailureOptions, Failures
from multiverse.core.infos import Infos
from multiverse.core.layout import COUNTS, ENV_RESTARTS, EPISODES, STEPPING, Array, Views
from multiverse.core.plan import Autoreset, Plan, whole_number
from multiverse.executors.env_range import EnvRange
from multiverse.executors.executor import Executor
from multiverse.executors.hosts import Host
from multiverse.vector.batches import Poison
from multiverse.vector.host_calls import HostCalls
from multiverse.vector.requests import RequestState, checked_ids, envs_to_reset, reset_requests
from multiverse.vector.step_results import StepResults

Copy = bool | Literal["poison"]
Result = TypeVar("Result")

_alive: weakref.WeakSet[BaseVectorEnv] = weakref.WeakSet()


def _disown_in_child() -> None:
    """In a forked copy of the program, refuse all requests: the workers' answers belong to the parent."""
    for envs in list(_alive):
        envs._state.give_up(RequestPending("this vector env belongs to the process that made it, not to a fork of it"))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_disown_in_child)


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """An executor with its envs, and the form in which the caller gets their results."""

    executor: Executor
    description: EnvDescription
    plan: Plan
    autoreset: Autoreset
    copy: Copy
    infos: bool
    failures: FailureOptions


class NotCopied:
    """An object that owns workers: a copy would share them, and end them when it is deleted."""

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        """Called first by `copy.copy`, `copy.deepcopy` and `pickle`."""
        raise InvalidRequest(
            "a vector env cannot be copied or pickled, because it owns its workers. Make another one: "
            "make_vec(..., plan=envs.plan) runs it in the same way"
        )


class BaseVectorEnv(NotCopied, ABC):
    """Many envs stepped as one batch. Made by `multiverse.make_vec`."""

    closed = False

    def __repr__(self) -> str:
        name, (plan, _, _) = f"{self._name}, " if self._name else "", str(self.plan).partition(":")
        return f"{type(self).__name__}({name}num_envs={self.num_envs}, {'closed' if self.closed else plan})"

    def __init__(self, running: Running) -> None:
        executor, description = running.executor, running.description
        views = executor.views
        self.num_envs = views.layout.num_envs
        self.plan, self.copy, self.spec = running.plan, bool(running.copy), description.spec
        self.metadata: dict[str, Any] = dict(description.metadata)
        self._name = description.spec.id if description.spec else description.metadata.get("name", "")
        self.render_mode = description.render_mode
        self._executor, self._autoreset = executor, running.autoreset
        self._close_executor = weakref.finalize(self, Executor.close, executor)  # guard: del-closes
        self._episodes, self._stepping = views[EPISODES], views[STEPPING]
        self._results = StepResults(executor, running.infos, running.failures)
        self._failures = executor.failures
        self._state = RequestState()
        self._calls = HostCalls(executor, self._state, self._results)
        self.run_rows = self._calls.run_rows  # for rollouts that are collected in the workers
        self._all_ids = np.arange(self.num_envs)
        self._poison = Poison() if running.copy == "poison" else None
        _alive.add(self)

    # -- defined by subclasses ---------------------------------------------------------------------------------
    @abstractmethod
    def _write_actions(self, actions: Any, ids: Array | None) -> None:
        """Check a batch of actions for these envs (None: all) and write it into the block."""

    @abstractmethod
    def _step_result(self, infos: Infos) -> Any:
        """Return the results of a step of all envs, as `step` returns them."""

    @abstractmethod
    def _batch(self, ids: Array, infos: Infos) -> Any:
        """Return the results of a step of some envs, ids ascending, as `receive` returns them."""

    @abstractmethod
    def _reordered(self, batch: Any, ids: Array) -> Any:
        """Return such a batch as `step` returns it, in the order of `ids`."""

    @abstractmethod
    def _first_observations(self, ids: Array | None) -> Any:
        """Return the first observations of these envs' episodes (None: the whole batch)."""

    @abstractmethod
    def episodes_over(self, ids: Array) -> Array:
        """[ids] bool: whether the env's episode is over."""

    # -- steps and resets --------------------------------------------------------------------------------------
    def step(self, actions: Any, env_ids: Sequence[int] | None = None) -> Any:
        """Step every env, or only `env_ids` (rows in their order)."""
        if self._state.refusal is not None:
            self._state.refuse_step()
        if env_ids is not None:
            return self._step_some(actions, env_ids)
        if self._autoreset == "disabled":
            self._refuse_ended(self._all_ids)
        self._write_actions(actions, None)
        if self._poison is not None:
            self._poison.spoil(self._all_ids)
        return self._step_all(self._step_result)

    def step_as_written(self) -> Infos:
        """Step every env with the actions in `views`, where the results are written too; returns the infos."""
        if self._state.refusal is not None:
            self._state.refuse_step()
        return self._step_all(lambda infos: infos)

    def _step_all(self, result_of: Callable[[Infos], Result]) -> Result:
        executor = self._executor
        number = executor.number
        try:
            flags = executor.step_all()
            infos = self._results.collect(executor.hosts, flags, None) if flags or executor.lost else {}
            result = result_of(infos)
            executor.settle(executor.hosts)
        except BaseException as error:
            self._calls.end_cut_step(error, number)
            raise
        self._failures.steps_sent += self.num_envs
        self._failures.steps_used += self.num_envs
        if self._results.last_rows is not None:
            self._results.last_rows.remember()
        return result

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | Sequence[dict[str, Any] | None] | None = None,
        env_ids: Sequence[int] | None = None,
        tasks: Sequence[Any] | None = None,
    ) -> Any:
        """Begin episodes: in every env, in those of `options["reset_mask"]`, or only in `env_ids`.

        With `env_ids` the returned rows are theirs, in their order; otherwise the whole batch, as in Gymnasium.
        `seed`, `options` and `tasks` may be lists with one entry for each env that is reset. Where `make_vec`
        got `tasks`, a task is given by its index.
        """
        self._state.refuse_unusable()
        ids, options = envs_to_reset(options, env_ids, self.num_envs)
        requests = reset_requests(ids, seed, options, tasks, self.num_envs, self._executor.known_tasks)
        self._calls.make_way_for_reset(ids)
        if self._poison is not None:
            self._poison.spoil(ids)
        infos = self._calls.reset(ids, requests, rows=ids if env_ids is not None else self._all_ids)
        return self._first_observations(None if env_ids is None else ids), infos

    @property
    def views(self) -> Views:
        """Arrays shared with the workers. Read them only between two calls."""
        return self._executor.views

    def begin_at(self, episodes: Sequence[int]) -> Any:
        """Reset every env so that env i begins its episode number `episodes[i]` of the reset plan."""
        counts = [whole_number("episodes", count) for count in episodes]
        if len(counts) != self.num_envs or min(counts) < 0:
            raise InvalidRequest(
                f"episodes={episodes!r}: expected a number of 0 or more for each of the {self.num_envs} envs"
            )
        self._state.refuse_unusable()
        self._calls.make_way_for_reset(self._all_ids)  # no worker writes the counters now
        self._episodes[...] = np.array(counts) - 1
        return self.reset()

    def render(self, env_ids: Sequence[int] | None = None) -> tuple[Any, ...]:
        """Render a frame of each env, or only of `env_ids`."""
        return self._on_each(env_ids, EnvRange.render)

    def call(self, name: str, *args: Any, env_ids: Sequence[int] | None = None, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method of each env, or read an attribute; returns one result per env."""
        return self._on_each(env_ids, EnvRange.call, name, args, kwargs)

    def get_attr(self, name: str, env_ids: Sequence[int] | None = None) -> tuple[Any, ...]:
        """Return an attribute of each env."""
        return self._on_each(env_ids, EnvRange.call, name, (), {})

    def set_attr(self, name: str, values: Any, env_ids: Sequence[int] | None = None) -> None:
        """Set an attribute of each env: to its entry in a list or tuple, or to any other value for all."""
        self._state.refuse_unusable()
        ids = checked_ids(env_ids, self.num_envs)
        by_env = list(values) if isinstance(values, list | tuple) else [values] * len(ids)
        if len(by_env) != len(ids):
            raise InvalidRequest(f"{len(by_env)} values for {len(ids)} envs: a list or tuple must have one per env")
        arguments = {}
        for host, where in self._calls.by_host(ids).items():
            arguments[host] = (ids[where].tolist(), name, [by_env[i] for i in where])
        self._calls.run(EnvRange.set_attr, arguments)

    def close(self, **kwargs: Any) -> None:
        """End all workers. Closing again has no effect."""
        if not self.closed:
            self.close_extras(**kwargs)

    def close_extras(self, timeout_s: float | None = None, **kwargs: Any) -> None:
        """End all workers within this time; none is left running."""
        self._calls.discard_sent()
        self._state.give_up(ClosedError("this vector env is closed"))
        try:
            self._executor.close(timeout_s)
        finally:
            self.closed = not self._executor.hosts  # also if an env raised while it was closed
            if self.closed:
                self._close_executor.detach()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # -- asynchronous stepping ---------------------------------------------------------------------------------
    def send(self, actions: Any, env_ids: Sequence[int] | None = None) -> None:
        """Start a step of every env, or of `env_ids`. Refused while one of their workers is busy."""
        state = self._state
        state.refuse_unusable()
        if state.refusal is not None and not state.sent:
            state.refuse_step()
        ids = checked_ids(env_ids, self.num_envs)
        parts = self._calls.by_host(ids)
        if state.must_reset.intersection(ids.tolist()):
            raise state.reset_required()
        state.refuse_busy(parts, "receive() them before you send more actions")
        if self._autoreset == "disabled":
            self._refuse_ended(ids)
        self._write_actions(actions, ids)
        if self._poison is not None:
            self._poison.spoil(ids)
        for host in parts:  # only their workers' part: others may be reading theirs
            self._stepping[host.env_ids.start : host.env_ids.stop] = False
        self._stepping[ids] = True
        try:
            state.send({host: np.sort(ids[where]) for host, where in parts.items()})
            self._executor.post_step({host: len(where) < len(host.env_ids) for host, where in parts.items()})
        except BaseException:
            state.keep_only(self._executor.pending)
            raise
        self._failures.steps_sent += len(ids)

    def receive(self, min_envs: int | None = None, timeout_s: float | None = None) -> Any:
        """Wait for at least `min_envs` pending envs (None: all), and return all that are ready, in ascending order.

        If fewer than `min_envs` envs are pending, it waits for all of them and returns this smaller batch. Envs that
        share a worker are returned together, so a batch may be larger than `min_envs`.

        Raises:
            NothingPending: no env is pending.
            ReceiveTimeout: too few are ready after `timeout_s`. All stay pending: call `receive` again.
        """
        self._state.refuse_unusable()
        state = self._state
        if not state.sent:
            state.refuse_step()
            raise NothingPending("no env is pending: call send() first")
        if min_envs is not None and min_envs < 1:
            raise InvalidRequest(f"min_envs={min_envs}: expected at least 1")
        sizes = {host: len(ids) for host, ids in state.sent.items()}
        total = sum(sizes.values())
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        done = self._calls.guarded(lambda: self._executor.wait(sizes, min(min_envs or total, total), deadline))
        if not done:
            raise ReceiveTimeout(
                f"{state.names(list(state.sent))} still pending after {timeout_s} s: call receive() again, reset() or "
                "close()"
            )
        return self._received(sorted(done, key=lambda host: host.env_ids.start))

    def _received(self, done: Sequence[Host]) -> Any:
        ids = np.concatenate([self._state.sent[host] for host in done])
        flags = 0
        for host in done:
            flags |= host.flags()
        infos: Infos = {}
        if flags or self._executor.lost:
            try:
                infos = self._calls.guarded(lambda: self._results.collect(done, flags, ids))
            except EnvFailed as error:
                self._settle(done)
                self._failures.steps_discarded += len(ids)
                self._state.require_reset([*error.env_ids, *self._results.unreported])
                raise
        batch = self._batch(ids, infos)
        self._settle(done)
        if self._results.unreported:  # their episodes are lost too, and the batch has no row of theirs
            self._state.require_reset(self._results.unreported)  # guard: envs-lost-unasked-must-be-reset
            self._results.unreported = []
        self._failures.steps_used += len(ids)
        self._results.remember(ids)
        return batch

    def _settle(self, done: Sequence[Host]) -> None:
        self._executor.settle(done)
        self._state.settle(done)

    # -- counters and states -----------------------------------------------------------------------------------
    @property
    def episode_counts(self) -> Array:
        """[num_envs] index of each env's current episode; -1 before its first reset."""
        return self._episodes.copy()

    @property
    def awaiting_reset(self) -> list[int]:
        """Envs that failed, or were lost with their worker and replaced, and must be reset before their next step."""
        return sorted(self._state.must_reset)

    def mask_source(self) -> MaskSource | None:
        """Source of the envs' action masks; for infos, their last resets decide. None without masks."""
        sources = self._calls.run(_mask_source, dict.fromkeys(self._executor.hosts, ()))
        return next((sources[host] for host in self._executor.hosts if sources[host] is not None), None)

    @property
    def failures(self) -> Failures:
        """Counts of failures and steps so far; steps sent = used + discarded + pending."""
        bad_values, out_of_bounds, env_restarts = self._executor.views[COUNTS][: ENV_RESTARTS + 1].sum(axis=1).tolist()
        return replace(self._failures, bad_values=bad_values, out_of_bounds=out_of_bounds, env_restarts=env_restarts)

    @property
    def worker_pids(self) -> tuple[int, ...]:
        """Pids of the worker processes; empty without worker processes."""
        return self._executor.worker_pids

    # -- helpers -----------------------------------------------------------------------------------------------
    def _step_some(self, actions: Any, env_ids: Sequence[int]) -> Any:
        ids = checked_ids(env_ids, self.num_envs)
        self.send(actions, env_ids)
        return self._reordered(self.receive(), ids)

    def _on_each(self, env_ids: Sequence[int] | None, function: Callable[..., Any], *arguments: Any) -> tuple[Any, ...]:
        self._state.refuse_unusable()
        return self._calls.on_each(checked_ids(env_ids, self.num_envs), function, *arguments)

    def _returned(self, observations: Any, ids: Array) -> Any:
        """Return observations to the caller; with `copy="poison"` they are overwritten when a view would change."""
        return observations if self._poison is None else self._poison.add(observations, ids)

    def _refuse_ended(self, ids: Array) -> None:
        """Refuse a step of envs whose episode is over: without autoreset they must be reset first."""
        over = ids[self.episodes_over(ids)].tolist()
        if over:
            raise InvalidRequest(f"the episodes of envs {over} are over: call reset(env_ids={over}) first")


def _mask_source(envs: EnvRange) -> MaskSource | None:
    """Runs where the envs are."""
    return next((source for env in envs.envs if (source := env.mask_source) is not None), None)

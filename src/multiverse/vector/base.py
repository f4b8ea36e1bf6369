"""What every vector env of ours can do, whatever its envs are: steps, resets, calls, counters, and its end.

A subclass says how actions are written, and what a batch looks like to its caller.
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
    EnvFailed,
    InvalidRequest,
    NothingPending,
    ReceiveTimeout,
    RequestPending,
    WorkerDied,
)
from multiverse.core.failures import FailureOptions, Failures
from multiverse.core.infos import Infos
from multiverse.core.layout import COUNTS, ENV_RESTARTS, EPISODES, STEPPING, Array, Views
from multiverse.core.plan import Autoreset, Plan, whole_number
from multiverse.executors.env_range import EnvRange
from multiverse.executors.executor import Executor
from multiverse.executors.hosts import Host
from multiverse.vector.host_calls import HostCalls, StepResults
from multiverse.vector.poison import Poison
from multiverse.vector.requests import RequestState, checked_ids, envs_to_reset, reset_requests

Copy = bool | Literal["poison"]
Told = TypeVar("Told")

_alive: weakref.WeakSet[BaseVectorEnv] = weakref.WeakSet()


def _disown_in_child() -> None:
    """A forked copy of the program must not talk to the workers: their answers are the parent's."""
    for envs in list(_alive):
        envs._state.give_up(RequestPending("this vector env belongs to the process that made it, not to a fork of it"))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_disown_in_child)


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """An executor with its envs, and how the caller wants to see them."""

    executor: Executor
    description: EnvDescription
    plan: Plan
    autoreset: Autoreset
    copy: Copy
    infos: bool
    failures: FailureOptions


class NotCopied:
    """Whoever has workers: a copy would answer for them too, and end them when it is gone."""

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        """What `copy.copy`, `copy.deepcopy` and pickles ask first."""
        raise InvalidRequest(
            "a vector env cannot be copied or pickled: its envs run elsewhere, and are its own. Make another one: "
            "make_vec(..., plan=envs.plan) runs it the same way"
        )


class BaseVectorEnv(NotCopied, ABC):
    """Many envs, one batch. Made by `multiverse.make_vec`."""

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
        self.run_rows = self._calls.run_rows  # for whoever collects rollouts where the envs run
        self._everyone = np.arange(self.num_envs)
        self._poison = Poison() if running.copy == "poison" else None
        _alive.add(self)

    # -- what a subclass says ----------------------------------------------------------------------------------
    @abstractmethod
    def _write_actions(self, actions: Any, ids: Array | None) -> None:
        """Check a batch of actions for these envs (None: all) and put it into the block."""

    @abstractmethod
    def _step_result(self, infos: Infos) -> Any:
        """A step of all envs, as the caller gets it."""

    @abstractmethod
    def _batch(self, ids: Array, infos: Infos) -> Any:
        """A step of some envs, ids ascending, as `receive` gives it."""

    @abstractmethod
    def _reordered(self, batch: Any, ids: Array) -> Any:
        """That batch as `step` gives it, in the order of `ids`."""

    @abstractmethod
    def _first_observations(self, ids: Array | None) -> Any:
        """What begun episodes show (None: the whole batch)."""

    @abstractmethod
    def episodes_over(self, ids: Array) -> Array:
        """[ids] bool: whose episode is over."""

    # -- steps and resets --------------------------------------------------------------------------------------
    def step(self, actions: Any, env_ids: Sequence[int] | None = None) -> Any:
        """One step of every env, or of `env_ids` only (rows in their order)."""
        if self._state.refusal is not None:
            self._state.refuse_step()
        if env_ids is not None:
            return self._step_some(actions, env_ids)
        if self._autoreset == "disabled":
            self._refuse_ended(self._everyone)
        self._write_actions(actions, None)
        if self._poison is not None:
            self._poison.spoil(self._everyone)
        return self._step_all(self._step_result)

    def step_as_written(self) -> Infos:
        """One step of every env with the actions that are in `views`; what came of it is there too, but for the
        infos."""
        if self._state.refusal is not None:
            self._state.refuse_step()
        return self._step_all(_as_it_is)

    def _step_all(self, as_told: Callable[[Infos], Told]) -> Told:
        executor = self._executor
        number = executor.number
        try:
            flags = executor.step_all()
            infos = self._results.collect(executor.hosts, flags, None) if flags or executor.lost else {}
            result = as_told(infos)
            executor.settle(executor.hosts)
        except BaseException as error:
            self._after_cut_step(error, number)
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
        """Begin episodes: in every env, in those of `options["reset_mask"]`, or in `env_ids` only.

        With `env_ids` the rows returned are theirs, in their order; otherwise the whole batch, as Gymnasium has it.
        `seed`, `options` and `tasks` may be lists with one entry for each env that is reset. Tasks are given by their
        index where `make_vec` was given all of them.
        """
        self._state.refuse_unusable()
        ids, options = envs_to_reset(options, env_ids, self.num_envs)
        requests = reset_requests(ids, seed, options, tasks, self.num_envs, self._executor.known_tasks)
        self._calls.make_way_for_reset(ids)
        if self._poison is not None:
            self._poison.spoil(ids)
        infos = self._calls.reset(ids, requests, rows=ids if env_ids is not None else self._everyone)
        return self._first_observations(None if env_ids is None else ids), infos

    @property
    def views(self) -> Views:
        """The arrays that it shares with its workers. To be read, and between two calls."""
        return self._executor.views

    def begin_at(self, episodes: Sequence[int]) -> Any:
        """Reset every env so that env i begins its episode number `episodes[i]`: what the reset plan has for it."""
        counts = [whole_number("episodes", count) for count in episodes]
        if len(counts) != self.num_envs or min(counts) < 0:
            raise InvalidRequest(
                f"episodes={episodes!r}: expected a number from 0 for each of the {self.num_envs} envs"
            )
        self._state.refuse_unusable()
        self._calls.make_way_for_reset(self._everyone)  # nobody else writes the counters now
        self._episodes[...] = np.array(counts) - 1
        return self.reset()

    def render(self, env_ids: Sequence[int] | None = None) -> tuple[Any, ...]:
        """A frame of each env, or of `env_ids` only."""
        return self._on_each(env_ids, EnvRange.render)

    def call(self, name: str, *args: Any, env_ids: Sequence[int] | None = None, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method of each env (or read an attribute), wherever it runs."""
        return self._on_each(env_ids, EnvRange.call, name, args, kwargs)

    def get_attr(self, name: str, env_ids: Sequence[int] | None = None) -> tuple[Any, ...]:
        """An attribute of each env."""
        return self._on_each(env_ids, EnvRange.call, name, (), {})

    def set_attr(self, name: str, values: Any, env_ids: Sequence[int] | None = None) -> None:
        """Set an attribute: a list or tuple gives each env its own value, anything else goes to all."""
        self._state.refuse_unusable()
        ids = checked_ids(env_ids, self.num_envs)
        given = list(values) if isinstance(values, list | tuple) else [values] * len(ids)
        if len(given) != len(ids):
            raise InvalidRequest(f"{len(given)} values for {len(ids)} envs: a list or tuple must have one per env")
        arguments = {}
        for host, where in self._calls.by_host(ids).items():
            arguments[host] = (ids[where].tolist(), name, [given[i] for i in where])
        self._calls.run(EnvRange.set_attr, arguments)

    def close(self, **kwargs: Any) -> None:
        """End every worker; twice without harm."""
        if not self.closed:
            self.close_extras(**kwargs)

    def close_extras(self, timeout_s: float | None = None, **kwargs: Any) -> None:
        """End every worker, within the time given; nothing is left running."""
        self._calls.discard_sent()
        self._state.close()
        try:
            self._executor.close(timeout_s)
        finally:
            self.closed = not self._executor.hosts  # also if an env raised on its way out
            if self.closed:
                self._close_executor.detach()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # -- first come, first served ------------------------------------------------------------------------------
    def send(self, actions: Any, env_ids: Sequence[int] | None = None) -> None:
        """Start a step of every env, or of `env_ids`; refused if one of their workers is still busy."""
        state = self._state
        state.refuse_unusable()
        if state.refusal is not None and not state.sent:
            state.refuse_step()
        ids = checked_ids(env_ids, self.num_envs)
        parts = self._calls.by_host(ids)
        if state.must_reset.intersection(ids.tolist()):
            raise state.reset_required()
        state.refuse_busy(parts, "receive them before sending them more")
        if self._autoreset == "disabled":
            self._refuse_ended(ids)
        self._write_actions(actions, ids)
        if self._poison is not None:
            self._poison.spoil(ids)
        for host in parts:  # theirs alone: another worker may just be reading its own
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
        """The envs that are ready, at least `min_envs` of those sent (None: all), in ascending order.

        Envs that share a worker arrive together. After a timeout everything stays pending: receive again.
        """
        self._state.refuse_unusable()
        state = self._state
        if not state.sent:
            state.refuse_step()
            raise NothingPending("nothing was sent: call send() first")
        if min_envs is not None and min_envs < 1:
            raise InvalidRequest(f"min_envs={min_envs}: at least 1")
        sizes = {host: len(ids) for host, ids in state.sent.items()}
        total = sum(sizes.values())
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        done = self._calls.guarded(lambda: self._executor.wait(sizes, min(min_envs or total, total), deadline))
        if not done:
            raise ReceiveTimeout(
                f"{state.names(list(state.sent))} still under way after {timeout_s} s: receive() again, or reset() "
                "or close()"
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
                self._state.require_reset([*error.env_ids, *self._results.untold])
                raise
        batch = self._batch(ids, infos)
        self._settle(done)
        if self._results.untold:  # their episodes are gone too, and there is no row to say it in
            self._state.require_reset(self._results.untold)  # guard: envs-lost-unasked-must-be-reset
            self._results.untold = []
        self._failures.steps_used += len(ids)
        self._results.remember(ids)
        return batch

    def _settle(self, done: Sequence[Host]) -> None:
        self._executor.settle(done)
        self._state.settle(done)

    # -- what it knows -----------------------------------------------------------------------------------------
    @property
    def episode_counts(self) -> Array:
        """[num_envs] index of each env's current episode; -1 before its first reset."""
        return self._episodes.copy()

    @property
    def awaiting_reset(self) -> list[int]:
        """Envs that have failed, or were lost with their worker and replaced: they go on after a reset only."""
        return sorted(self._state.must_reset)

    def mask_source(self) -> MaskSource | None:
        """Source of the envs' action masks; for infos, their last resets decide. None without masks."""
        sources = self._calls.run(_mask_source, dict.fromkeys(self._executor.hosts, ()))
        return next((sources[host] for host in self._executor.hosts if sources[host] is not None), None)

    @property
    def failures(self) -> Failures:
        """What went wrong so far, counted; steps sent = used + discarded + under way."""
        bad_values, out_of_bounds, env_restarts = self._executor.views[COUNTS][: ENV_RESTARTS + 1].sum(axis=1).tolist()
        return replace(self._failures, bad_values=bad_values, out_of_bounds=out_of_bounds, env_restarts=env_restarts)

    @property
    def worker_pids(self) -> tuple[int, ...]:
        """The worker processes; empty where there are none."""
        return self._executor.worker_pids

    # -- inside ------------------------------------------------------------------------------------------------
    def _step_some(self, actions: Any, env_ids: Sequence[int]) -> Any:
        ids = checked_ids(env_ids, self.num_envs)
        self.send(actions, env_ids)
        return self._reordered(self.receive(), ids)

    def _after_cut_step(self, error: BaseException, number_before: int) -> None:
        """A step of all envs did not come to its end: an env failed, a worker is lost, or Ctrl-C cut it short.

        In the last case what it asked for can still be received, by `receive` and nobody else.
        """
        executor = self._executor
        if isinstance(error, WorkerDied) or executor.broken:
            self._count_lost_step()
            self._state.give_up(error)
        elif isinstance(error, EnvFailed):
            executor.settle(executor.hosts)
            self._count_lost_step()
            # guard: envs-lost-undelivered-must-be-reset
            self._state.require_reset([*error.env_ids, *self._results.untold])
        elif executor.complete_step(number_before):
            self._failures.steps_sent += self.num_envs
            self._state.send({host: np.array(host.env_ids) for host in executor.hosts})

    def _count_lost_step(self) -> None:
        """A step of all envs was taken, and its batch is delivered to nobody."""
        self._failures.steps_sent += self.num_envs
        self._failures.steps_discarded += self.num_envs

    def _on_each(self, env_ids: Sequence[int] | None, function: Callable[..., Any], *arguments: Any) -> tuple[Any, ...]:
        self._state.refuse_unusable()
        return self._calls.on_each(checked_ids(env_ids, self.num_envs), function, *arguments)

    def _handed_out(self, observations: Any, ids: Array) -> Any:
        """What the caller is given; with `copy="poison"` it is spoilt when a view would begin to change."""
        return observations if self._poison is None else self._poison.hand_out(observations, ids)

    def _refuse_ended(self, ids: Array) -> None:
        """Without autoreset an episode that is over must be reset before its env's next step."""
        over = ids[self.episodes_over(ids)].tolist()
        if over:
            raise InvalidRequest(f"the episodes of envs {over} are over: reset(env_ids={over}) first")


def _mask_source(envs: EnvRange) -> MaskSource | None:
    """Runs where the envs are."""
    return next((source for env in envs.envs if (source := env.mask_source) is not None), None)


def _as_it_is(infos: Infos) -> Infos:
    return infos

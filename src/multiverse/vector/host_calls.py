"""Requests to hosts other than single steps (calls, resets, many steps at once), and the state after a failure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from multiverse.core.errors import EnvFailed, RemoteError, WorkerDied
from multiverse.core.infos import Infos, add_info
from multiverse.core.layout import Array
from multiverse.core.reset_plan import ResetRequest
from multiverse.executors.env_range import EnvRange
from multiverse.executors.executor import Answers, Executor, results_of
from multiverse.executors.hosts import Host
from multiverse.executors.row_run import Again, RowRun
from multiverse.executors.step_reply import Extras
from multiverse.executors.worker_host import WorkerHost
from multiverse.ipc.interrupts import HeldInterrupts
from multiverse.vector.requests import RequestState
from multiverse.vector.step_results import StepResults

ResetArguments = Mapping[Host, tuple[dict[int, ResetRequest]]]
"""Reset requests of each host's envs, by env id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowRequest:
    """Many steps of every env in one request: one for each row of `lost`, taken where the env runs (see `RowRun`).

    Args:
        function: (env_range, step, go_on, first row, *arguments), which fills what `OpenedEnvs.bind(fields)` has laid
            out.
        arguments: of `function`, the same for all hosts.
        lost: [rows, envs] bool, all False at first: where a step was lost. `function` marks those of its own envs. A
            worker that is lost and replaced costs its envs one row, which is marked here.
        should_stop: asked repeatedly; True ends the request early.
        on_lost: (env ids, row), called when the next episodes of a replaced worker's envs have begun.
        taken: [envs], all 0 at first: `function` counts the steps here where it does not step every env in every row.
        on_full: (env ids), called when the rows of a worker are full. With it workers do not wait for each other, and
            the request ends only when it is stopped.
        again: (env ids) → arguments with which a worker whose rows were full begins again; None: not yet.
    """

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    lost: Array
    should_stop: Callable[[], bool]
    on_lost: Callable[[range, int], None]
    taken: Array | None = None
    on_full: Callable[[range], None] | None = None
    again: Again | None = None


class HostCalls:
    """Runs functions where the envs are, host by host, and keeps the request state correct when that fails."""

    def __init__(self, executor: Executor, state: RequestState, results: StepResults) -> None:
        self._executor, self._state, self._results = executor, state, results
        self._failures = executor.failures
        self._num_envs = executor.views.layout.num_envs
        self._host_of = np.repeat(np.arange(len(executor.hosts)), [len(h.env_ids) for h in executor.hosts])

    def by_host(self, ids: Array) -> dict[Host, Array]:
        """Return positions in `ids`, by the host that runs those envs."""
        hosts, all_hosts = self._host_of[ids], self._executor.hosts
        if (hosts == hosts[0]).all():  # one worker's envs, as `receive` hands them out
            return {all_hosts[hosts[0]]: np.arange(len(ids))}
        return {all_hosts[h]: np.flatnonzero(hosts == h) for h in sorted(set(hosts.tolist()))}

    # -- calls -------------------------------------------------------------------------------------------------
    def on_each(self, ids: Array, function: Callable[..., Any], *arguments: Any) -> tuple[Any, ...]:
        """Call function(env_range, env ids, *arguments) on each host; returns one result per env, as in `ids`."""
        parts = self.by_host(ids)
        results = self.run(function, {host: (ids[where].tolist(), *arguments) for host, where in parts.items()})
        by_position: list[Any] = [None] * len(ids)
        for host, where in parts.items():
            for position, value in zip(where, results[host]):
                by_position[position] = value
        return tuple(by_position)

    def run(self, function: Callable[..., Any], arguments: Mapping[Host, tuple[Any, ...]]) -> dict[Host, Any]:
        """Call function(env_range, *arguments) on each of these hosts; returns their results."""
        self._state.refuse_busy(arguments, "call receive(), reset() or close() first")
        timeout_s = self._executor.timeouts.step_s
        return self._answers(arguments, lambda: self._executor.run(function, arguments, timeout_s))

    def start(self, function: Callable[..., Any], arguments: Mapping[Host, tuple[Any, ...]]) -> None:
        """Start the same call and return at once: `wait` for it, then `finish` it."""
        self._state.refuse_busy(arguments, "call receive(), reset() or close() first")
        self.guarded(lambda: self._executor.start_run(function, arguments))

    def wait(self, hosts: Iterable[Host], deadline: float | None) -> bool:
        """Wait until these hosts have answered or the deadline has passed; returns whether all have answered."""
        sizes = dict.fromkeys(hosts, 1)
        return not sizes or bool(self.guarded(lambda: self._executor.wait(sizes, len(sizes), deadline)))

    def finish(self, function: Callable[..., Any], arguments: Mapping[Host, tuple[Any, ...]]) -> dict[Host, Any]:
        """Return what `run` returns, for a call that was started before."""
        timeout_s = self._executor.timeouts.step_s
        return self._answers(arguments, lambda: results_of(self._executor.finish_run(function, arguments, timeout_s)))

    def _answers(self, hosts: Iterable[Host], ask: Callable[[], dict[Host, Any]]) -> dict[Host, Any]:
        try:
            results: dict[Host, Any] = self.guarded(ask)
        finally:
            self._demand_resets(hosts)
        return results

    def _demand_resets(self, hosts: Iterable[Host]) -> None:
        """Require resets of all envs of those hosts that were replaced: their episodes are lost, requested or not."""
        if self._executor.lost:
            self._state.require_reset(self._results.take_lost(hosts))  # guard: all-envs-of-a-lost-worker-are-told

    # -- many steps at once ------------------------------------------------------------------------------------
    def run_rows(self, request: RowRequest) -> bool:
        """Take many steps of every env; returns False if it was stopped before all rows were full."""
        if self._state.refusal is not None:
            self._state.refuse_step()
        executor, lost, taken = self._executor, request.lost, request.taken
        number, until_stopped = executor.number, request.on_full is not None
        run = RowRun(
            executor,
            request.function,
            request.arguments,
            request.should_stop,
            on_lost=partial(self._mark_lost_row, request),
            on_answer=partial(self._take_rows, request) if until_stopped else None,
            again=request.again,
        )
        try:
            answers = self.guarded(run.run)
            if not until_stopped:
                for host, extras in answers.items():
                    self._results.apply(host, extras)
                executor.settle(executor.hosts)
                self._results.remember(None)
        except BaseException:
            if executor.number != number:
                self._state.cut_call()  # guard: a-rollout-cut-short-needs-a-reset
            steps = run.env_steps() if taken is None else int(taken.sum())
            self._count_steps(sent=steps, discarded=steps)
            raise
        failed = [(host, failure) for host, extras in answers.items() for e in extras.before for failure in e.failures]
        steps = int(taken.sum()) if taken is not None else run.env_steps()
        if taken is None:  # the row in which an env failed was sent, and is not complete
            steps += sum(len(host.env_ids) for host in {host for host, _ in failed})
        self._count_steps(sent=steps, discarded=steps if run.stopped or until_stopped else int(lost.sum()))
        if failed:
            self._state.require_reset(failure.env_id for _, failure in failed if failure.env_id is not None)
            raise EnvFailed("raised in step", failed[0][0].worker, [failure for _, failure in failed])
        return not run.stopped

    def _mark_lost_row(self, request: RowRequest, worker: WorkerHost, row: int) -> int:
        """Mark the row in which a worker was lost; returns the row with which its replacement begins."""
        self._results.take_lost([worker])
        lost = request.lost
        row = min(row, len(lost) - 1)  # a worker lost after its last row costs that row
        mine = slice(worker.env_ids.start, worker.env_ids.stop)
        # Rows that it filled between its deadline and its end are filled again.
        lost[row, mine], lost[row + 1 :, mine] = True, False  # guard: rows-of-the-replaced-begin-anew
        request.on_lost(worker.env_ids, row)
        return row + 1

    def _take_rows(self, request: RowRequest, worker: WorkerHost, extras: Extras) -> None:
        """Count the rows of one worker that has answered, and pass them on if all are full."""
        mine, row = slice(worker.env_ids.start, worker.env_ids.stop), worker.mailbox.row
        self._results.apply(worker, extras)
        self._executor.settle([worker])
        self._results.remember(np.array(worker.env_ids))
        steps, full = row * len(worker.env_ids), row == len(request.lost)
        self._count_steps(sent=steps, discarded=int(request.lost[:, mine].sum()) if full else steps)
        if full and request.on_full is not None:  # guard: rows-that-were-cut-short-are-not-learned-from
            request.on_full(worker.env_ids)

    def _count_steps(self, sent: int, discarded: int) -> None:
        with HeldInterrupts():
            self._failures.steps_sent += sent
            self._failures.steps_used += sent - discarded
            self._failures.steps_discarded += discarded

    # -- resets ------------------------------------------------------------------------------------------------
    def make_way_for_reset(self, ids: Array) -> None:
        """Discard pending steps for a reset of all envs; refuse a partial reset of envs whose worker is busy."""
        if len(ids) < self._num_envs:
            self._state.refuse_busy(self.by_host(ids), "receive() them before resetting some of them")
        else:
            for host, extras in self.guarded(self._executor.discard_pending):
                self._results.apply(host, extras)
            self.discard_sent()
            self._demand_resets(self._executor.hosts)

    def reset(self, ids: Array, requests: dict[int, ResetRequest], rows: Array) -> Infos:
        """Begin an episode in each env of `ids`; returns their infos as a batch of `rows`."""
        return _merged(self.reset_each(ids, requests), rows)

    def reset_each(self, ids: Array, requests: dict[int, ResetRequest]) -> dict[int, Infos]:
        """Begin an episode in each env of `ids`; returns their infos by env id."""
        return self._episodes_begun(ids, self._reset_arguments(ids, requests), self._executor.try_run)

    def start_reset(self, ids: Array, requests: dict[int, ResetRequest]) -> ResetArguments:
        """Start a reset and return at once. Pass the result to `wait`, which takes its hosts, and to `finish_reset`."""
        arguments = self._reset_arguments(ids, requests)
        self.guarded(lambda: self._executor.start_run(EnvRange.reset, arguments))
        return arguments

    def finish_reset(self, ids: Array, arguments: ResetArguments, rows: Array) -> Infos:
        """Return what `reset` returns, for one that was started before."""
        return _merged(self._episodes_begun(ids, arguments, self._executor.finish_run), rows)

    def _reset_arguments(self, ids: Array, requests: dict[int, ResetRequest]) -> ResetArguments:
        return {host: ({int(i): requests[int(i)] for i in ids[where]},) for host, where in self.by_host(ids).items()}

    def _episodes_begun(
        self, ids: Array, arguments: ResetArguments, answers: Callable[..., Answers]
    ) -> dict[int, Infos]:
        by_env: dict[int, Infos] = {}
        failures: list[RemoteError] = []
        while arguments:
            results = self._reset_hosts(arguments, answers)
            for host, extras in results.items():
                by_env.update(extras.infos)
                failures += extras.failures
                self._results.apply(host, extras)
                self._executor.keep_objects(host, extras)
            arguments = {host: a for host, a in arguments.items() if host not in results}  # lost and replaced
            answers = self._executor.try_run
        failed = {failure.env_id for failure in failures}
        begun = [] if None in failed else [i for i in ids.tolist() if i not in failed]
        self._state.reset_done(begun, whole=len(ids) == self._num_envs)
        self._results.remember(np.array(begun, np.intp))
        if failures:
            self._state.require_reset(env_id for env_id in failed if env_id is not None)
            raise EnvFailed("raised in reset", next(iter(results)).worker, failures)
        return by_env

    def _reset_hosts(self, arguments: ResetArguments, answers: Callable[..., Answers]) -> dict[Host, Any]:
        """Return the answers to resets; hosts that were lost and replaced are missing, and must be asked again."""
        timeout_s = self._executor.timeouts.reset_s
        try:
            results, errors = self.guarded(lambda: answers(EnvRange.reset, arguments, timeout_s))
            for host, error in errors.items():
                if host not in self._executor.lost:
                    if isinstance(error, WorkerDied):
                        self._state.give_up(error)
                    raise error
        finally:
            self._demand_resets(arguments)  # `_episodes_begun` takes back those that are reset
        return results  # type: ignore[no-any-return]

    # -- failures ----------------------------------------------------------------------------------------------
    def guarded(self, action: Callable[[], Any]) -> Any:
        """Do it; after a failure that cannot be repaired all later calls are refused."""
        try:
            return action()
        except BaseException as error:
            lost_for_good = isinstance(error, WorkerDied) and not self._executor.lost
            if lost_for_good or self._executor.broken:
                self.discard_sent()
                self._state.give_up(error)
            elif any(host not in self._state.sent for host in self._executor.pending):
                self._state.cut_call()
            raise

    def end_cut_step(self, error: BaseException, number_before: int) -> None:
        """Update the state after a step of all envs that failed or was interrupted.

        An interrupted step whose requests were sent can still be received, with `receive`.
        """
        executor = self._executor
        if isinstance(error, WorkerDied) or executor.broken:
            self._count_steps(sent=self._num_envs, discarded=self._num_envs)
            self._state.give_up(error)
        elif isinstance(error, EnvFailed):
            executor.settle(executor.hosts)
            self._count_steps(sent=self._num_envs, discarded=self._num_envs)
            # guard: envs-lost-undelivered-must-be-reset
            self._state.require_reset([*error.env_ids, *self._results.unreported])
        elif executor.complete_step(number_before):
            self._failures.steps_sent += self._num_envs
            self._state.send({host: np.array(host.env_ids) for host in executor.hosts})

    def discard_sent(self) -> None:
        """Count pending steps as discarded, and forget them."""
        # guard: forgotten-steps-are-discarded
        self._failures.steps_discarded += sum(len(ids) for ids in self._state.sent.values())
        self._state.sent = {}


def _merged(by_env: Mapping[int, Infos], rows: Array) -> Infos:
    merged: Infos = {}
    for row, env_id in enumerate(rows.tolist()):
        if env_id in by_env:
            try:
                add_info(merged, by_env[env_id], row, len(rows))
            except Exception as error:
                failure = RemoteError.of(error, env_id)
                raise EnvFailed("has an info that does not fit the others'", None, [failure]) from error
    return merged

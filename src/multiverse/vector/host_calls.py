"""Everything asked of envs that is no step: resets, calls, attributes; and what becomes of the object if it fails."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from multiverse.contracts.errors import EnvFailed, RemoteError, WorkerDied
from multiverse.contracts.infos import Infos, add_info
from multiverse.contracts.reset_plan import ResetRequest
from multiverse.contracts.views import Array
from multiverse.executors.env_range import EnvRange
from multiverse.executors.executor import Answers, Executor, results_of
from multiverse.executors.hosts import Host, WorkerHost
from multiverse.executors.row_run import RowRun
from multiverse.memory.interrupts import HeldInterrupts
from multiverse.vector.requests import RequestState
from multiverse.vector.step_results import StepResults

ResetArguments = Mapping[Host, tuple[dict[int, ResetRequest]]]
"""What each host's envs are reset with, by env id."""


class HostCalls:
    """Runs functions where the envs are, host by host, and keeps the state honest when that goes wrong."""

    def __init__(self, executor: Executor, state: RequestState, results: StepResults) -> None:
        self._executor, self._state, self._results = executor, state, results
        self._failures = executor.failures
        self._num_envs = executor.views.layout.num_envs
        self._host_of = np.repeat(np.arange(len(executor.hosts)), [len(h.env_ids) for h in executor.hosts])

    def by_host(self, ids: Array) -> dict[Host, Array]:
        """Positions in `ids`, by the host that runs those envs."""
        hosts, all_hosts = self._host_of[ids], self._executor.hosts
        if (hosts == hosts[0]).all():  # one worker's envs, as `receive` hands them out
            return {all_hosts[hosts[0]]: np.arange(len(ids))}
        return {all_hosts[h]: np.flatnonzero(hosts == h) for h in sorted(set(hosts.tolist()))}

    # -- calls -------------------------------------------------------------------------------------------------
    def on_each(self, ids: Array, function: Callable[..., Any], *arguments: Any) -> tuple[Any, ...]:
        """function(env_range, env ids, *arguments) → one result for each env, in the order of `ids`."""
        parts = self.by_host(ids)
        results = self.run(function, {host: (ids[where].tolist(), *arguments) for host, where in parts.items()})
        found: list[Any] = [None] * len(ids)
        for host, where in parts.items():
            for position, value in zip(where, results[host]):
                found[position] = value
        return tuple(found)

    def run(self, function: Callable[..., Any], arguments: Mapping[Host, tuple[Any, ...]]) -> dict[Host, Any]:
        """function(env_range, *arguments) on each host named."""
        self._state.refuse_busy(arguments, "receive them, or reset() or close(), first")
        timeout_s = self._executor.timeouts.reply_s
        return self._answers(arguments, lambda: self._executor.run(function, arguments, timeout_s))

    def start(self, function: Callable[..., Any], arguments: Mapping[Host, tuple[Any, ...]]) -> None:
        """Ask for the same and come back at once: `wait` as long as you like, then `finish`."""
        self._state.refuse_busy(arguments, "receive them, or reset() or close(), first")
        self.guarded(lambda: self._executor.start_run(function, arguments))

    def wait(self, hosts: Iterable[Host], deadline: float | None) -> bool:
        """Whether all of these hosts have answered by the deadline (None: wait until they have)."""
        sizes = dict.fromkeys(hosts, 1)
        return not sizes or bool(self.guarded(lambda: self._executor.wait(sizes, len(sizes), deadline)))

    def finish(self, function: Callable[..., Any], arguments: Mapping[Host, tuple[Any, ...]]) -> dict[Host, Any]:
        """What `run` returns, of a call that was started before."""
        timeout_s = self._executor.timeouts.reply_s
        return self._answers(arguments, lambda: results_of(self._executor.finish_run(function, arguments, timeout_s)))

    def _answers(self, hosts: Iterable[Host], ask: Callable[[], dict[Host, Any]]) -> dict[Host, Any]:
        try:
            results: dict[Host, Any] = self.guarded(ask)
        finally:
            self._demand_resets(hosts)
        return results

    def _demand_resets(self, hosts: Iterable[Host]) -> None:
        """Of all envs of those hosts that were replaced: what they were in the middle of is gone, asked or not."""
        if self._executor.lost:
            self._state.require_reset(self._results.take_lost(hosts))  # guard: all-envs-of-a-lost-worker-are-told

    # -- many steps at once ------------------------------------------------------------------------------------
    def run_rows(
        self,
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        lost: Array,
        should_stop: Callable[[], bool],
        on_lost: Callable[[range, int], None],
    ) -> bool:
        """A step of every env for each row of `lost`, taken where it runs (see `RowRun`); False if stopped before.

        `lost` ([rows, envs] bool, nowhere yet) says where a step was lost, as `function` marks it for its own envs. A
        worker that is lost, and replaced, costs its envs one row: it is marked, and `on_lost(env ids, row)` is told
        when their next episodes have begun.
        """
        executor = self._executor
        number = executor.number

        def replaced(worker: WorkerHost, row: int) -> int:
            self._results.take_lost([worker])
            row = min(row, len(lost) - 1)  # lost after its last row: that one, then
            mine = slice(worker.env_ids.start, worker.env_ids.stop)
            # What it did between its deadline and its end is done again.
            lost[row, mine], lost[row + 1 :, mine] = True, False  # guard: rows-of-the-replaced-begin-anew
            on_lost(worker.env_ids, row)
            return row + 1

        run = RowRun(executor, function, arguments, should_stop, replaced)
        try:
            answers = self.guarded(run.run)
            for host, said in answers.items():
                self._results.learn_from(host, said)
            executor.settle(executor.hosts)
            self._results.remember(None)
        except BaseException:
            if executor.number != number:
                self._state.cut_call()  # guard: a-rollout-cut-short-needs-a-reset
            steps = run.env_steps()
            self._count_steps(steps, steps)
            raise
        self._count_steps(run.env_steps(), int(lost.sum()))
        failed = [(host, one) for host, said in answers.items() for each in said.before for one in each.failures]
        if failed:
            self._count_steps(len(failed), len(failed))
            self._state.require_reset(failure.env_id for _, failure in failed if failure.env_id is not None)
            raise EnvFailed("raised in step", failed[0][0].worker, [failure for _, failure in failed])
        return not run.stopped

    def _count_steps(self, sent: int, discarded: int) -> None:
        with HeldInterrupts():
            self._failures.steps_sent += sent
            self._failures.steps_used += sent - discarded
            self._failures.steps_discarded += discarded

    # -- resets ------------------------------------------------------------------------------------------------
    def make_way_for_reset(self, ids: Array) -> None:
        """A whole reset forgets what is under way; a partial one may not take other envs' steps with it."""
        if len(ids) < self._num_envs:
            self._state.refuse_busy(self.by_host(ids), "receive them before resetting some of them")
        else:
            for host, extras in self.guarded(self._executor.discard_pending):
                self._results.learn_from(host, extras)
            self.discard_sent()
            self._demand_resets(self._executor.hosts)

    def reset(self, ids: Array, requests: dict[int, ResetRequest], rows: Array) -> Infos:
        """Begin an episode in each env of `ids`; returns their infos as a batch of `rows`."""
        return _merged(self.reset_each(ids, requests), rows)

    def reset_each(self, ids: Array, requests: dict[int, ResetRequest]) -> dict[int, Infos]:
        """The same with each env's info by itself, by env id."""
        return self._episodes_begun(ids, self._reset_arguments(ids, requests), self._executor.try_run)

    def start_reset(self, ids: Array, requests: dict[int, ResetRequest]) -> ResetArguments:
        """Ask for the same and come back at once; what it returns is for `wait` (its hosts) and `finish_reset`."""
        arguments = self._reset_arguments(ids, requests)
        self.guarded(lambda: self._executor.start_run(EnvRange.reset, arguments))
        return arguments

    def finish_reset(self, ids: Array, arguments: ResetArguments, rows: Array) -> Infos:
        """What `reset` returns, of one that was started before."""
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
                self._results.learn_from(host, extras)
                self._executor.keep_objects(host, extras)
            arguments = {host: a for host, a in arguments.items() if host not in results}  # lost on the way, replaced
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
        """The resets that came through; a host that was lost and replaced is asked again by the caller of this."""
        timeout_s = self._executor.timeouts.reset_s
        try:
            results, errors = self.guarded(lambda: answers(EnvRange.reset, arguments, timeout_s))
            for host, error in errors.items():
                if host not in self._executor.lost:
                    if isinstance(error, WorkerDied):
                        self._state.give_up(error)
                    raise error
        finally:
            self._demand_resets(arguments)  # until they are reset, which most of them are about to be
        return results  # type: ignore[no-any-return]

    # -- when it goes wrong ------------------------------------------------------------------------------------
    def guarded(self, action: Callable[[], Any]) -> Any:
        """Do it; if that fails for good, say so to every later call."""
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

    def discard_sent(self) -> None:
        """Nobody will be given what is under way."""
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

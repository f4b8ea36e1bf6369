"""What hosts answer: to everything asked of envs that is no step, and what becomes of the object if it fails; and after
a step, what its envs said beside the numbers, and what was lost on the way."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from multiverse.core.errors import EnvFailed, InEnv, RemoteError, WorkerDied
from multiverse.core.failures import RESTARTED, FailureOptions
from multiverse.core.infos import Infos, add_info
from multiverse.core.layout import Array
from multiverse.core.reset_plan import ResetRequest
from multiverse.executors.env_range import EnvRange
from multiverse.executors.executor import Answers, Executor, Lost, results_of
from multiverse.executors.hosts import Host
from multiverse.executors.row_run import Again, RowRun
from multiverse.executors.step_reply import EXTRAS, FINALS, WROTE_INFOS, Extras
from multiverse.executors.worker_host import WorkerHost
from multiverse.ipc.env_rows import DeliveredRows, final_rows
from multiverse.ipc.info_columns import InfoReader
from multiverse.ipc.interrupts import HeldInterrupts
from multiverse.vector.requests import RequestState

log = logging.getLogger("multiverse")

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
        timeout_s = self._executor.timeouts.step_s
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
        timeout_s = self._executor.timeouts.step_s
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
        taken: Array | None = None,
        on_full: Callable[[range], None] | None = None,
        again: Again | None = None,
    ) -> bool:
        """A step of every env for each row of `lost`, taken where it runs (see `RowRun`) by function(env_range, step,
        go_on, first row, *arguments), which fills what `OpenedEnvs.bind(fields)` has laid out; False if stopped before.

        `lost` ([rows, envs] bool, nowhere yet) says where a step was lost, as `function` marks it for its own envs. A
        worker that is lost, and replaced, costs its envs one row: it is marked, and `on_lost(env ids, row)` is told
        when their next episodes have begun. `taken` ([envs], 0 yet): `function` counts the steps there, for it does not
        step every env in every row. `on_full(env ids)`: nobody waits for anybody, and it goes on until it is stopped.
        Whose rows are full is told of, and begins again with the arguments that `again` returns, as soon as it does.
        """
        if self._state.refusal is not None:
            self._state.refuse_step()
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

        def answered(worker: WorkerHost, said: Extras) -> None:
            """Of its own rows, what is done of all of them below."""
            mine, row = slice(worker.env_ids.start, worker.env_ids.stop), worker.mailbox.row
            self._results.learn_from(worker, said)
            executor.settle([worker])
            self._results.remember(np.array(worker.env_ids))
            steps, full = row * len(worker.env_ids), row == len(lost)
            self._count_steps(steps, int(lost[:, mine].sum()) if full else steps)
            if full and on_full is not None:  # guard: rows-that-were-cut-short-are-not-learned-from
                on_full(worker.env_ids)

        on_answer = None if on_full is None else answered
        run = RowRun(executor, function, arguments, should_stop, replaced, on_answer, again)
        try:
            answers = self.guarded(run.run)
            if on_full is None:
                for host, said in answers.items():
                    self._results.learn_from(host, said)
                executor.settle(executor.hosts)
                self._results.remember(None)
        except BaseException:
            if executor.number != number:
                self._state.cut_call()  # guard: a-rollout-cut-short-needs-a-reset
            steps = run.env_steps() if taken is None else int(taken.sum())
            self._count_steps(steps, steps)
            raise
        failed = [(host, one) for host, said in answers.items() for each in said.before for one in each.failures]
        steps = int(taken.sum()) if taken is not None else run.env_steps()
        if taken is None:  # the row in which an env failed was sent, and is not complete
            steps += sum(len(host.env_ids) for host in {host for host, _ in failed})
        self._count_steps(steps, steps if run.stopped or on_full is not None else int(lost.sum()))
        if failed:
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


class StepResults:
    """Merges the hosts' info columns, what came by pipe, final observations, and the rows of lost envs."""

    def __init__(self, executor: Executor, with_infos: bool, failures: FailureOptions) -> None:
        views = executor.views
        self._executor, self._failures, self._with_infos = executor, executor.failures, with_infos
        self._all = np.arange(views.layout.num_envs)
        self.untold: list[int] = []  # envs lost with a worker in the last step, and no row of it says so
        self._columns = InfoReader(views, [slice(h.env_ids.start, h.env_ids.stop) for h in executor.hosts])
        self._finals = final_rows(views) if views.layout.with_final_observations else None
        # A lost worker cannot be asked what it showed last.
        self.last_rows = DeliveredRows(views) if failures.restarts else None

    def collect(self, hosts: Sequence[Host], flags: int, ids: Array | None) -> Infos:
        """One step's infos of all envs (`ids` None) or of some; raises what envs raised."""
        answers = self._executor.extras_of(hosts) if flags & EXTRAS else []
        lost = {host: what for host, what in self._executor.lost.items() if host in hosts}
        self.untold = [i for host in lost for i in host.env_ids]
        for host, what in lost.items():
            self._columns.forget(self._executor.hosts.index(host))
            self.learn_from(host, what.extras)
        left, final = self._heard(answers)
        if answers:
            self._discard(sum(len(extras.restarts) + len(extras.truncated) for _, extras in answers))
        wrote = [h in hosts and bool(h.flags() & WROTE_INFOS) for h in self._executor.hosts]
        try:
            infos = (
                self._columns.whole_batch(wrote, left) if ids is None else self._columns.partial_batch(ids, wrote, left)
            )
        except InEnv as error:
            raise EnvFailed("has an info that does not fit the others'", None, [RemoteError.of(error)]) from error
        rows = ids if ids is not None else self._all
        if lost:
            self._add_lost(infos, rows, lost)
            self.untold = [i for i in self.untold if ids is not None and i not in ids]
        if self._finals is not None and (flags & FINALS or lost):
            self._add_finals(infos, rows, final)
        return infos

    def collect_each(self, hosts: Sequence[Host], flags: int) -> tuple[list[Infos], dict[int, Infos]]:
        """The same of all envs, unmerged: each env's info, and by env id the last one of an episode that ended.

        For vector envs without restarts: nothing is ever lost and gone on without.
        """
        answers = self._executor.extras_of(hosts) if flags & EXTRAS else []
        left, final = self._heard(answers)
        return self._columns.each_env([bool(h.flags() & WROTE_INFOS) for h in hosts], left), final

    def final_observation(self, env_id: int) -> Any:
        """same_step: a copy of the last observation of the episode that this env's last step ended."""
        assert self._finals is not None
        return self._finals.of(env_id)

    def _heard(self, answers: Sequence[tuple[Host, Extras]]) -> tuple[dict[int, Infos], dict[int, Infos]]:
        """By env id: infos that no column holds, and the last ones of episodes that ended; raises what envs raised."""
        left: dict[int, Infos] = {}
        final: dict[int, Infos] = {}
        for host, extras in answers:
            self.learn_from(host, extras)
            left.update(extras.infos)
            final.update(extras.final_infos)
        failed = [(host, extras) for host, extras in answers if extras.failures]
        if failed:
            failures = [failure for _, extras in failed for failure in extras.failures]  # guard: every-failure-is-told
            raise EnvFailed("raised in step", failed[0][0].worker, failures)
        return left, final

    def learn_from(self, host: Host, extras: Extras) -> None:
        """What holds beyond the step it came with: new info columns, and what is to be told."""
        for earlier in extras.before:
            self.learn_from(host, earlier)
        self._columns.announce(self._executor.hosts.index(host), extras.columns)
        for env_id, cause in extras.restarts.items():
            log.warning("env %d raised %s: restarted", env_id, cause)
        for warning in extras.warnings:
            log.warning("%s", warning)

    def take_lost(self, hosts: Iterable[Host]) -> list[int]:
        """The envs, asked or not, of those of these hosts that were replaced outside a step: nobody was told yet."""
        lost = self._executor.take_lost(hosts)
        for host, what in lost.items():
            self._columns.forget(self._executor.hosts.index(host))
            self.learn_from(host, what.extras)
        return [i for host in lost for i in host.env_ids]

    def remember(self, ids: Array | None) -> None:
        """These rows are delivered now (None: all of them)."""
        if self.last_rows is not None:
            if ids is None:
                self.last_rows.remember()
            else:
                self.last_rows.remember_some(ids)

    def _add_lost(self, infos: Infos, ids: Array, lost: Mapping[Host, Lost]) -> None:
        """The rows of workers that were lost in this step: cut short, showing what was delivered last."""
        assert self.last_rows is not None or not lost
        for host, what in lost.items():
            rows = np.flatnonzero(np.isin(ids, np.array(host.env_ids)))
            self._discard(len(rows))  # guard: a-lost-step-is-discarded
            for row in rows.tolist():
                # guard: a-lost-row-says-so
                add_info(infos, {**what.extras.infos.get(int(ids[row]), {}), RESTARTED: True}, row, len(ids))
                if self.last_rows is not None:
                    self.last_rows.cut(int(ids[row]))
                    # guard: a-torn-row-is-not-read, a-torn-row-is-no-final-observation
                    show = self.last_rows.restore if self._finals is None else self.last_rows.restore_as_final
                    show(int(ids[row]))

    def _discard(self, rows: int) -> None:
        """Rows that are returned and yet were no real step."""
        self._failures.steps_discarded += rows
        self._failures.steps_used -= rows

    def _add_finals(self, infos: Infos, ids: Array, final_infos: dict[int, Infos]) -> None:
        """same_step: the last observation and info of the episodes that ended in this step."""
        assert self._finals is not None
        there = self._finals.ended_in(ids)
        rows = np.flatnonzero(there).tolist()
        if not rows:
            return
        seen = infos.setdefault("final_obs", np.full(len(ids), None, dtype=object))
        for row, env_id in zip(rows, ids[rows].tolist()):
            seen[row] = self._finals.of(env_id)
        infos["_final_obs"] = there | infos.get("_final_obs", False)
        if self._with_infos:
            for row, env_id in zip(rows, ids[rows].tolist()):
                add_info(infos, {"final_info": final_infos.get(env_id, {})}, row, len(ids))

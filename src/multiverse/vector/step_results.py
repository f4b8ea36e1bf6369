"""After a step: what its envs said beside the numbers, as one infos dict; and what was lost on the way."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from multiverse.contracts.errors import EnvFailed, InEnv, RemoteError
from multiverse.contracts.failures import RESTARTED, FailurePolicy
from multiverse.contracts.infos import Infos, add_info
from multiverse.contracts.views import Array
from multiverse.executors.executor import Executor, Lost
from multiverse.executors.hosts import Host
from multiverse.executors.step_reply import EXTRAS, FINALS, WROTE_INFOS, Extras
from multiverse.memory.final_rows import final_rows
from multiverse.memory.info_columns import InfoReader
from multiverse.memory.last_rows import DeliveredRows

log = logging.getLogger("multiverse")


class StepResults:
    """Merges the hosts' info columns, what came by pipe, final observations, and the rows of lost envs."""

    def __init__(self, executor: Executor, with_infos: bool, failure_policy: FailurePolicy) -> None:
        views = executor.views
        self._executor, self._failures, self._with_infos = executor, executor.failures, with_infos
        self._all = np.arange(views.layout.num_envs)
        self.untold: list[int] = []  # envs lost with a worker in the last step, and no row of it says so
        self._columns = InfoReader(views, [slice(h.env_ids.start, h.env_ids.stop) for h in executor.hosts])
        self._finals = final_rows(views) if views.layout.with_final_observations else None
        # A lost worker cannot be asked what it showed last.
        self.last_rows = DeliveredRows(views) if failure_policy.restarts else None

    def collect(self, hosts: Sequence[Host], flags: int, ids: Array | None) -> Infos:
        """One step's infos of all envs (`ids` None) or of some; raises what envs raised."""
        left: dict[int, Infos] = {}
        final: dict[int, Infos] = {}
        answers = self._executor.extras_of(hosts) if flags & EXTRAS else []
        lost = {host: what for host, what in self._executor.lost.items() if host in hosts}
        self.untold = [i for host in lost for i in host.env_ids]
        for host, what in lost.items():
            self._columns.forget(self._executor.hosts.index(host))
            self.learn_from(host, what.extras)
        for host, extras in answers:
            self.learn_from(host, extras)
            left.update(extras.infos)
            final.update(extras.final_infos)
        self._raise_for_failures(answers)
        self._discard(sum(len(extras.restarts) + len(extras.truncated) for _, extras in answers))
        wrote = [h in hosts and bool(h.flags() & WROTE_INFOS) for h in self._executor.hosts]
        try:
            infos = self._columns.whole_batch(wrote, left) if ids is None else self._columns.some_rows(ids, wrote, left)
        except InEnv as error:
            raise EnvFailed("has an info that does not fit the others'", None, [RemoteError.of(error)]) from error
        rows = ids if ids is not None else self._all
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
        left: dict[int, Infos] = {}
        final: dict[int, Infos] = {}
        for host, extras in answers:
            self.learn_from(host, extras)
            left.update(extras.infos)
            final.update(extras.final_infos)
        self._raise_for_failures(answers)
        return self._columns.each_env([bool(h.flags() & WROTE_INFOS) for h in hosts], left), final

    def final_observation(self, env_id: int) -> Any:
        """same_step: a copy of the last observation of the episode that this env's last step ended."""
        assert self._finals is not None
        return self._finals.of(env_id)

    def _raise_for_failures(self, answers: Sequence[tuple[Host, Extras]]) -> None:
        failed = [(host, extras) for host, extras in answers if extras.failures]
        if failed:
            failures = [failure for _, extras in failed for failure in extras.failures]  # guard: every-failure-is-told
            raise EnvFailed("raised in step", failed[0][0].worker, failures)

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
        for row in np.flatnonzero(self._finals.there_in(ids)).tolist():
            env_id = int(ids[row])
            final: Infos = {"final_obs": self._finals.of(env_id)}
            if self._with_infos:
                final["final_info"] = final_infos.get(env_id, {})
            add_info(infos, final, row, len(ids))

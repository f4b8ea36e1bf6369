"""Results of a step besides its arrays: infos, final observations, failures of envs, and the rows of lost workers."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from multiverse.core.errors import EnvFailed, InEnv, RemoteError
from multiverse.core.failures import RESTARTED, FailureOptions
from multiverse.core.infos import Infos, add_info
from multiverse.core.layout import Array
from multiverse.executors.executor import Executor, Lost
from multiverse.executors.hosts import Host
from multiverse.executors.step_reply import EXTRAS, FINALS, WROTE_INFOS, Extras
from multiverse.ipc.env_rows import DeliveredRows, final_rows
from multiverse.ipc.info_columns import InfoReader

log = logging.getLogger("multiverse")


class StepResults:
    """Merges the hosts' info columns, what came by pipe, final observations, and the rows of lost envs."""

    def __init__(self, executor: Executor, with_infos: bool, failures: FailureOptions) -> None:
        views = executor.views
        self._executor, self._failures, self._with_infos = executor, executor.failures, with_infos
        self._all = np.arange(views.layout.num_envs)
        self.unreported: list[int] = []  # envs lost with a worker in the last step that no row of it reports
        self._columns = InfoReader(views, [slice(h.env_ids.start, h.env_ids.stop) for h in executor.hosts])
        self._finals = final_rows(views) if views.layout.with_final_observations else None
        # A lost worker cannot be asked for the last observations of its envs.
        self.last_rows = DeliveredRows(views) if failures.restarts else None

    def collect(self, hosts: Sequence[Host], flags: int, ids: Array | None) -> Infos:
        """Return the infos of one step of all envs (`ids` None) or of some; raises what envs raised."""
        extras_by_host = self._executor.extras_of(hosts) if flags & EXTRAS else []
        lost_workers = {host: lost for host, lost in self._executor.lost.items() if host in hosts}
        self.unreported = [i for host in lost_workers for i in host.env_ids]
        for host, lost in lost_workers.items():
            self._columns.forget(self._executor.hosts.index(host))
            self.apply(host, lost.extras)
        other_infos, final_infos = self._merged(extras_by_host)
        if extras_by_host:
            self._discard(sum(len(extras.restarts) + len(extras.truncated) for _, extras in extras_by_host))
        wrote = [h in hosts and bool(h.flags() & WROTE_INFOS) for h in self._executor.hosts]
        try:
            if ids is None:
                infos = self._columns.whole_batch(wrote, other_infos)
            else:
                infos = self._columns.partial_batch(ids, wrote, other_infos)
        except InEnv as error:
            raise EnvFailed("has an info that does not fit the others'", None, [RemoteError.of(error)]) from error
        rows = ids if ids is not None else self._all
        if lost_workers:
            self._add_lost(infos, rows, lost_workers)
            self.unreported = [i for i in self.unreported if ids is not None and i not in ids]
        if self._finals is not None and (flags & FINALS or lost_workers):
            self._add_finals(infos, rows, final_infos)
        return infos

    def collect_each(self, hosts: Sequence[Host], flags: int) -> tuple[list[Infos], dict[int, Infos]]:
        """Return the same unmerged: the info of every env, and by env id the last info of an episode that ended.

        For vector envs without restarts, where the loss of a worker is always an error.
        """
        extras_by_host = self._executor.extras_of(hosts) if flags & EXTRAS else []
        other_infos, final_infos = self._merged(extras_by_host)
        return self._columns.each_env([bool(h.flags() & WROTE_INFOS) for h in hosts], other_infos), final_infos

    def final_observation(self, env_id: int) -> Any:
        """same_step: a copy of the last observation of the episode that this env's last step ended."""
        assert self._finals is not None
        return self._finals.of(env_id)

    def _merged(self, extras_by_host: Sequence[tuple[Host, Extras]]) -> tuple[dict[int, Infos], dict[int, Infos]]:
        """By env id: infos that no column holds, and the last infos of ended episodes; raises what envs raised."""
        other_infos: dict[int, Infos] = {}
        final_infos: dict[int, Infos] = {}
        for host, extras in extras_by_host:
            self.apply(host, extras)
            other_infos.update(extras.infos)
            final_infos.update(extras.final_infos)
        failed = [(host, extras) for host, extras in extras_by_host if extras.failures]
        if failed:
            failures = [failure for _, extras in failed for failure in extras.failures]  # guard: every-failure-is-told
            raise EnvFailed("raised in step", failed[0][0].worker, failures)
        return other_infos, final_infos

    def apply(self, host: Host, extras: Extras) -> None:
        """Add new info columns, and log restarts and warnings; including those of earlier steps in the same reply."""
        for earlier in extras.before:
            self.apply(host, earlier)
        self._columns.announce(self._executor.hosts.index(host), extras.columns)
        for env_id, cause in extras.restarts.items():
            log.warning("env %d raised %s: restarted", env_id, cause)
        for warning in extras.warnings:
            log.warning("%s", warning)

    def take_lost(self, hosts: Iterable[Host]) -> list[int]:
        """Return all envs of those of these hosts that were replaced outside a step, which no row reports."""
        lost_workers = self._executor.take_lost(hosts)
        for host, lost in lost_workers.items():
            self._columns.forget(self._executor.hosts.index(host))
            self.apply(host, lost.extras)
        return [i for host in lost_workers for i in host.env_ids]

    def remember(self, ids: Array | None) -> None:
        """Keep these rows (None: all) as the last that were delivered."""
        if self.last_rows is not None:
            if ids is None:
                self.last_rows.remember()
            else:
                self.last_rows.remember_some(ids)

    def _add_lost(self, infos: Infos, ids: Array, lost_workers: Mapping[Host, Lost]) -> None:
        """Truncate the rows of workers that were lost in this step; they show the last delivered observations."""
        assert self.last_rows is not None or not lost_workers
        for host, lost in lost_workers.items():
            rows = np.flatnonzero(np.isin(ids, np.array(host.env_ids)))
            self._discard(len(rows))  # guard: a-lost-step-is-discarded
            for row in rows.tolist():
                # guard: a-lost-row-says-so
                add_info(infos, {**lost.extras.infos.get(int(ids[row]), {}), RESTARTED: True}, row, len(ids))
                if self.last_rows is not None:
                    self.last_rows.cut(int(ids[row]))
                    # guard: a-torn-row-is-not-read, a-torn-row-is-no-final-observation
                    show = self.last_rows.restore if self._finals is None else self.last_rows.restore_as_final
                    show(int(ids[row]))

    def _discard(self, rows: int) -> None:
        """Count rows that are returned although they are no real steps."""
        self._failures.steps_discarded += rows
        self._failures.steps_used -= rows

    def _add_finals(self, infos: Infos, ids: Array, final_infos: dict[int, Infos]) -> None:
        """same_step: add the last observation and info of the episodes that ended in this step."""
        assert self._finals is not None
        has_final = self._finals.ended_in(ids)
        rows = np.flatnonzero(has_final).tolist()
        if not rows:
            return
        final_observations = infos.setdefault("final_obs", np.full(len(ids), None, dtype=object))
        for row, env_id in zip(rows, ids[rows].tolist()):
            final_observations[row] = self._finals.of(env_id)
        infos["_final_obs"] = has_final | infos.get("_final_obs", False)
        if self._with_infos:
            for row, env_id in zip(rows, ids[rows].tolist()):
                add_info(infos, {"final_info": final_infos.get(env_id, {})}, row, len(ids))

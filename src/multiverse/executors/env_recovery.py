"""Recovery after failures of envs: the failure becomes an error, the episode is truncated, or the env is replaced."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from time import monotonic_ns
from typing import TYPE_CHECKING, Any

from multiverse.core.env import Env
from multiverse.core.errors import BadValue, InEnv, RemoteError
from multiverse.core.failures import BAD_VALUE, RESTARTED, RestartLimit, Work, restart_limit
from multiverse.core.infos import Infos
from multiverse.core.reset_plan import ResetRequest
from multiverse.core.wording import describe_ids

if TYPE_CHECKING:
    from multiverse.executors.env_range import EnvRange

OUT_OF_MEMORY = 87
"""Exit code of a worker that has ended itself because one of its envs ran out of memory."""

replaceable_process = False
"""Whether this is a worker process that the caller replaces when it ends."""


class OutOfMemory(SystemExit):
    """An env ran out of memory. The process that holds the leaked memory ends, and its caller replaces it."""

    def __init__(self, failure: RemoteError) -> None:
        super().__init__(OUT_OF_MEMORY)
        self.failure = failure


class EnvRecovery:
    """Handles the failures of the envs of one range; envs are numbered by their position in it."""

    def __init__(self, envs: EnvRange, build: Sequence[Callable[[], Env]]) -> None:
        self._range: EnvRange = weakref.proxy(envs)  # it owns us; a cycle would keep the block mapped after a close
        self._build = list(build)
        self._ids, self._options = envs.config.env_ids, envs.config.failures
        rate = self._options.restarts_per_minute
        self._limits: list[RestartLimit[RemoteError]]  # one for each env, or a rate that all envs share
        self._limits = [restart_limit(rate)] * len(build) if rate is not None else [restart_limit(rate) for _ in build]

    # -- bad values ------------------------------------------------------------------------------------------
    def check_rows(self, chosen: Sequence[int], actions: Sequence[Any], begun: Sequence[int]) -> list[int]:
        """Check each row after the guard has found something in the rows of a step. Returns the envs whose episodes
        were cut.

        `begun`: envs whose rows have the first observation of an episode, which cannot be replaced by an earlier one.
        """
        envs, guard = self._range, self._range.guard
        assert guard is not None
        if guard.mode == "clip":
            for i in chosen:
                guard.clip(i)
            return []
        failed = {failure.env_id for failure in envs.extras.failures}
        bad: dict[int, Exception] = dict(guard.bad_rows([i for i in chosen if self._ids[i] not in failed]))
        bad.update({i: InEnv(self._ids[i], bad[i]) for i in begun if i in bad})
        cut = [i for i, action in zip(chosen, actions) if i in bad and self.cut_after(i, bad[i], action)]
        for i in guard.rows_outside():
            if i in chosen and i not in bad:
                guard.count_outside(i)
        envs.has_extras = envs.has_extras or bool(guard.warnings)
        return cut

    # -- failed steps ----------------------------------------------------------------------------------------
    def cut_after(self, i: int, error: Exception, action: Any) -> bool:
        """Handle a failed step of an env: truncate the episode if the options say so; False if it is an error."""
        envs = self._range
        envs.has_extras = True
        in_reset = isinstance(error, InEnv)
        step = None if in_reset else envs.columns.length(i) + 1
        failure = RemoteError.of(error, self._ids[i])
        taken = envs.columns.by_agent(i, action) if envs.columns.several else action
        # guard: a-failure-tells-its-past
        failure = failure.under(envs.episodes.circumstances(i, step, taken if step else None))
        if isinstance(error.cause if isinstance(error, InEnv) else error, BadValue):
            first = envs.guard is not None and envs.guard.count(i)
            if self._options.on_bad_value == "truncate" and not in_reset:
                self._truncate(i, failure, warn=first)
                return True
        if self._replace(i, failure):
            self._cut_episode(i, RESTARTED)
            return True
        return False

    def _truncate(self, i: int, failure: RemoteError, warn: bool) -> None:
        """End the episode without the values of its last step; the env continues with its next episode."""
        envs, env_id = self._range, self._ids[i]
        assert envs.last_rows is not None
        envs.extras.truncated.append(env_id)
        if warn:
            envs.extras.warnings.append(
                f"env {env_id}: {failure.message} ({failure.circumstances}): episode truncated; from now on counted in "
                "envs.failures.bad_values"
            )
        envs.last_rows.restore(env_id)  # guard: a-truncated-row-shows-what-was-before
        self._cut_episode(i, BAD_VALUE)

    def _replace(self, i: int, failure: RemoteError) -> bool:
        """Replace an env that raised, and restore its row as last delivered; False if the failure is an error.

        If the new env cannot be built, that is another failure, and it is tried again within the limit.
        """
        envs, env_id = self._range, self._ids[i]
        if not self._options.restarts or envs.last_rows is None:
            envs.extras.failures.append(failure)
            return False
        if not envs.episodes.was_reset[i]:  # guard: what-never-worked-is-not-tried-again
            envs.extras.failures.append(failure)
            return False
        first = failure
        self._end_if_out_of_memory(failure)
        while self._limits[i].allows(failure, Work(int(envs.completed[i]), envs.columns.all_steps(i))):
            try:
                envs.envs[i].close()
            except Exception:  # the env has failed already, so its close may fail too
                pass
            began_at = monotonic_ns()
            try:
                envs.envs[i] = self._build[i]()  # guard: one-env-costs-one-env
                envs.envs[i].bind(envs.columns.rows_of(env_id))
            except Exception as error:
                failure = RemoteError.of(error, env_id)
                self._end_if_out_of_memory(failure)
                self._warn_again(env_id, failure)
                continue  # guard: an-env-that-cannot-be-built-is-tried-again
            finally:
                envs.episodes.resets_ns += monotonic_ns() - began_at
            envs.look_up_steps()
            envs.last_rows.restore(env_id)
            envs.restarts[i] += env_id not in envs.extras.restarts  # guard: restarts-outlive-their-worker
            envs.extras.restarts.setdefault(env_id, first)
            return True
        self._give_up(i, failure)
        return False

    def _end_if_out_of_memory(self, failure: RemoteError) -> None:
        """End a process that the caller replaces, instead of building an env in it again."""
        if replaceable_process and failure.type_name.endswith("MemoryError"):
            raise OutOfMemory(failure)  # guard: out-of-memory-ends-the-process

    def _warn_again(self, env_id: int, failure: RemoteError) -> None:
        self._range.extras.warnings.append(f"env {env_id} failed again after it was rebuilt: {failure}")

    def _give_up(self, i: int, failure: RemoteError) -> None:
        """Report an env that exceeded its limit: with the first of its failures, and the last one beside it."""
        first, failures = self._limits[i].first_cause, self._range.extras.failures
        if not any(other.given_up and other.env_id == first.env_id for other in failures):
            ids = self._ids if self._options.restarts_per_minute is not None else self._ids[i : i + 1]
            whose = f"env{'s' * (len(ids) > 1)} {describe_ids(ids)}"
            why = self._limits[i].why_given_up(whose, failure.where_and_what())
            failures.append(first.because_of(why))  # guard: a-given-up-env-says-so
        if failure.env_id not in [other.env_id for other in failures]:
            failures.append(failure)

    def _cut_episode(self, i: int, marker: str) -> None:
        """Write the row of the lost step: no reward, truncated, and what the autoreset mode shows after an episode."""
        envs, env_id = self._range, self._ids[i]
        envs.completed[i] -= 1  # it is counted again with the episodes that ended
        envs.columns.cut(i)
        envs.info_writer.forget(i)
        envs.extras.infos.pop(env_id, None)
        info: Infos | None = {}
        if envs.finals:
            envs.keep_final(i)
            info = self.begin(i)
        # Also without infos, because learners need the marker.
        envs.write_info(i, {**(info if info and envs.config.with_infos else {}), marker: True})

    def begin(self, i: int, request: ResetRequest | None = None) -> Infos | None:
        """Begin an episode, in a new env if the reset fails and a restart is allowed; None if it is an error."""
        envs, env_id = self._range, self._ids[i]
        while True:
            try:
                return envs.begin_checked(i, request)
            except Exception as error:
                failure = RemoteError.of(error, env_id).under(envs.episodes.circumstances(i))
                if env_id in envs.extras.restarts:
                    self._warn_again(env_id, failure)
                if not self._replace(i, failure):  # guard: an-env-that-cannot-be-reset-is-replaced
                    return None

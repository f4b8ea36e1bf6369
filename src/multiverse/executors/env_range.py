"""A range of envs and how they are stepped: the same code wherever they run, in the caller, a thread or a process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from time import monotonic_ns
from typing import Any

import numpy as np

from multiverse.core.env import Env
from multiverse.core.errors import BadValue, InEnv, RemoteError, describe_ids
from multiverse.core.failures import (
    BAD_VALUE,
    DEFAULT_POLICY,
    RESTARTED,
    FailureOptions,
    RestartLimit,
    Work,
    restart_limit,
)
from multiverse.core.infos import Infos, refuse_no_dict
from multiverse.core.layout import (
    ACTION_MASKS,
    ACTIONS,
    COMPLETED_EPISODES,
    COUNTS,
    ENV_RESTARTS,
    EPISODES,
    FINAL_ACTION_MASKS,
    FINAL_OBSERVATIONS,
    OBSERVATIONS,
    STATE,
    STEPPING,
    FieldName,
    Group,
)
from multiverse.core.plan import Autoreset, autoreset_for
from multiverse.core.reset_plan import ResetPlan, ResetRequest, checked_task
from multiverse.core.views import Array, Views
from multiverse.executors.episode_log import EpisodeLog
from multiverse.executors.launch.black_box import signed
from multiverse.executors.launch.crash_report import OwnShare
from multiverse.executors.life import OUT_OF_MEMORY
from multiverse.executors.step_reply import EXTRAS, FAILED, FINALS, WROTE_INFOS, Extras
from multiverse.executors.value_guard import ValueGuard
from multiverse.ipc.env_rows import EnvRows, mask_rows, object_rows, observation_rows, put_object_rows
from multiverse.ipc.info_columns import InfoWriter
from multiverse.ipc.last_rows import LastRows
from multiverse.ipc.own_columns import RangeColumns
from multiverse.ipc.space_rows import env_actions_reader, row_writer

_NOBODY: list[int] = []


def _and_state(call: Callable[..., Any], env: Env, write: Callable[[Any], None]) -> Callable[..., Any]:
    """A step or reset of an env, after which it is asked what it is like as a whole."""

    def call_and_look(*arguments: Any) -> Any:
        outcome = call(*arguments)
        write(env.call("state", (), {}))
        return outcome

    return call_and_look


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeConfig:
    """What a range needs to know besides its envs."""

    env_ids: range
    autoreset: Autoreset | None = "next_step"  # None: what suits the kind of env
    with_infos: bool = False
    reset_plan: ResetPlan | None = None
    failures: FailureOptions = DEFAULT_POLICY
    tasks: Sequence[Any] | None = None  # None: resets name the tasks themselves, not their numbers


class OutOfMemory(SystemExit):
    """An env ran out of memory. The process that holds what it leaked ends, and its caller replaces it."""

    def __init__(self, failure: RemoteError) -> None:
        super().__init__(OUT_OF_MEMORY)
        self.failure = failure


replaceable_process = False
"""Whether this is a worker process whose caller replaces it."""


class EnvRange:
    """Hosts a contiguous range of envs; every call returns after all of them are done."""

    def __init__(self, config: RangeConfig, build: Sequence[Callable[[], Env]]) -> None:
        self.config, self._build = config, list(build)
        self._limits = self._restart_limits()
        self._log = EpisodeLog(len(config.env_ids))
        self.beginnings_ns = 0  # time spent in resets, and in rebuilding envs
        self.envs: list[Env] = []
        try:
            for env_id, make in zip(config.env_ids, build):
                try:
                    self.envs.append(signed(make, "constructor", env_id)())
                except Exception as error:
                    raise InEnv(env_id, error) from error
        except BaseException:
            self.close()
            raise

    def _restart_limits(self) -> list[RestartLimit[RemoteError]]:
        """Return each env's own limit, or the one rate that all envs of the range share."""
        rate, count = self.config.failures.restarts_per_minute, len(self.config.env_ids)
        return [restart_limit(rate) for _ in range(count)] if rate is None else [restart_limit(rate)] * count

    def bind(self, views: Views, replacing: bool = False) -> None:
        """Take this range's rows; before this nothing can be stepped or reset.

        `replacing`: the rows were another worker's, which is lost: their episodes end here, cut short.
        """
        ids = self.config.env_ids
        rows = slice(ids.start, ids.stop)
        self._autoreset = autoreset_for(self.config.autoreset, self.envs[0].description.kind)
        self._own = RangeColumns(views, ids)
        for env_id, env in zip(ids, self.envs):
            env.bind(self._own.rows_of(env_id))
        self._write_states: list[Callable[[Any], None]] = []
        if (space := views.layout.state_space) is not None:
            self._write_states = [row_writer(space, views, (STATE, OBSERVATIONS), env_id) for env_id in ids]
        self._look_up_steps()
        self._everyone = list(range(len(ids)))
        self._read_actions = env_actions_reader(views, ids)
        self._stepping, self._episodes = views[STEPPING][rows], views[EPISODES].data
        self._restarts, self._completed = views[COUNTS][ENV_RESTARTS, rows], views[COUNTS][COMPLETED_EPISODES, rows]
        self._info_writer = InfoWriter(views, rows)
        self._was_reset = [replacing] * len(ids)
        self._over = [replacing] * len(ids)  # the env's last step ended its episode
        self._any_over = replacing
        self._with_infos = self.config.with_infos
        self.views, self.kept = views, {}
        self._finals: list[tuple[EnvRows, EnvRows]] = []  # (final, current) of every leaf and mask
        if views.layout.with_final_observations:
            current = observation_rows(views, OBSERVATIONS, ids)
            self._finals = list(zip(observation_rows(views, FINAL_OBSERVATIONS, ids), current))
            self._finals += zip(mask_rows(views, FINAL_ACTION_MASKS, ids), mask_rows(views, ACTION_MASKS, ids))
        self._objects = [name for name in views.objects if name[1] != ACTIONS]  # what the block cannot hold
        self._extras = Extras()
        self._eventful = False  # there is more in the extras than what every step has to say
        self._last_rows = LastRows(views, ids) if self.config.failures.shows_last_rows else None
        policy = self.config.failures
        watched = policy.on_bad_value != "off"
        self._guard = ValueGuard(policy.on_bad_value, views, ids, self._own, policy.float32) if watched else None
        if replacing:
            self._own.take_over()
        self._own.publish_ends()

    def seed_of(self, i: int) -> int | None:
        """What the episode of env i of this range began from, if it was given a seed."""
        return self._log.seed_of(i)

    def tell_beginnings_to(self, share: OwnShare) -> None:
        """Which episodes begin, from which seeds: for the case that one of them ends this process."""
        self._log.share = share

    def _look_up_steps(self) -> None:
        calls: list[tuple[Callable[..., Any], Callable[..., Any]]] = [(env.step, env.reset) for env in self.envs]
        for i, write in enumerate(self._write_states):
            step, reset = calls[i]
            calls[i] = _and_state(step, self.envs[i], write), _and_state(reset, self.envs[i], write)
        self._steps = [signed(step, "step", env_id) for env_id, (step, _) in zip(self.config.env_ids, calls)]
        self._resets = [signed(reset, "reset", env_id) for env_id, (_, reset) in zip(self.config.env_ids, calls)]

    kept: dict[Any, Any]
    """Of functions that are run here again and again: what they would have to make anew each time."""

    # -- stepping --------------------------------------------------------------------------------------------
    def step(self, only_some: bool = False) -> int:
        """Step every env of the range (or those marked in the block); returns flags."""
        chosen, steps, actions = self._everyone, self._steps, self._read_actions()
        over, with_infos = self._over, self._with_infos
        if only_some:
            chosen = np.flatnonzero(self._stepping).tolist()
            steps, actions = [steps[i] for i in chosen], [actions[i] for i in chosen]
        resets = self._leave_ended_episodes(chosen) if self._any_over else _NOBODY
        writer, ended_now = self._info_writer, []
        if writer.wrote:
            writer.clear()
        for i, step, action in zip(chosen, steps, actions):
            try:
                if resets and over[i]:
                    info = self._begin_after_end(i)
                else:
                    ended, info = step(action)
                    if info.__class__ is not dict:  # guard: an-info-is-a-dict
                        refuse_no_dict("the info", info)
                    if ended:
                        ended_now.append(i)
                        if self._finals:
                            info = self._end_and_begin(i, info)
                if info and with_infos:
                    self._write_info(i, info)
            except Exception as error:
                if self._cut_after(i, error, action):
                    ended_now.append(i)
        if self._guard is not None and self._guard.look():  # guard: every-step-is-looked-at
            ended_now += self._look_closer(chosen, actions, begun=ended_now if self._finals else resets)
        if only_some:
            self._own.add_step_of(chosen)
        else:
            self._own.add_step()
        if ended_now or self._any_over or self._own.several:
            self._mark_ends(ended_now, resets)
        if self._last_rows is not None:
            self._last_rows.remember()
        finals = bool(ended_now and self._finals)
        if self._finals and self._own.several and self._own.any_ended:
            finals = self._keep_finals_of_some(chosen, ended_now) or finals
        if finals or writer.wrote or self._objects or self._eventful:
            return self._flags(finals)
        return 0

    def _keep_finals_of_some(self, chosen: Iterable[int], ended_now: Sequence[int]) -> bool:
        """same_step, where agents end before their episode does: their last observations are final ones too."""
        some_ended = self._own.envs_with_ends()
        found = [i for i in chosen if some_ended[i] and i not in ended_now]
        for i in found:
            for final, current in self._finals:
                final.take(current, i)
        return bool(found)

    def _leave_ended_episodes(self, chosen: Iterable[int]) -> list[int]:
        """The episode that a row's last step ended stays readable until its next step: now. Returns those to reset."""
        left = [i for i in chosen if self._over[i]]
        for i in left:
            self._own.begin(i)
            self._over[i] = self._autoreset == "next_step"
        return left if self._autoreset == "next_step" else []

    def _begin_after_end(self, i: int) -> Infos:
        """next_step: the step after an episode's end is the next one's reset; its action is ignored."""
        info = self._begin_episode(i)
        self._over[i] = False
        self._own.forget_reward(i)
        return info

    # -- bad values ------------------------------------------------------------------------------------------
    def _look_closer(self, chosen: Sequence[int], actions: Sequence[Any], begun: Sequence[int]) -> list[int]:
        """The guard has seen something in the rows of a step. Returns the envs whose episodes it cut.

        `begun`: their rows show the first observation of an episode; a bad one there leaves nothing to go on with.
        """
        guard = self._guard
        assert guard is not None
        if guard.mode == "clip":
            for i in chosen:
                guard.clip(i)
            return []
        failed = {failure.env_id for failure in self._extras.failures}
        bad: dict[int, Exception] = dict(guard.bad_rows([i for i in chosen if self.config.env_ids[i] not in failed]))
        bad.update({i: InEnv(self.config.env_ids[i], bad[i]) for i in begun if i in bad})
        cut = [i for i, action in zip(chosen, actions) if i in bad and self._cut_after(i, bad[i], action)]
        for i in guard.rows_outside():
            if i in chosen and i not in bad:
                guard.count_outside(i)
        self._eventful = self._eventful or bool(guard.warnings)
        return cut

    # -- a step that failed ------------------------------------------------------------------------------------
    def _cut_after(self, i: int, error: Exception, action: Any) -> bool:
        """An env's step failed: cut its episode if that is what the caller wants; False if it is an error."""
        self._eventful = True
        in_reset = isinstance(error, InEnv)
        step = None if in_reset else self._own.length(i) + 1
        failure = RemoteError.of(error, self.config.env_ids[i])
        taken = self._own.by_agent(i, action) if self._own.several else action
        # guard: a-failure-tells-its-past
        failure = failure.under(self._log.circumstances(i, step, taken if step else None))
        if isinstance(error.cause if isinstance(error, InEnv) else error, BadValue):
            first = self._guard is not None and self._guard.count(i)
            if self.config.failures.on_bad_value == "truncate" and not in_reset:
                self._truncate(i, failure, tell=first)
                return True
        if self._replace_env(i, failure):
            self._cut_episode(i, RESTARTED)
            return True
        return False

    def _truncate(self, i: int, failure: RemoteError, tell: bool) -> None:
        """The env goes on with its next episode; what it returned is shown to nobody."""
        assert self._last_rows is not None
        env_id = self.config.env_ids[i]
        self._extras.truncated.append(env_id)
        if tell:
            self._extras.warnings.append(
                f"env {env_id}: {failure.message} ({failure.circumstances}): episode truncated; counted from now on in "
                "envs.failures.bad_values"
            )
        self._last_rows.restore(env_id)  # guard: a-truncated-row-shows-what-was-before
        self._cut_episode(i, BAD_VALUE)

    def _replace_env(self, i: int, failure: RemoteError) -> bool:
        """A new env in place of one that raised, its row as it was last delivered; False if that is an error.

        One that cannot even be built is a failure more, and tried again as long as that is allowed.
        """
        env_id = self.config.env_ids[i]
        if not self.config.failures.restarts or self._last_rows is None:
            self._extras.failures.append(failure)
            return False
        if not self._was_reset[i]:  # guard: what-never-worked-is-not-tried-again
            self._extras.failures.append(failure)
            return False
        first = failure
        self._end_if_out_of_memory(failure)
        while self._limits[i].allows(failure, Work(int(self._completed[i]), self._own.all_steps(i))):
            try:
                self.envs[i].close()
            except Exception:  # it failed already: how it goes does not matter
                pass
            began_at = monotonic_ns()
            try:
                self.envs[i] = self._build[i]()  # guard: one-env-costs-one-env
                self.envs[i].bind(self._own.rows_of(env_id))
            except Exception as error:
                failure = RemoteError.of(error, env_id)
                self._end_if_out_of_memory(failure)
                self._tell_again(env_id, failure)
                continue  # guard: an-env-that-cannot-be-built-is-tried-again
            finally:
                self.beginnings_ns += monotonic_ns() - began_at
            self._look_up_steps()
            self._last_rows.restore(env_id)
            self._restarts[i] += env_id not in self._extras.restarts  # guard: restarts-outlive-their-worker
            self._extras.restarts.setdefault(env_id, first)
            return True
        self._give_up(i, failure)
        return False

    def _end_if_out_of_memory(self, failure: RemoteError) -> None:
        """End a process that is replaced, rather than build an env in it again."""
        if replaceable_process and failure.type_name.endswith("MemoryError"):
            raise OutOfMemory(failure)  # guard: out-of-memory-ends-the-process

    def _tell_again(self, env_id: int, failure: RemoteError) -> None:
        self._extras.warnings.append(f"env {env_id}, built anew, failed again: {failure}")

    def _give_up(self, i: int, failure: RemoteError) -> None:
        """An env failed once too often: the first cause of all is the error, with this one beside it."""
        first, told = self._limits[i].first_cause, self._extras.failures
        if not any(other.given_up and other.env_id == first.env_id for other in told):
            shared = self.config.failures.restarts_per_minute is not None
            ids = self.config.env_ids if shared else range(self.config.env_ids[i], self.config.env_ids[i] + 1)
            whose = f"env{'s' * (len(ids) > 1)} {describe_ids(ids)}"
            why = self._limits[i].why_given_up(whose, failure.where_and_what())
            told.append(first.because_of(why))  # guard: a-given-up-env-says-so
        if failure.env_id not in [other.env_id for other in told]:
            told.append(failure)

    def _cut_episode(self, i: int, marker: str) -> None:
        """The lost step's row: no reward, truncated, and what the mode has an ended episode show."""
        env_id = self.config.env_ids[i]
        self._completed[i] -= 1  # it is about to be counted among those that ended
        self._own.cut(i)
        self._info_writer.forget(i)
        self._extras.infos.pop(env_id, None)
        info: Infos | None = {}
        if self._finals:
            self._keep_final(i)
            info = self._begin_somehow(i)
        # Without infos too: whoever learns from the row must know.
        self._write_info(i, {**(info if info and self._with_infos else {}), marker: True})

    def _begin_somehow(self, i: int, request: ResetRequest | None = None) -> Infos | None:
        """Begin an episode, in a new env where this one fails at it, if that is allowed; None if it is an error."""
        env_id = self.config.env_ids[i]
        while True:
            try:
                return self._begin_and_look(i, request)
            except Exception as error:
                failure = RemoteError.of(error, env_id).under(self._log.circumstances(i))
                if env_id in self._extras.restarts:
                    self._tell_again(env_id, failure)
                if not self._replace_env(i, failure):  # guard: an-env-that-cannot-be-reset-is-replaced
                    return None

    def take_over(self, begin: bool) -> Extras:
        """In a worker that replaces a lost one, as its first deed: begin an episode in every env, if that is due."""
        infos = {env_id: self._begin_and_look(i) for i, env_id in enumerate(self.config.env_ids) if begin}
        self._own.publish_ends()  # and with them who is there now
        if self._last_rows is not None:
            self._last_rows.remember()
        said = self._beginnings(infos)
        if not begin:
            said.objects = {}
        return said

    def _mark_ends(self, ended_now: list[int], resets: Iterable[int]) -> None:
        for i in resets:  # a step that was a reset is not a step of its episode
            self._own.forget_length(i)
        for i in ended_now:
            self._over[i] = True
            self._completed[i] += 1
        self._own.publish_ends()
        self._any_over = any(self._over)

    def _write_info(self, i: int, info: Infos) -> None:
        left = self._info_writer.write(i, info)
        if left:
            self._extras.infos[self.config.env_ids[i]] = left

    def _end_and_begin(self, i: int, info: Infos) -> Infos:
        """same_step: keep the final observation and info, then begin the next episode at once."""
        env_id = self.config.env_ids[i]
        if self._guard is not None:
            self._guard.check_end(i)  # guard: last-observations-are-looked-at
        self._keep_final(i)
        if info and self.config.with_infos:
            self._extras.final_infos[env_id] = info
        return self._begin_episode(i)

    def _keep_final(self, i: int) -> None:
        for final, current in self._finals:
            final.take(current, i)

    def _begin_episode(self, i: int, request: ResetRequest | None = None) -> Infos:
        """Every reset goes through here: the plan's word first, then what the caller said explicitly."""
        env_id = self.config.env_ids[i]
        self._episodes[env_id] = episode = self._episodes[env_id] + 1
        seed = options = task = None
        if self.config.reset_plan is not None:
            planned = self.config.reset_plan(env_id, episode)
            seed, options, task = planned.seed, planned.options, planned.task
        if request is not None:
            seed = request.seed if request.seed is not None else seed
            options = request.options if request.options is not None else options
            task = request.task if request.task is not None else task
        if self.config.tasks is not None and task is not None:
            task = self.config.tasks[checked_task(task, len(self.config.tasks))]
        self._log.begin(i, episode, seed, task)
        began_at = monotonic_ns()
        try:
            info: Infos = self._resets[i](seed, options, task)
            refuse_no_dict("reset's info", info)
        except Exception as error:
            raise InEnv(env_id, error) from error
        finally:
            self.beginnings_ns += monotonic_ns() - began_at  # guard: resets-are-timed-apart
        self._was_reset[i] = True
        return info

    def _flags(self, finals: bool) -> int:
        extras = self._extras
        if self._guard is not None and self._guard.warnings:
            extras.warnings += self._guard.take_warnings()
            self._eventful = True
        extras.columns = self._info_writer.take_announcements() if self._info_writer.announced else []
        extras.objects = object_rows(self.views, self._objects, self.config.env_ids)
        flags = FINALS if finals else 0
        if self._info_writer.wrote:
            flags |= WROTE_INFOS
        if extras.failures:
            flags |= FAILED
        if extras.columns or extras.infos or extras.final_infos or extras.objects or self._eventful:
            flags |= EXTRAS
        return flags

    def take_action_objects(self, objects: dict[FieldName, list[Any]]) -> None:
        """Actions of this range that came by pipe."""
        put_object_rows(self.views, objects, self.config.env_ids)

    def take_extras(self) -> Extras:
        extras, self._extras, self._eventful = self._extras, Extras(), False
        return extras

    def step_extras(self) -> Extras:
        """What the last of several steps had to say; it stays here, too, until all of it is taken."""
        extras = self.take_extras()
        self._extras.before, extras.before = extras.before, []
        self._extras.before.append(extras)
        return extras

    # -- everything else: run by the worker loop's one generic command -----------------------------------------
    def reset(self, requests: dict[int, ResetRequest]) -> Extras:
        """Begin an episode in each env named; returns what the block cannot hold."""
        infos: dict[int, Infos] = {}
        self._extras = Extras(before=self._extras.before)  # forget what an interrupted step had to say
        for env_id, request in requests.items():
            i = env_id - self.config.env_ids.start
            info = self._begin_somehow(i, request)
            if info is None:
                continue
            infos[env_id] = info
            self._over[i] = False
            self._own.begin(i)
            self._own.forget_reward(i)
        self._any_over = any(self._over)
        self._own.publish_ends()
        if self._last_rows is not None:
            self._last_rows.remember()
        return self._beginnings(infos)

    def _begin_and_look(self, i: int, request: ResetRequest | None = None) -> Infos:
        """Outside a step, where each row is looked at by itself."""
        info = self._begin_episode(i, request)
        if self._guard is not None:
            self._guard.check_start(i)  # guard: first-observations-are-looked-at
        return info

    def _beginnings(self, infos: dict[int, Infos]) -> Extras:
        """What the first observations of episodes come with."""
        said = self.take_extras()
        if self._guard is not None:
            said.warnings += self._guard.take_warnings()
        said.infos = infos if self.config.with_infos else {}
        said.objects = object_rows(self.views, self._objects, self.config.env_ids)
        return said

    def action_masks_of(self, group: Group) -> Array | None:
        """[slots of this range, actions] what is open to the agents of a group; None where nothing can be forbidden."""
        masks = self.views.arrays.get((group.name, ACTION_MASKS))
        return None if masks is None else masks[self.views.layout.rows(group, self.config.env_ids)]

    def call(self, env_ids: Sequence[int], name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        return self._each(env_ids, lambda env, _: env.call(name, args, kwargs))

    def set_attr(self, env_ids: Sequence[int], name: str, values: Sequence[Any]) -> None:
        self._each(env_ids, lambda env, i: env.set_attr(name, values[i]))
        self._look_up_steps()  # in case that was it

    def render(self, env_ids: Sequence[int]) -> list[Any]:
        return self._each(env_ids, lambda env, _: env.render())

    def _each(self, env_ids: Sequence[int], action: Callable[[Env, int], Any]) -> list[Any]:
        results = []
        for i, env_id in enumerate(env_ids):
            try:
                results.append(action(self.envs[env_id - self.config.env_ids.start], i))
            except Exception as error:
                raise InEnv(env_id, error) from error
        return results

    def close(self) -> list[RemoteError]:
        """Close every env, also when some of them raise; returns what they raised."""
        failures = []
        envs, self.envs = self.envs, []
        for env_id, env in zip(self.config.env_ids, envs):
            try:
                env.close()
            except Exception as error:
                failures.append(RemoteError.of(error, env_id))
        return failures

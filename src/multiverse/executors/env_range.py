"""A range of envs and how they are stepped: the same code in the caller, in threads and in processes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from multiverse.core.env import Env
from multiverse.core.errors import InEnv, RemoteError
from multiverse.core.failures import DEFAULT_POLICY, FailureOptions
from multiverse.core.infos import Infos, require_dict
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
    Array,
    FieldName,
    Group,
    Views,
)
from multiverse.core.plan import Autoreset, autoreset_for
from multiverse.core.reset_plan import ResetPlan, ResetRequest
from multiverse.executors.env_recovery import EnvRecovery
from multiverse.executors.episode_starts import EpisodeStarts
from multiverse.executors.launch.black_box import labelled
from multiverse.executors.step_reply import EXTRAS, FAILED, FINALS, WROTE_INFOS, Extras
from multiverse.executors.value_guard import ValueGuard
from multiverse.ipc.env_rows import EnvRows, LastRows, mask_rows, object_rows, observation_rows, put_object_rows
from multiverse.ipc.info_columns import InfoWriter
from multiverse.ipc.own_columns import RangeColumns
from multiverse.ipc.space_rows import env_actions_reader, row_writer

_NO_ENVS: list[int] = []


def _with_state(call: Callable[..., Any], env: Env, write: Callable[[Any], None]) -> Callable[..., Any]:
    """A step or reset of an env that also writes the env's global state."""

    def call_and_write_state(*arguments: Any) -> Any:
        outcome = call(*arguments)
        write(env.call("state", (), {}))
        return outcome

    return call_and_write_state


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeConfig:
    """Settings of a range of envs."""

    env_ids: range
    autoreset: Autoreset | None = "next_step"  # None: the default for the kind of env
    with_infos: bool = False
    reset_plan: ResetPlan | None = None
    failures: FailureOptions = DEFAULT_POLICY
    tasks: Sequence[Any] | None = None  # None: resets get tasks themselves instead of indices


class EnvRange:
    """Hosts a contiguous range of envs; every call returns after all of them are done."""

    kept: dict[Any, Any]
    """Objects that functions which run here repeatedly keep between calls."""

    def __init__(self, config: RangeConfig, build: Sequence[Callable[[], Env]]) -> None:
        self.config = config
        self.episodes = EpisodeStarts(config.env_ids, config.reset_plan, config.tasks)
        self.recovery = EnvRecovery(self, build)
        self.envs: list[Env] = []
        try:
            for env_id, make in zip(config.env_ids, build):
                try:
                    self.envs.append(labelled(make, "constructor", env_id)())
                except Exception as error:
                    raise InEnv(env_id, error) from error
        except BaseException:
            self.close()
            raise

    def bind(self, views: Views, replacing: bool = False) -> None:
        """Take this range's rows; before this nothing can be stepped or reset.

        `replacing`: the rows were those of a lost worker, whose episodes are truncated.
        """
        ids = self.config.env_ids
        rows = slice(ids.start, ids.stop)
        self._autoreset = autoreset_for(self.config.autoreset, self.envs[0].description.kind)
        self.columns = RangeColumns(views, ids)
        for env_id, env in zip(ids, self.envs):
            env.bind(self.columns.rows_of(env_id))
        self._write_states: list[Callable[[Any], None]] = []
        if (space := views.layout.state_space) is not None:
            self._write_states = [row_writer(space, views, (STATE, OBSERVATIONS), env_id) for env_id in ids]
        self.look_up_steps()
        self._everyone = list(range(len(ids)))
        self._read_actions = env_actions_reader(views, ids)
        self._stepping = views[STEPPING][rows]
        self.episodes.bind(views[EPISODES].data, replacing)
        self.restarts, self.completed = views[COUNTS][ENV_RESTARTS, rows], views[COUNTS][COMPLETED_EPISODES, rows]
        self.info_writer = InfoWriter(views, rows)
        self._over = [replacing] * len(ids)  # the env's last step ended its episode
        self._any_over = replacing
        self._with_infos = self.config.with_infos
        self.views, self.kept = views, {}
        self.finals: list[tuple[EnvRows, EnvRows]] = []  # (final, current) of every leaf and mask
        if views.layout.with_final_observations:
            current = observation_rows(views, OBSERVATIONS, ids)
            self.finals = list(zip(observation_rows(views, FINAL_OBSERVATIONS, ids), current))
            self.finals += zip(mask_rows(views, FINAL_ACTION_MASKS, ids), mask_rows(views, ACTION_MASKS, ids))
        self._objects = [name for name in views.objects if name[1] != ACTIONS]  # leaves that the block cannot hold
        self.extras = Extras()
        self.has_extras = False  # the extras have more than every step's columns and objects
        self.last_rows = LastRows(views, ids) if self.config.failures.shows_last_rows else None
        policy = self.config.failures
        watched = policy.on_bad_value != "off"
        self.guard = ValueGuard(policy.on_bad_value, views, ids, self.columns, policy.float32) if watched else None
        if replacing:
            self.columns.take_over()
        self.columns.publish_ends()

    def look_up_steps(self) -> None:
        """Bind the envs' step and reset functions again, after an env was replaced or an attribute was set."""
        calls: list[tuple[Callable[..., Any], Callable[..., Any]]] = [(env.step, env.reset) for env in self.envs]
        for i, write in enumerate(self._write_states):
            step, reset = calls[i]
            calls[i] = _with_state(step, self.envs[i], write), _with_state(reset, self.envs[i], write)
        self._steps = [labelled(step, "step", env_id) for env_id, (step, _) in zip(self.config.env_ids, calls)]
        resets = [labelled(reset, "reset", env_id) for env_id, (_, reset) in zip(self.config.env_ids, calls)]
        self.episodes.resets = resets

    # -- stepping --------------------------------------------------------------------------------------------
    def step(self, only_some: bool = False) -> int:
        """Step every env of the range (or those marked in the block); returns flags."""
        chosen, steps, actions = self._everyone, self._steps, self._read_actions()
        over, with_infos = self._over, self._with_infos
        if only_some:
            chosen = np.flatnonzero(self._stepping).tolist()
            steps, actions = [steps[i] for i in chosen], [actions[i] for i in chosen]
        resets = self._leave_ended_episodes(chosen) if self._any_over else _NO_ENVS
        writer, ended_now = self.info_writer, []
        if writer.wrote:
            writer.clear()
        for i, step, action in zip(chosen, steps, actions):
            try:
                if resets and over[i]:
                    info = self._begin_after_end(i)
                else:
                    ended, info = step(action)
                    if info.__class__ is not dict:  # guard: an-info-is-a-dict
                        require_dict("the info", info)
                    if ended:
                        ended_now.append(i)
                        if self.finals:
                            info = self._end_and_begin(i, info)
                if info and with_infos:
                    self.write_info(i, info)
            except Exception as error:
                if self.recovery.cut_after(i, error, action):
                    ended_now.append(i)
        if self.guard is not None and self.guard.suspicious():  # guard: every-step-is-looked-at
            ended_now += self.recovery.check_rows(chosen, actions, begun=ended_now if self.finals else resets)
        if only_some:
            self.columns.add_step_of(chosen)
        else:
            self.columns.add_step()
        if ended_now or self._any_over or self.columns.several:
            self._mark_ends(ended_now, resets)
        if self.last_rows is not None:
            self.last_rows.remember()
        finals = bool(ended_now and self.finals)
        if self.finals and self.columns.several and self.columns.any_ended:
            finals = self._keep_finals_of_agents(chosen, ended_now) or finals
        if finals or writer.wrote or self._objects or self.has_extras:
            return self._flags(finals)
        return 0

    def _keep_finals_of_agents(self, chosen: Iterable[int], ended_now: Sequence[int]) -> bool:
        """same_step: keep the final observations of agents that ended before their episode; False if there are none."""
        ended = self.columns.envs_with_ends()
        kept = [i for i in chosen if ended[i] and i not in ended_now]
        for i in kept:
            self.keep_final(i)
        return bool(kept)

    def _leave_ended_episodes(self, chosen: Iterable[int]) -> list[int]:
        """Leave episodes that ended in an env's last step, whose rows stay readable until now. Returns the envs to
        reset."""
        left = [i for i in chosen if self._over[i]]
        for i in left:
            self.columns.begin(i)
            self._over[i] = self._autoreset == "next_step"
        return left if self._autoreset == "next_step" else []

    def _begin_after_end(self, i: int) -> Infos:
        """next_step: the step after an episode's end is the reset; its action is ignored."""
        info = self.episodes.begin(i)
        self._over[i] = False
        self.columns.forget_reward(i)
        return info

    def _end_and_begin(self, i: int, info: Infos) -> Infos:
        """same_step: keep the final observation and info, then begin the next episode at once."""
        env_id = self.config.env_ids[i]
        if self.guard is not None:
            self.guard.check_end(i)  # guard: last-observations-are-looked-at
        self.keep_final(i)
        if info and self.config.with_infos:
            self.extras.final_infos[env_id] = info
        return self.episodes.begin(i)

    def keep_final(self, i: int) -> None:
        """Copy an env's current observations and masks to the final ones."""
        for final, current in self.finals:
            final.take(current, i)

    def _mark_ends(self, ended_now: list[int], resets: Iterable[int]) -> None:
        for i in resets:  # a step that was a reset is not a step of its episode
            self.columns.forget_length(i)
        for i in ended_now:
            self._over[i] = True
            self.completed[i] += 1
        self.columns.publish_ends()
        self._any_over = any(self._over)

    def write_info(self, i: int, info: Infos) -> None:
        """Write an env's info into the columns, and the rest into the extras."""
        left = self.info_writer.write(i, info)
        if left:
            self.extras.infos[self.config.env_ids[i]] = left

    def _flags(self, finals: bool) -> int:
        extras = self.extras
        if self.guard is not None and self.guard.warnings:
            extras.warnings += self.guard.take_warnings()
            self.has_extras = True
        extras.columns = self.info_writer.take_announcements() if self.info_writer.announced else []
        extras.objects = object_rows(self.views, self._objects, self.config.env_ids)
        flags = FINALS if finals else 0
        if self.info_writer.wrote:
            flags |= WROTE_INFOS
        if extras.failures:
            flags |= FAILED
        if extras.columns or extras.infos or extras.final_infos or extras.objects or self.has_extras:
            flags |= EXTRAS
        return flags

    def take_action_objects(self, objects: dict[FieldName, list[Any]]) -> None:
        """Store actions of this range that came by pipe."""
        put_object_rows(self.views, objects, self.config.env_ids)

    def take_extras(self) -> Extras:
        """Return the extras of the steps since the last call."""
        extras, self.extras, self.has_extras = self.extras, Extras(), False
        return extras

    def step_extras(self) -> Extras:
        """The extras of the last of several steps, which `take_extras` will return too."""
        extras = self.take_extras()
        self.extras.before, extras.before = extras.before, []
        self.extras.before.append(extras)
        return extras

    # -- everything else: run by the worker loop's generic command ---------------------------------------------
    def reset(self, requests: dict[int, ResetRequest]) -> Extras:
        """Begin an episode in each env named; returns the data that the block cannot hold."""
        infos: dict[int, Infos] = {}
        self.extras = Extras(before=self.extras.before)  # without those of an interrupted step
        for env_id, request in requests.items():
            i = env_id - self.config.env_ids.start
            info = self.recovery.begin(i, request)
            if info is None:
                continue
            infos[env_id] = info
            self._over[i] = False
            self.columns.begin(i)
            self.columns.forget_reward(i)
        self._any_over = any(self._over)
        self.columns.publish_ends()
        if self.last_rows is not None:
            self.last_rows.remember()
        return self._reset_extras(infos)

    def take_over(self, begin: bool) -> Extras:
        """First request to a worker that replaces a lost one: begin an episode in every env, if requested."""
        infos = {env_id: self.begin_checked(i) for i, env_id in enumerate(self.config.env_ids) if begin}
        self.columns.publish_ends()  # also publishes which agents are present
        if self.last_rows is not None:
            self.last_rows.remember()
        extras = self._reset_extras(infos)
        if not begin:
            extras.objects = {}
        return extras

    def begin_checked(self, i: int, request: ResetRequest | None = None) -> Infos:
        """Begin an episode outside a step, and check its first observation."""
        info = self.episodes.begin(i, request)
        if self.guard is not None:
            self.guard.check_start(i)  # guard: first-observations-are-looked-at
        return info

    def _reset_extras(self, infos: dict[int, Infos]) -> Extras:
        """The extras of the first observations of episodes."""
        extras = self.take_extras()
        if self.guard is not None:
            extras.warnings += self.guard.take_warnings()
        extras.infos = infos if self.config.with_infos else {}
        extras.objects = object_rows(self.views, self._objects, self.config.env_ids)
        return extras

    def action_masks_of(self, group: Group) -> Array | None:
        """[slots of this range, actions] the action masks of a group; None if it has none."""
        masks = self.views.arrays.get((group.name, ACTION_MASKS))
        return None if masks is None else masks[self.views.layout.rows(group, self.config.env_ids)]

    def call(self, env_ids: Sequence[int], name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """Call a method of each env, or return its attribute."""
        return self._each(env_ids, lambda env, _: env.call(name, args, kwargs))

    def set_attr(self, env_ids: Sequence[int], name: str, values: Sequence[Any]) -> None:
        """Set an attribute of each env."""
        self._each(env_ids, lambda env, i: env.set_attr(name, values[i]))
        self.look_up_steps()  # the attribute may be the env's step or reset

    def render(self, env_ids: Sequence[int]) -> list[Any]:
        """Frames of these envs."""
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
        """Close every env, also if some of them raise; returns what they raised."""
        failures = []
        envs, self.envs = self.envs, []
        for env_id, env in zip(self.config.env_ids, envs):
            try:
                env.close()
            except Exception as error:
                failures.append(RemoteError.of(error, env_id))
        return failures

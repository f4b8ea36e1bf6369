"""A range of envs and how they are stepped: the same code wherever they run, in the caller, a thread or a process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from multiverse.contracts.env import Env
from multiverse.contracts.errors import InEnv, RemoteError
from multiverse.contracts.failures import RESTARTED, OnFailure, RestartIntensity
from multiverse.contracts.infos import Infos
from multiverse.contracts.layout import (
    ACTIONS,
    EPISODES,
    FINAL_OBSERVATIONS,
    OBSERVATIONS,
    STEPPING,
    TRUNCATED,
    FieldName,
    leaves,
)
from multiverse.contracts.plan import Autoreset
from multiverse.contracts.reset_plan import ResetPlan, ResetRequest
from multiverse.contracts.views import Views
from multiverse.memory.info_columns import Announcement, InfoWriter
from multiverse.memory.last_rows import LastRows
from multiverse.memory.own_columns import OwnColumns
from multiverse.memory.space_rows import actions_reader

EXTRAS, WROTE_INFOS, FINALS, FAILED = 1, 2, 4, 8
"""Flags of a finished step: more comes by pipe; info columns are used; final observations are there; an env raised."""


_NOBODY: list[int] = []


@dataclass(slots=True)
class Extras:
    """What a step has to say that the block cannot hold; keys are env ids."""

    columns: list[Announcement] = field(default_factory=list)
    infos: dict[int, Infos] = field(default_factory=dict)
    final_infos: dict[int, Infos] = field(default_factory=dict)
    objects: dict[FieldName, list[Any]] = field(default_factory=dict)  # of this range's rows
    failures: list[RemoteError] = field(default_factory=list)
    restarts: dict[int, RemoteError] = field(default_factory=dict)  # envs that raised and were built anew


@dataclass(frozen=True, slots=True)
class RangeConfig:
    """What a range needs to know besides its envs."""

    env_ids: range
    autoreset: Autoreset
    with_infos: bool
    reset_plan: ResetPlan | None
    on_failure: OnFailure = "raise"


class EnvRange:
    """Hosts a contiguous range of envs; every call returns after all of them are done."""

    def __init__(self, config: RangeConfig, build: Sequence[Callable[[], Env]]) -> None:
        self.config, self._build = config, list(build)
        self._intensity: RestartIntensity[RemoteError] = RestartIntensity()
        self.envs: list[Env] = []
        try:
            for env_id, make in zip(config.env_ids, build):
                try:
                    self.envs.append(make())
                except Exception as error:
                    raise InEnv(env_id, error) from error
        except BaseException:
            self.close()
            raise

    def bind(self, views: Views, replacing: bool = False) -> None:
        """Take this range's rows; before this nothing can be stepped or reset.

        `replacing`: the rows were another worker's, which is lost: their episodes end here, cut short.
        """
        ids = self.config.env_ids
        self._rows = rows = slice(ids.start, ids.stop)
        (group,) = views.layout.groups
        self._own = OwnColumns(views, group, rows)
        for env_id, env in zip(ids, self.envs):
            env.bind(self._own.rows_of(env_id))
        self._steps = [env.step for env in self.envs]
        self._everyone = list(range(len(ids)))
        self._read_actions = actions_reader(group.action_space, views, (group.name, ACTIONS), rows)
        self._stepping, self._episodes = views[STEPPING][rows], views[EPISODES]
        self._info_writer = InfoWriter(views, rows)
        self._was_reset = [replacing] * len(ids)
        self._over = [replacing] * len(ids)  # the env's last step ended its episode
        self._any_over = replacing
        self._with_infos = self.config.with_infos
        self._views = views
        self._finals = self._final_fields() if views.layout.with_final_observations else []
        self._objects = [name for name in views.objects if name[1] != ACTIONS]
        self._extras = Extras()
        self._last_rows = LastRows(views, rows) if self.config.on_failure == "restart" else None
        if replacing:
            self._own.ended[TRUNCATED] = True
            self._own.forget_rewards()
        self._own.hand_over_ends()

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
                    if ended:
                        ended_now.append(i)
                        if self._finals:
                            info = self._end_and_begin(i, info)
            except Exception as error:
                if not self._replace_env(i, RemoteError.of(error, self.config.env_ids[i])):
                    continue
                ended_now.append(i)
                info = self._cut_episode(i)
            if info and with_infos:
                self._write_info(i, info)
        if only_some:
            self._own.add_step_of(chosen)
        else:
            self._own.add_step()
        if ended_now or self._any_over:
            self._mark_ends(ended_now, resets)
        if self._last_rows is not None:
            self._last_rows.remember()
        finals = bool(ended_now and self._finals)
        if finals or writer.wrote or self._objects or self._extras.failures or self._extras.restarts:
            return self._flags(finals)
        return 0

    def _leave_ended_episodes(self, chosen: Iterable[int]) -> list[int]:
        """The episode that a row's last step ended stays readable until its next step: now. Returns those to reset."""
        left = [i for i in chosen if self._over[i]]
        for i in left:
            self._own.begin(i)
            self._own.ended[:, i] = False
            self._over[i] = self.config.autoreset == "next_step"
        return left if self.config.autoreset == "next_step" else []

    def _begin_after_end(self, i: int) -> Infos:
        """next_step: the step after an episode's end is the next one's reset; its action is ignored."""
        info = self._begin_episode(i)
        self._over[i] = False
        self._own.rewards[i] = 0.0
        return info

    # -- restarts: an env that raises is built anew -------------------------------------------------------------
    def _replace_env(self, i: int, failure: RemoteError) -> bool:
        """A new env in place of one that raised, its row as it was last delivered; False if that is an error."""
        env_id = self.config.env_ids[i]
        if self._last_rows is None:
            self._extras.failures.append(failure)
            return False
        self._extras.restarts[env_id] = failure
        if not self._intensity.allows(failure) or not self._was_reset[i]:
            self._extras.failures.append(self._intensity.first_cause)
            return False
        try:
            self.envs[i].close()
        except Exception:  # it failed already: how it goes does not matter
            pass
        try:
            self.envs[i] = self._build[i]()
            self.envs[i].bind(self._own.rows_of(env_id))
        except Exception:
            self._extras.failures.append(self._intensity.first_cause)
            return False
        self._steps[i] = self.envs[i].step
        self._last_rows.restore(env_id)
        return True

    def _cut_episode(self, i: int) -> Infos:
        """The lost step's row: no reward, truncated, and what the mode has an ended episode show."""
        self._own.rewards[i] = 0.0
        self._own.ended[:, i] = (False, True)
        info: Infos = {}
        if self._finals:
            try:
                info = self._end_and_begin(i, {})
            except Exception as error:  # the new env cannot even be reset
                self._extras.failures.append(RemoteError.of(error, self.config.env_ids[i]))
        return {**info, RESTARTED: True}

    def take_over(self, begin: bool) -> tuple[dict[int, Infos], Extras]:
        """In a worker that replaces a lost one, as its first deed: begin an episode in every env, if that is due."""
        infos = {env_id: self._begin_episode(i) for i, env_id in enumerate(self.config.env_ids) if begin}
        if self._last_rows is not None:
            self._last_rows.remember()
        return (infos if self.config.with_infos else {}), Extras(objects=self._own_objects() if begin else {})

    def _mark_ends(self, ended_now: list[int], resets: Iterable[int]) -> None:
        for i in resets:  # a step that was a reset is not a step of its episode
            self._own.lengths[i] = 0.0
        for i in ended_now:
            self._over[i] = True
        self._own.hand_over_ends()
        self._any_over = any(self._over)

    def _write_info(self, i: int, info: Infos) -> None:
        left = self._info_writer.write(i, info)
        if left:
            self._extras.infos[self.config.env_ids[i]] = left

    def _end_and_begin(self, i: int, info: Infos) -> Infos:
        """same_step: keep the final observation and info, then begin the next episode at once."""
        env_id = self.config.env_ids[i]
        for final, current in self._finals:
            final[env_id] = current[env_id]
        if self.config.with_infos:
            self._extras.final_infos[env_id] = info
        return self._begin_episode(i)

    def _begin_episode(self, i: int, request: ResetRequest | None = None) -> Infos:
        """Every reset goes through here: the plan's word first, then what the caller said explicitly."""
        env_id = self.config.env_ids[i]
        episode = int(self._episodes[env_id]) + 1
        self._episodes[env_id] = episode
        seed = options = task = None
        if self.config.reset_plan is not None:
            planned = self.config.reset_plan(env_id, episode)
            seed, options, task = planned.seed, planned.options, planned.task
        if request is not None:
            seed = request.seed if request.seed is not None else seed
            options = request.options if request.options is not None else options
            task = request.task if request.task is not None else task
        info = self.envs[i].reset(seed, options, task)
        self._was_reset[i] = True
        return info

    def _flags(self, finals: bool) -> int:
        extras = self._extras
        extras.columns = self._info_writer.take_announcements() if self._info_writer.announced else []
        extras.objects = self._own_objects()
        flags = FINALS if finals else 0
        if self._info_writer.wrote:
            flags |= WROTE_INFOS
        if extras.failures:
            flags |= FAILED | EXTRAS
        if extras.columns or extras.infos or extras.final_infos or extras.objects or extras.restarts:
            flags |= EXTRAS
        return flags

    def _own_objects(self) -> dict[FieldName, list[Any]]:
        """This range's rows of what the block cannot hold."""
        return {name: self._views.objects[name][self._rows] for name in self._objects}

    def take_action_objects(self, objects: dict[FieldName, list[Any]]) -> None:
        """Actions of this range that came by pipe."""
        for name, values in objects.items():
            self._views.objects[name][self._rows] = values

    def take_extras(self) -> Extras:
        extras, self._extras = self._extras, Extras()
        return extras

    def _final_fields(self) -> list[tuple[Any, Any]]:
        """Pairs (final, current) of every leaf, as arrays or lists that are indexed by slot alike."""
        views = self._views
        pairs: list[tuple[Any, Any]] = []
        for group in views.layout.groups:
            for leaf in leaves(group.observation_space):
                source = views.arrays if leaf.numeric else views.objects
                final = source[(group.name, FINAL_OBSERVATIONS, *leaf.path)]
                pairs.append((final, source[(group.name, OBSERVATIONS, *leaf.path)]))
        return pairs

    # -- everything else: run by the worker loop's one generic command -----------------------------------------
    def reset(self, requests: dict[int, ResetRequest]) -> tuple[dict[int, Infos], Extras]:
        """Begin an episode in each env named; returns infos by env id, and the objects the block cannot hold."""
        infos: dict[int, Infos] = {}
        self._extras = Extras()  # forget what an interrupted step had to say
        for env_id, request in requests.items():
            i = env_id - self.config.env_ids.start
            try:
                infos[env_id] = self._begin_episode(i, request)
            except Exception as error:
                if not self._replace_env(i, RemoteError.of(error, env_id)):
                    continue
                try:
                    infos[env_id] = self._begin_episode(i, request)
                except Exception as second:
                    self._extras.failures.append(RemoteError.of(second, env_id))
                    continue
            self._over[i] = False
            self._own.begin(i)
            self._own.forget_reward(i)
            self._own.ended[:, i] = False
        self._any_over = any(self._over)
        self._own.hand_over_ends()
        if self._last_rows is not None:
            self._last_rows.remember()
        told = self.take_extras()
        told.objects = self._own_objects()
        return (infos if self.config.with_infos else {}), told

    def call(self, env_ids: Sequence[int], name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        return self._each(env_ids, lambda env, _: env.call(name, args, kwargs))

    def set_attr(self, env_ids: Sequence[int], name: str, values: Sequence[Any]) -> None:
        self._each(env_ids, lambda env, i: env.set_attr(name, values[i]))
        self._steps = [env.step for env in self.envs]  # in case that was it

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

"""Collecting rollouts: filled where the envs run or, with one batched forward pass per step, in the caller."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode

from multiverse.core.failures import BAD_VALUE, RESTARTED
from multiverse.core.layout import (
    EPISODE_LENGTH,
    OBSERVATIONS,
    REWARD,
    STATE,
    VALUES,
    Field,
    FieldName,
    Group,
    Path,
)
from multiverse.core.policy import Policy
from multiverse.core.reset_plan import ResetPlan
from multiverse.core.views import Array
from multiverse.rollouts.episodes import ActionLog, Episode
from multiverse.rollouts.rollout import (
    ACTED_BY,
    BEGUN,
    FRESH,
    LOST,
    ROLLOUT,
    SECONDS,
    SEEDS,
    SIDES,
    TAKEN,
    VERSIONS,
    Rollout,
    RolloutShape,
    env_fields,
    name_in_block,
    private_fields,
)
from multiverse.rollouts.rows import Rows, fill, fill_rows, rows_of
from multiverse.rollouts.self_play import NOBODY, Opponents, who_plays
from multiverse.rollouts.slots import is_single
from multiverse.vector.base import BaseVectorEnv

SHORTEST_IN_WORKERS = 8
"""Steps of a rollout: to send the weights out for fewer does not pay."""


def collected_in_workers(policy: Policy, steps: int) -> bool:
    """Whether workers fill its rollouts by themselves."""
    return steps >= SHORTEST_IN_WORKERS and policy.portable() is not None


def rollout_fields(
    shapes: Sequence[RolloutShape], num_envs: int, self_play: bool = False, whole_episodes: bool = False
) -> list[Field]:
    """What workers share with the caller for that (`OpenedEnvs.bind(fields)`). `whole_episodes`: a rollout has one
    episode of every env, or its first rows; environments that finish early wait for the rest."""
    of_envs = env_fields(shapes[0].steps, num_envs, self_play, whole_episodes)
    return [*(one for shape in shapes for one in shape.fields()), *of_envs]


@dataclass(slots=True)
class Collected:
    """What one rollout brought beside its rows."""

    episodes: list[Episode] = field(default_factory=list)
    lost_steps: int = 0
    act_s: float = 0.0
    step_s: float = 0.0

    @classmethod
    def in_time(cls, episodes: list[Episode], lost: int, began_at: float, act_s: float, step_s: float) -> Collected:
        """The time since then, shared as acting and stepping were: of several workers, side by side."""
        share, took_s = act_s / (act_s + step_s) if act_s else 0.0, perf_counter() - began_at
        return cls(episodes, lost, took_s * share, took_s * (1 - share))


class Collector:
    """Steps a vector env with a policy for each of its groups, rollout after rollout, episodes running on between.

    In workers if `rollout_fields` were laid out there; else here, also for single agents with autoreset `next_step`.
    Whole episodes are collected in workers only.
    """

    def __init__(
        self,
        envs: BaseVectorEnv,
        shapes: Sequence[RolloutShape],
        mask: Path | None,
        reset_plan: ResetPlan,
        self_play: bool = False,
    ) -> None:
        """`shapes`: of every group, in the order of the envs' groups. `mask`: the leaf of a single agent's observations
        that says which actions are open."""
        self._envs, self._mask, self._plan, self._layout = envs, mask, reset_plan, envs.views.layout
        arrays: Mapping[FieldName, Array] = envs.views.arrays
        self._in_workers = BEGUN in arrays
        if not self._in_workers:
            arrays = {**arrays, **private_fields(rollout_fields(shapes, envs.num_envs, self_play))}
        self._arrays, self.rollouts = arrays, [shape.rollout(arrays) for shape in shapes]
        self._masks = [rollout.action_masks for rollout in self.rollouts]
        self._noise, self._values = (
            [arrays[(shape.group, ROLLOUT, n)] for shape in shapes] for n in ("noise", "values")
        )
        self._taken = arrays.get(TAKEN)
        self._played = [arrays[name] for name in (VERSIONS, SIDES)] if self_play else []
        for rows in self._played:
            rows[...] = NOBODY
        self.actions = ActionLog(envs.num_envs, len(shapes))
        self._rows: list[Rows] = []  # of all slots, where they are filled here
        self.keeps_actions = True  # for envs that are brought back by playing them again
        self._current: list[tuple[int, int | None]] = []  # the episode that each env is in, and its seed

    # -- between rollouts ----------------------------------------------------------------------------------------
    def begin(self) -> None:
        """The envs have been reset, or brought back."""
        self._current = [self._begun(env_id) for env_id in range(self._envs.num_envs)]
        lengths = [self._by_env(self._arrays[(r.group, VALUES)][EPISODE_LENGTH]) for r in self.rollouts]
        self._arrays[FRESH][...] = np.logical_and.reduce([(length == 0).all(axis=1) for length in lengths])
        self.actions.mark()

    def begin_again(self, env_ids: Sequence[int]) -> None:
        """These envs have begun another episode between two rollouts."""
        self._arrays[FRESH][env_ids] = True
        for env_id in env_ids:
            self._current[env_id] = self._begun(env_id)
            self.actions.begin(env_id)

    @property
    def full(self) -> Sequence[Rollout]:
        """What was collected last, by group."""
        return self.rollouts

    @property
    def env_steps(self) -> int:
        """Of the last rollout."""
        return self.rollouts[0].steps * self._envs.num_envs if self._taken is None else int(self._taken.sum())

    def _begun(self, env_id: int) -> tuple[int, int | None]:
        episode = int(self._envs.episode_counts[env_id])
        return episode, self._plan(env_id, episode).seed

    def _by_env(self, column: Array) -> Array:
        """[…, slots] → […, envs, agents]"""
        return column.reshape(*column.shape[:-1], self._envs.num_envs, -1)

    @property
    def starts(self) -> Array:
        """[envs] bool: whose next step is the first of an episode."""
        return np.array(self._arrays[FRESH])

    def remembered(self) -> dict[str, Any]:
        """What policies go on with in the next rollout, by group: their memory, and the last actions and rewards."""
        played = {"played": np.array([rows[-1] for rows in self._played])} if self._played else {}
        return played | {
            rollout.group: {
                "memory": {name: kept.copy() for name, kept in rollout.last_memory.items()},
                **{name: column.copy() for name, column in zip(("actions", "rewards"), self._last(rollout, values))},
            }
            for rollout, values in zip(self.rollouts, self._values)
        }

    def remember(self, known: Mapping[str, Any]) -> None:
        """Go on with that."""
        if self._played:
            for rows, last in zip(self._played, known["played"]):
                rows[-1] = last
        for rollout, values in zip(self.rollouts, self._values):
            mine = known[rollout.group]
            actions, rewards = self._last(rollout, values)
            actions[...], rewards[...] = mine["actions"], mine["rewards"]
            for name, kept in rollout.last_memory.items():
                kept[...] = mine["memory"][name]

    def _last(self, rollout: Rollout, values: Array) -> tuple[Array, Array]:
        """What the next rollout's first row is shown of actions and rewards before it."""
        return rollout.last_previous or (rollout.actions[-1], values[-1, REWARD])

    # -- a rollout -----------------------------------------------------------------------------------------------
    def collect(
        self,
        policies: Sequence[Policy],
        rng: np.random.Generator,
        should_stop: Callable[[], bool] = lambda: False,
        opponents: Opponents | None = None,
    ) -> Collected | None:
        """Fill the rollouts with what each group's policy does, or past ones where those play. None if it was asked to
        stop before they were full: then nothing of them counts."""
        arrays, everyone = self._arrays, range(self._envs.num_envs)
        self._begin_rows(policies, rng, everyone)
        if self._taken is not None:
            self._taken[...] = 0
        began_at = perf_counter()
        if not (self._filled_in_workers if self._in_workers else self._filled)(policies, should_stop, opponents):
            return None
        for rollout, values, masks in zip(self.rollouts, self._values, self._masks):
            rollout.rewards[...] = values[:, REWARD]
            lost = self._of_slots(arrays[LOST], rollout)
            rollout.valid &= ~lost  # guard: lost-rows-are-not-valid
            rollout.action_masks = None if masks is None or masks.all() else masks
        self._log_actions(policies)
        seconds = arrays[SECONDS].sum(axis=0).tolist()
        return Collected.in_time(self._episodes(everyone), int(arrays[LOST].sum()), began_at, *seconds)

    def _begin_rows(self, policies: Sequence[Policy], rng: np.random.Generator, env_ids: range) -> None:
        """The rows of these envs are about to be filled, by these policies."""
        arrays, mine = self._arrays, slice(env_ids.start, env_ids.stop)
        for rollout, noise, policy in zip(self.rollouts, self._noise, policies):
            slots = self._layout.rows(self._group(rollout), env_ids)
            noise[:, slots] = policy.noise(rng, rollout.steps, slots.stop - slots.start)
            rollout.policy_version, rollout.valid[:, slots] = policy.version, True
        arrays[LOST][:, mine], arrays[BEGUN][:, mine], arrays[SECONDS][mine] = False, -1, 0.0
        self._show(0, env_ids)

    def _filled_in_workers(
        self, policies: Sequence[Policy], should_stop: Callable[[], bool], opponents: Opponents | None
    ) -> bool:
        self._before = [self._arrays[(r.group, VALUES)].copy() for r in self.rollouts], self.starts
        arguments = [policy.portable() for policy in policies], self._mask, opponents
        lost, on_lost = self._arrays[LOST], self._lost_with_worker
        return self._envs.run_rows(fill_rows, arguments, lost, should_stop, on_lost, self._taken)

    def _show(self, row: int, env_ids: range) -> None:
        """What the envs show now is what is seen in this row."""
        arrays = self._arrays
        for rollout in self.rollouts:
            slots = self._layout.rows(self._group(rollout), env_ids)
            for path in rollout.observations:
                shown = arrays[name_in_block(rollout.group, path)]
                arrays[(rollout.group, ROLLOUT, "observations", *path)][row, slots] = shown[slots]
            for path in rollout.states:
                mine, shown = slice(env_ids.start, env_ids.stop), arrays[(STATE, OBSERVATIONS, *path)]
                arrays[(rollout.group, ROLLOUT, "states", *path)][row, mine] = shown[mine]

    def _of_slots(self, envs: Array, rollout: Rollout) -> Array:
        """[…, envs] → […, slots]"""
        return np.repeat(envs, len(self._group(rollout).agents), axis=-1)

    def _group(self, rollout: Rollout) -> Group:
        return next(group for group in self._layout.groups if group.name == rollout.group)

    def _lost_with_worker(self, env_ids: range, row: int) -> None:
        """A worker was lost in this row and replaced: as if its envs' episodes had ended there, without that step."""
        arrays, mine = self._arrays, slice(env_ids.start, env_ids.stop)
        values_before, fresh_before = self._before
        fresh = arrays[BEGUN][row - 1, mine] >= 0 if row else fresh_before[mine]
        waited = np.zeros(len(env_ids), np.bool_)
        if self._taken is not None:
            waited = np.logical_or.reduce(arrays[BEGUN][:row, mine] >= 0)
            arrays[BEGUN][row:, mine] = -1
        for rollout, all_values, at_first in zip(self.rollouts, self._values, values_before):
            group = self._group(rollout)
            slots, over = self._layout.rows(group, env_ids), self._of_slots(fresh, rollout)
            values = all_values[:, :, slots]
            values[row] = values[row - 1] if row else at_first[:, slots]
            values[row][:, over] = 0.0  # a new episode, without any step
            values[row, REWARD] = 0.0
            rollout.starts[row, slots] = over
            rollout.terminated[row, slots] = False
            rollout.truncated[row, slots] = rollout.valid[row, slots] = ~self._of_slots(waited, rollout)
            for path, rows in rollout.observations.items():
                rollout.finals[path][row, slots] = rows[row, slots]
            for path, rows in rollout.states.items():
                rollout.final_states[path][row, mine] = rows[row, mine]
        arrays[FRESH][mine] = True
        for env_id, had_ended in zip(env_ids, waited.tolist()):
            at, (episode, seed) = row, self._begun(env_id)
            if had_ended:
                at = int(np.argmax(arrays[BEGUN][:, env_id] >= 0))
                arrays[LOST][row, env_id] = False  # guard: who-waited-has-lost-nothing
            if self._taken is not None:
                self._taken[env_id] = at + 1
            arrays[BEGUN][at, env_id], arrays[SEEDS][at, env_id] = episode, -1 if seed is None else seed
        self._show(row + 1, env_ids)

    def _filled(self, policies: Sequence[Policy], should_stop: Callable[[], bool], opponents: Opponents | None) -> bool:
        envs, everyone = self._envs, range(self._envs.num_envs)
        self._rows = self._rows or rows_of(self._arrays, self._layout, everyone, self._mask)
        steps = _CallerSteps(envs, self._plan)
        return fill(self._rows, policies, self._arrays, everyone, 0, lambda _: not should_stop(), steps, opponents)

    @property
    def playing(self) -> set[int]:
        """The past versions that are in the middle of an episode."""
        return set(self._played[0][-1].tolist()) if self._played else set()

    # -- what became of it ---------------------------------------------------------------------------------------
    def _episodes(self, env_ids: range) -> list[Episode]:
        """Those of these envs that ended, in order."""
        arrays, found = self._arrays, []
        rows, envs = np.nonzero(arrays[BEGUN][:, env_ids.start : env_ids.stop] >= 0)
        envs += env_ids.start
        lost, begun, seeds = (arrays[name][rows, envs].tolist() for name in (LOST, BEGUN, SEEDS))
        sums = [self._by_env(values)[rows, 1:, envs] for values in self._values]  # [ends, 2, agents] of each group
        lengths = np.concatenate([one[:, 0] for one in sums], axis=1).max(axis=1).tolist()
        returns = np.concatenate([one[:, 1] for one in sums], axis=1)
        several = returns.shape[1] > 1
        versions, ours = self._whose(rows, envs, returns.shape[1])
        means = [float(one[mine].mean()) for one, mine in zip(returns, ours)] if several else returns[:, 0].tolist()
        agents = [agent for group in self._layout.groups for agent in group.agents]
        for k, env_id in enumerate(envs.tolist()):
            index, seed = self._current[env_id]
            by_agent = dict(zip(agents, returns[k].tolist())) if several else None
            who = versions[k], int(arrays[ACTED_BY][env_id])
            found.append(Episode(env_id, index, seed, means[k], int(lengths[k]), lost[k], by_agent, *who))
            self._current[env_id] = begun[k], None if seeds[k] < 0 else seeds[k]
        return found

    def _whose(self, rows: Array, envs: Array, agents: int) -> tuple[list[int | None], Array]:
        """Of episodes that ended there: the past version that played; [ends, agents] bool: who was the learners'."""
        if not self._played:
            return [None] * len(rows), np.ones((len(rows), agents), np.bool_)
        versions, sides = (played[rows, envs] for played in self._played)
        groups = [rollout.agents for rollout in self.rollouts]
        who = [who_plays(versions, sides, n, k, len(groups)).reshape(-1, n) for k, n in enumerate(groups)]
        return [None if v == NOBODY else v for v in versions.tolist()], np.concatenate(who, axis=1) == NOBODY

    def _log_actions(self, policies: Sequence[Policy]) -> None:
        if self.keeps_actions:
            taken = [self._as_taken(rollout, policy) for rollout, policy in zip(self.rollouts, policies)]
            self.actions.add(taken, ended := self._arrays[BEGUN] >= 0)
            if self._taken is not None:
                for env_id in np.flatnonzero(ended.any(axis=0)).tolist():
                    self.actions.begin(env_id)  # guard: who-waits-has-taken-nothing

    def _as_taken(self, rollout: Rollout, policy: Policy) -> Array:
        """[T, envs, agents, …] of a rollout, [T, envs, …] of a single agent's."""
        actions, agents = rollout.actions, () if is_single(self._envs) else (rollout.agents,)
        taken = np.asarray(policy.for_env(actions.reshape(-1, *actions.shape[2:])))
        return taken.reshape(len(actions), self._envs.num_envs, *agents, *taken.shape[1:])


class _CallerSteps:
    """The caller steps all envs at once."""

    def __init__(self, envs: BaseVectorEnv, plan: ResetPlan) -> None:
        self._envs, self._plan = envs, plan
        self.next_step = envs.metadata.get("autoreset_mode") == AutoresetMode.NEXT_STEP

    def step(self, only_some: bool) -> Iterable[int]:
        infos = self._envs.step_as_written()
        lost = [infos[f"_{key}"] for key in (RESTARTED, BAD_VALUE) if f"_{key}" in infos]
        return np.flatnonzero(np.logical_or.reduce(lost)).tolist() if lost else ()

    def failed(self) -> bool:
        return False  # it would have been raised

    def seed_of(self, i: int) -> int | None:
        return self._plan(i, int(self._envs.episode_counts[i]) + self.next_step).seed

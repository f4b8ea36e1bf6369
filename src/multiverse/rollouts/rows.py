"""Rows of one group of agents in one host's envs: policies read them, and act and record there (see `host_rows`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from multiverse.core.errors import InvalidActions
from multiverse.core.layout import (
    ACTING,
    ACTION_MASKS,
    ACTIONS,
    ENDED,
    EPISODE_LENGTH,
    FINAL_OBSERVATIONS,
    OBSERVATIONS,
    PRESENT,
    REWARD,
    STATE,
    VALUES,
    Array,
    FieldName,
    Group,
    Layout,
    Path,
    Views,
)
from multiverse.core.policy import Memory, Policy, Seen
from multiverse.ipc.space_rows import ActionWriter
from multiverse.rollouts.rollout import ROLLOUT, name_in_block
from multiverse.rollouts.self_play import CURRENT_POLICY, Opponents, versions_by_slot

Arrays = Mapping[FieldName, Array]
Matches = tuple[Array, Array]
"""[envs] past version that plays in each env, and side of the current policy."""


class Rows:
    """The slots of one group in one host's envs, in the block and in the rollout, and the policy that acts for them."""

    def __init__(self, arrays: Arrays, layout: Layout, group: Group, env_ids: range, mask: Path | None) -> None:
        """`mask`: the leaf of the observations that has the action masks, where the block has none of the group."""
        slots, self._mask = layout.rows(group, env_ids), mask
        self._number, self._num_groups = layout.groups.index(group), len(layout.groups)
        mine = {name[2:]: rows for name, rows in arrays.items() if name[:2] == (group.name, ROLLOUT)}
        now = {name[1:]: rows[..., slots] if name[1] in (VALUES, ENDED, PRESENT) else rows[slots]
               for name, rows in arrays.items() if name[0] == group.name and name[1] != ROLLOUT}  # fmt: skip
        self._observations = {name[1:]: rows[:, slots] for name, rows in mine.items() if name[0] == "observations"}
        in_block = {p: [name_in_block("", p, final)[1:] for final in (False, True)] for p in self._observations}
        # (rows of the rollout, current values in the block) of observations, and of states
        self._current = [(rows, now[in_block[path][0]]) for path, rows in self._observations.items()]
        self._finals = [
            (mine[("finals", *path)][:, slots], now.get(last, now[name])) for path, (name, last) in in_block.items()
        ]
        envs, states = slice(env_ids.start, env_ids.stop), [name[1:] for name in mine if name[0] == "states"]
        current = [
            [arrays.get((STATE, kind, *path), arrays[(STATE, OBSERVATIONS, *path)])[envs] for path in states]
            for kind in (OBSERVATIONS, FINAL_OBSERVATIONS)
        ]
        self._current += [(mine[("states", *path)][:, envs], now) for path, now in zip(states, current[0])]
        self._final_states = [(mine[("final_states", *path)][:, envs], now) for path, now in zip(states, current[1])]
        self._memory_rows = {str(name[1]): rows[:, slots] for name, rows in mine.items() if name[0] == "memory"}
        self._previous_rows = [mine[(f"previous_{n}",)][:, slots] for n in ("actions", "rewards") if self._memory_rows]
        self._actions, self._noise = mine[("actions",)][:, slots], mine[("noise",)][:, slots]
        self._values, self._ended = mine[("values",)][:, :, slots], mine[("ended",)][:, :, slots]
        self._starts, self._valid = mine[("starts",)][:, slots], mine[("valid",)][:, slots]
        self._masks = mine[("masks",)][:, slots] if ("masks",) in mine else None
        self._acting = mine[("acting",)][:, slots] if ("acting",) in mine else None
        own = Views(replace(layout, num_envs=slots.stop - slots.start), {(group.name, ACTIONS): now[(ACTIONS,)]})
        self._write_actions = ActionWriter(group.action_space, own, (group.name, ACTIONS)).write_all
        self._values_now, self._ended_now, self._present_now = now[(VALUES,)], now[(ENDED,)], now[(PRESENT,)]
        self._masks_now, self._agents = now.get((ACTION_MASKS,)), len(group.agents)
        self._teams = np.repeat(np.arange(len(env_ids)), self._agents) if self._agents > 1 else None

    def ended_now(self) -> Array:
        """[slots] bool: the episode ended in the latest step."""
        return np.asarray(self._ended_now[0] | self._ended_now[1])

    def begin(self, policy: Policy, row: int, opponents: Opponents | None) -> None:
        """Prepare to fill from this row on, which has the current observations; memory continues in row 0."""
        self._policy = policy
        self._past = {} if opponents is None else {v: each[self._number] for v, each in opponents.policies.items()}
        before = -1 if row == 0 else row - 1  # the last row of the rollout before, or one that was lost
        self._memory = {name: rows[-1 if row == 0 else row].copy() for name, rows in self._memory_rows.items()}
        self._previous = self._actions[before], self._values[before, REWARD]
        if row == 0 and self._previous_rows:  # a slot that did not act in the last row has earlier ones
            actions, rewards = self._previous_rows
            self._previous = actions[-1].copy(), rewards[-1].copy()

    def act(self, row: int, fresh: Array, resetting: Array | None, matches: Matches | None = None) -> None:
        """Record memory and masks, choose actions, and write them for the envs. `matches`: versions and sides, where
        past versions of the policy play too."""
        starts = fresh
        if self._acting is not None:
            acting = self._acting[row] = self._valid[row] = self._present_now[ACTING]
            starts = np.repeat(fresh, self._agents) | (self._values_now[EPISODE_LENGTH] == 0)
            starts &= acting
        elif resetting is not None:
            self._valid[row] = ~resetting  # guard: a-row-that-begins-an-episode-is-no-step
        self._starts[row] = starts
        memory = (
            self._reset_memory(starts) if np.count_nonzero(starts) else self._memory
        )  # `any` takes three times as long
        for name, rows in self._memory_rows.items():
            rows[row] = memory[name]
        for rows, before in zip(self._previous_rows, self._previous):
            rows[row] = before
        observations = {path: rows[row] for path, rows in self._observations.items()}
        masks = None
        if self._masks is not None:
            current = self._masks_now if self._mask is None else observations[self._mask]
            masks = self._masks[row] = np.asarray(current, np.bool_)
        teams = self._teams
        if teams is not None and self._acting is not None:
            teams = np.where(self._acting[row], teams, -1)  # guard: nobody-looks-at-who-is-not-there
        previous_actions, previous_rewards = self._previous
        seen = Seen(observations, starts, masks, previous_actions, previous_rewards, teams)
        if matches is None:
            actions, after = checked_answer(self._policy.act(seen, self._noise[row], memory), memory)
        else:
            versions, sides = matches
            versions = versions_by_slot(versions, sides, self._agents, self._number, self._num_groups)
            self._valid[row] &= versions == CURRENT_POLICY  # guard: opponents-rows-are-not-learned-from
            actions, after = self._act_by_version(versions, seen, self._noise[row], memory)
        write_actions(actions, self._actions[row])
        self._memory = after if self._acting is None else self._where_acting(row, after, memory)
        self._write_actions(self._policy.for_env(self._actions[row]))

    def _act_by_version(self, versions: Array, seen: Seen, noise: Array, memory: Memory) -> tuple[Array, Memory]:
        """Actions and memory of the current policy and past versions, each for its own slots."""
        actions, after = None, {name: kept.copy() for name, kept in memory.items()}
        for version in np.unique(versions).tolist():
            mine = np.flatnonzero(versions == version)
            policy = self._policy if version == CURRENT_POLICY else self._past[version]
            before = {name: kept[mine] for name, kept in memory.items()}
            chosen, next_memory = checked_answer(policy.act(_rows_of(seen, mine), noise[mine], before), before)
            if actions is None:
                actions = np.zeros((len(versions), *chosen.shape[1:]), chosen.dtype)
            actions[mine] = chosen
            for name, kept in next_memory.items():
                after[name][mine] = kept
        assert actions is not None
        return actions, after

    def _reset_memory(self, starts: Array) -> Memory:
        """The memory, and previous actions and rewards, reset where an episode starts."""
        actions, rewards = (before.copy() for before in self._previous)
        actions[starts], rewards[starts] = 0, 0.0
        self._previous = actions, rewards
        if self._memory_rows:  # copies: what act() returned may be the policy's own
            self._memory = {name: np.array(kept) for name, kept in self._memory.items()}
            for name, first in self._policy.first_memory(len(starts)).items():
                self._memory[name][starts] = first[starts]
        return self._memory

    def _where_acting(self, row: int, after: Memory, before: Memory) -> Memory:
        """The new memory of slots that act, and the old one of the others."""
        assert self._acting is not None
        acting = self._acting[row]
        return {name: np.where(_like(acting, kept), kept, before[name]) for name, kept in after.items()}

    def record(self, row: int) -> Array:
        """Record the outcome of the step; return [slots] bool: the episode ended."""
        for rows, now in self._current:
            rows[row + 1] = now
        self._values[row], self._ended[row] = self._values_now, self._ended_now
        ended: Array = self._ended[row, 0] | self._ended[row, 1]
        if np.count_nonzero(ended):
            for rows, now in self._finals:
                rows[row, ended] = now[ended]
            for rows, now in self._final_states:
                envs = ended.reshape(-1, self._agents).any(axis=1)
                rows[row, envs] = now[envs]  # guard: final-states-are-kept
        if self._acting is None:
            self._previous = self._actions[row], self._values[row, REWARD]
        else:  # rewards until a slot acts again belong to its last action
            acted, (actions, rewards) = self._acting[row], self._previous
            actions = np.where(_like(acted, actions), self._actions[row], actions)
            self._previous = actions, np.where(acted, 0.0, rewards) + self._values[row, REWARD]
        return ended

    def wait(self, row: int | slice, envs: Array) -> None:
        """Clear this row of envs [envs] bool that were not stepped because their episodes are over."""
        slots = np.repeat(envs, self._agents)
        self._valid[row, slots] = self._starts[row, slots] = False  # guard: who-waits-is-not-learned-from
        self._actions[row, slots], self._values[row, :, slots], self._ended[row, :, slots] = 0, 0.0, False
        if self._acting is not None:
            self._acting[row, slots] = False
        actions, rewards = self._previous
        self._memory = {name: np.array(kept) for name, kept in self._memory.items()}
        self._previous = np.array(actions), np.array(rewards)
        for kept in (*self._memory.values(), *self._previous):
            kept[slots] = 0

    def finish(self) -> None:
        """Record what the next rollout begins with."""
        for rows, now in self._current:
            rows[-1] = now
        for name, rows in self._memory_rows.items():
            rows[-1] = self._memory[name]
        for rows, before in zip(self._previous_rows, self._previous):
            rows[-1] = before
        if self._acting is not None:
            self._acting[-1] = self._present_now[ACTING]


def _rows_of(seen: Seen, rows: Array) -> Seen:
    def part(column: Array | None) -> Array | None:
        return None if column is None else column[rows]

    return Seen(
        observations={path: leaf[rows] for path, leaf in seen.observations.items()},
        starts=seen.starts[rows],
        masks=part(seen.masks),
        previous_actions=part(seen.previous_actions),
        previous_rewards=part(seen.previous_rewards),
        teams=part(seen.teams),
    )


def checked_answer(answer: Any, before: Memory) -> tuple[Array, Memory]:
    """Actions and memory that a policy's act() has returned; InvalidActions if it returned anything else."""
    if not isinstance(answer, tuple) or len(answer) != 2 or not isinstance(answer[1], dict):
        raise InvalidActions(f"the policy's act() returned {_type_names(answer)}: expected (actions, memory)")
    actions, after = answer
    if before and {n: np.shape(kept) for n, kept in after.items()} != {n: k.shape for n, k in before.items()}:
        shapes, expected = ({n: np.shape(k) for n, k in memory.items()} for memory in (after, before))
        raise InvalidActions(
            f"the policy's act() returned memory of shapes {shapes}: expected {expected}, the shapes of first_memory()"
        )
    return np.asarray(actions), after


def write_actions(actions: Array, room: Array) -> None:
    """Write a policy's actions into a rollout; InvalidActions if shape or dtype differ, which would change them."""
    alike = actions.dtype is room.dtype or np.can_cast(actions.dtype, room.dtype, "same_kind")
    if actions.shape != room.shape or not alike:
        raise InvalidActions(  # guard: a-policys-actions-are-as-it-said
            f"the policy's act() returned {actions.dtype} of shape {actions.shape} for {len(room)} rows: expected "
            f"{room.dtype} of shape {room.shape}, as `action` of its algorithm declares"
        )
    room[...] = actions


def _type_names(answer: Any) -> str:
    if isinstance(answer, tuple):
        return f"({', '.join(type(part).__name__ for part in answer)})"
    return type(answer).__name__


def _like(mask: Array, rows: Array) -> Array:
    """[slots] reshaped to broadcast along the further axes of `rows`."""
    return mask.reshape(-1, *(1,) * (rows.ndim - 1))
